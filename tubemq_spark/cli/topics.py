# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark topics`: list, describe, create and delete topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tubemq_spark.cli import topic_admin
from tubemq_spark.cli.admin import AdminError
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.output import print_json, print_table, progress
from tubemq_spark.cli.parameters import Json, Topic, Yes, connected

_PAUSE = 0.5  # seconds between two questions whether the brokers have applied a change

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
        (
            topic,
            [one.broker_id for one in on],
            sum(one.partitions * one.stores for one in on),
            all(one.is_ready for one in on),
        )
        for topic, on in sorted(found.items())
    ]
    if as_json:
        names = ("topic", "brokers", "partitions", "is_ready")
        print_json(*(dict(zip(names, row, strict=True)) for row in rows))
        return
    columns = ("topic", "brokers", "partitions", "ready")
    print_table(columns, [(topic, _numbers(brokers), *rest) for topic, brokers, *rest in rows])


@app.command("describe")
@connected(admin=True)
def describe_topic(connection: Connection, topic: Topic, as_json: Json = False) -> None:
    """Show a topic's partitions, settings and state on each broker."""
    found = topic_admin.existing(connection.admin, topic)
    if as_json:
        print_json(*map(asdict, found))
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
    _wait(wait, f"topic {topic}", brokers, lambda: topic_admin.is_ready(admin, topic))
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
        where = _numbers(one.broker_id for one in found)
        typer.confirm(f"Delete topic {topic} and all its messages on broker {where}?", abort=True)
    brokers = topic_admin.delete_topic(admin, topic)
    _wait(wait, f"the end of topic {topic}", brokers, lambda: not topic_admin.deployments(admin, topic))
    print(f"deleted topic {topic}")


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _wait(seconds: float, what: str, brokers: Sequence[int], is_done: Callable[[], bool]) -> None:
    """Ask until the brokers have applied a change, unless `seconds` is 0; raise `AdminError` if they do not."""
    if not seconds:
        return
    deadline = time.monotonic() + seconds
    with progress(f"waiting for broker {_numbers(brokers)}") as advance:
        while not is_done():
            if time.monotonic() > deadline:
                raise AdminError(
                    f"{what} is configured, but the brokers did not apply it within {seconds:g} s. Check that they "
                    "run: `tubemq-spark topics describe` shows their state"
                )
            advance(1)
            time.sleep(_PAUSE)
