# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark topics`: list, describe, create and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from tubemq_spark.cli import topic_admin
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.output import print_json, print_table, progress
from tubemq_spark.cli.parameters import Json, Topic, Yes, connected

app = typer.Typer(no_args_is_help=True, help="List, describe, create and delete topics. Uses the master's HTTP API.")

Wait = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until the brokers have applied the change.")
]


@app.command("list")
@connected(admin=True)
def list_topics(connection: Connection, as_json: Json = False) -> None:
    """List all topics of the cluster."""
    found: dict[str, list[topic_admin.Deployment]] = {}
    for one in topic_admin.deployments(connection.admin):
        found.setdefault(one.topic, []).append(one)
    rows = [
        {
            "topic": topic,
            "brokers": [one.broker_id for one in on],
            "partitions": sum(one.partitions * one.stores for one in on),
            "is_ready": all(one.is_ready for one in on),
        }
        for topic, on in sorted(found.items())
    ]
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ("topic", "brokers", "partitions", "ready")
    print_table(columns, [(r["topic"], _numbers(r["brokers"]), r["partitions"], r["is_ready"]) for r in rows])


@app.command("describe")
@connected(admin=True)
def describe_topic(connection: Connection, topic: Topic, as_json: Json = False) -> None:
    """Show a topic's partitions, settings and state on each broker."""
    found = topic_admin.existing(connection.admin, topic)
    if as_json:
        for one in found:
            print_json(one.as_json())
        return
    columns = ("broker", "address", "stores", "partitions of each", "publish", "subscribe", "retention", "ready")
    rows = [
        (one.broker_id, one.address, one.stores, one.partitions, one.accepts_publish, one.accepts_subscribe,
         one.retention, one.is_ready)
        for one in found
    ]  # fmt: skip
    print_table(columns, rows)


@app.command("create")
@connected(token=True)
def create_topic(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions in each store.")] = 3,
    stores: Annotated[
        int, typer.Option("--stores", min=1, help="Stores on each broker; each is a log with files of its own.")
    ] = 1,
    broker: Annotated[
        list[int] | None,
        typer.Option("--broker", help="The id of a broker; may be repeated.", show_default="all brokers"),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="POLICY", help="When messages are deleted, for example delete,168h.",
                     show_default="the brokers' setting"),
    ] = None,
    wait: Wait = 120.0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Create a topic, and wait until it can be read and written. Brokers take a few seconds, at times a minute."""
    admin = connection.admin
    brokers = topic_admin.create_topic(admin, topic, partitions, stores, broker or (), retention)
    if wait:
        with progress(f"waiting for broker {_numbers(brokers)}") as advance:
            topic_admin.wait_until(
                lambda: topic_admin.is_ready(admin, topic), wait, f"topic {topic}", lambda: advance(1)
            )
    if as_json:
        print_json({"topic": topic, "brokers": brokers, "partitions": partitions * stores * len(brokers)})
    else:
        print(f"created topic {topic} with {partitions * stores} partitions on each broker: {_numbers(brokers)}")


@app.command("delete")
@connected(token=True)
def delete_topic(connection: Connection, topic: Topic, wait: Wait = 120.0, yes: Yes = False) -> None:
    """Delete a topic with all its messages on all brokers."""
    admin = connection.admin
    found = topic_admin.existing(admin, topic)
    if not yes:
        where = _numbers([one.broker_id for one in found])
        typer.confirm(f"Delete topic {topic} and all its messages on broker {where}?", abort=True)
    topic_admin.delete_topic(admin, topic)
    if wait:
        with progress("waiting for the brokers") as advance:
            topic_admin.wait_until(
                lambda: not topic_admin.deployments(admin, topic), wait, f"the end of topic {topic}", lambda: advance(1)
            )
    print(f"deleted topic {topic}")


def _numbers(numbers: object) -> str:
    return ", ".join(map(str, numbers)) if isinstance(numbers, list) else str(numbers)
