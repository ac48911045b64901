# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark topics`: list, describe, create, alter and delete topics, through the master's HTTP API.

A change is configuration at first. `admin_reload_broker_configure` sends it to the brokers, which apply it within
seconds (wire: WebAdminTopicDeployHandler, WebBrokerConfHandler).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.output import confirm, print_json, print_line, print_table, progress
from tubemq_spark.cli.parameters import Json, Topic, Yes, connected
from tubemq_spark.client.admin_api import AdminApi, AdminError, check_rows, checked_rows, joined
from tubemq_spark.errors import ConfigError

_RETENTION = re.compile(r"delete,([0-9]{1,9})([smh]?)")  # wire: validDeletePolicyParameter in WebParameterUtils
_SECONDS = {"s": 1, "m": 60, "h": 3600, "": 3600}
_APPLIED = ("acceptPublish", "acceptSubscribe", "numPartitions", "numTopicStores")
_MAX_RETENTION = 168 * 3600  # seconds (wire: DataStoreUtils.MAX_FILE_VALID_DURATION)
_PAUSE = 0.5  # seconds between two questions whether the brokers have applied a change

app = typer.Typer(
    no_args_is_help=True, help="List, describe, create, alter and delete topics. Uses the master's HTTP API."
)

Wait = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until the brokers have applied the change.")
]


@dataclass(frozen=True)
class Deployment:
    """A topic on one broker. `is_ready` is False until the broker has applied the configuration."""

    topic: str
    broker_id: int
    address: str
    partitions: int
    stores: int
    accepts_publish: bool
    accepts_subscribe: bool
    retention: str
    is_ready: bool


def deployments(admin: AdminApi, topic: str | None = None) -> list[Deployment]:
    """Return all topics of the cluster by broker, or one; without the brokers' own topics."""
    rows = admin.topics(topic)
    with checked_rows():
        return sorted(map(_deployment, rows), key=lambda one: (one.topic, one.broker_id))


def _deployment(row: dict[str, Any]) -> Deployment:
    run = row["runInfo"]
    return Deployment(
        topic=str(row["topicName"]),
        broker_id=int(row["brokerId"]),
        address=f"{row['brokerIp']}:{row['brokerPort']}",
        partitions=int(row["numPartitions"]),
        stores=int(row["numTopicStores"]),
        accepts_publish=bool(row["acceptPublish"]),
        accepts_subscribe=bool(row["acceptSubscribe"]),
        retention=str(row["deletePolicy"]),
        is_ready=all(row[name] == run.get(name) for name in _APPLIED),
    )


def configure_topic(
    admin: AdminApi, name: str, partitions: int, stores: int, brokers: Collection[int], retention: str | None
) -> list[int]:
    """Configure the topic on `brokers`, by default on all, and send it to them. Return the ids of the brokers."""
    _check_name(name)
    if retention is not None:
        _check_retention(retention)
    known = admin.brokers()
    if unknown := sorted(set(brokers) - known.keys()):
        raise ConfigError(f"there is no broker {joined(unknown)}; the brokers are {joined(sorted(known))}")
    chosen = sorted(brokers or known)
    if not chosen:
        raise AdminError("the cluster has no broker: add one first")
    if deployments(admin, name):
        raise AdminError(f"topic {name} exists already; `tubemq-spark topics describe {name}` shows it")
    policy = {} if retention is None else {"deletePolicy": retention}
    answer = admin.change(
        "admin_add_new_topic_record",
        brokerId=joined(chosen),
        topicName=name,
        numPartitions=partitions,
        numTopicStores=stores,
        **policy,
    )
    check_rows(answer, f"creating topic {name}")
    _reload(admin, chosen)
    return chosen


def change_topic(
    admin: AdminApi, name: str, partitions: int | None, stores: int | None, retention: str | None
) -> list[int]:
    """Change what is not None on all brokers of the topic, and send it to them. Return the ids of the brokers."""
    if retention is not None:
        _check_retention(retention)
    given = {"numPartitions": partitions, "numTopicStores": stores, "deletePolicy": retention}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise ConfigError("there is nothing to change: give --partitions, --stores or --retention")
    found = existing(admin, name)
    for one in found:
        if (partitions or one.partitions) < one.partitions or (stores or one.stores) < one.stores:
            raise ConfigError(
                f"topic {name} has {one.stores} stores of {one.partitions} partitions on broker {one.broker_id}; "
                "expected at least these numbers, because messages of a removed partition could not be read"
            )
    chosen = [one.broker_id for one in found]
    answer = admin.change("admin_modify_topic_info", brokerId=joined(chosen), topicName=name, **changes)
    check_rows(answer, f"changing topic {name}")
    _reload(admin, chosen)
    return chosen


def remove_topic(admin: AdminApi, name: str) -> list[int]:
    """Close the topic, delete it on all brokers and send that to them. Return the ids of the brokers."""
    chosen = [one.broker_id for one in existing(admin, name)]
    place = {"brokerId": joined(chosen), "topicName": name}
    steps: Sequence[tuple[str, dict[str, object]]] = (
        ("admin_modify_topic_info", {"acceptPublish": False, "acceptSubscribe": False}),
        ("admin_delete_topic_info", {}),
        ("admin_remove_topic_info", {}),
    )
    for method, extra in steps:
        check_rows(admin.change(method, **place, **extra), f"deleting topic {name}")
    _reload(admin, chosen)
    return chosen


def existing(admin: AdminApi, name: str) -> list[Deployment]:
    """Return where the topic is; raise `ConfigError` if it does not exist."""
    _check_name(name)
    found = deployments(admin, name)
    if not found:
        raise ConfigError(f"there is no topic {name}; `tubemq-spark topics list` shows all")
    return found


def _check_name(name: str) -> None:
    if re.fullmatch(r"[a-zA-Z]\w{0,63}", name, re.ASCII) is None:
        raise ConfigError(f"the topic name {name!r} must begin with a letter and have 1 to 64 letters, digits and _")


def _check_retention(policy: str) -> None:
    found = _RETENTION.fullmatch(policy)
    if found is None or not 0 < int(found[1]) * _SECONDS[found[2]] <= _MAX_RETENTION:
        raise ConfigError(
            f"--retention is {policy!r}; expected delete,TIME with a whole number of s, m or h, at most 168h, for "
            "example delete,72h"
        )


def _reload(admin: AdminApi, brokers: Sequence[int]) -> None:
    check_rows(admin.change("admin_reload_broker_configure", brokerId=joined(brokers)), "sending the change to brokers")


def is_ready(admin: AdminApi, name: str) -> bool:
    found = deployments(admin, name)
    return bool(found) and all(one.is_ready for one in found)


@app.command("list")
@connected(admin=True)
def list_topics(connection: Connection, as_json: Json = False) -> None:
    """List all topics of the cluster."""
    found: dict[str, list[Deployment]] = {}
    for one in deployments(connection.admin):
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
    print_table(columns, [(topic, joined(brokers), *rest) for topic, brokers, *rest in rows])


@app.command("describe")
@connected(admin=True)
def describe_topic(connection: Connection, topic: Topic, as_json: Json = False) -> None:
    """Show a topic's partitions, settings and state on each broker."""
    found = existing(connection.admin, topic)
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
    brokers = configure_topic(admin, topic, partitions, stores, broker or (), retention)
    _wait(wait, f"topic {topic}", brokers, lambda: is_ready(admin, topic))
    if as_json:
        print_json({"topic": topic, "brokers": brokers, "partitions": partitions * stores * len(brokers)})
    else:
        print_line(f"created topic {topic} with {partitions * stores} partitions on each broker: {joined(brokers)}")


@app.command("alter")
@connected(token=True)
def alter_topic(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="Partitions in each store.", show_default="unchanged"),
    ] = None,
    stores: Annotated[
        int | None, typer.Option("--stores", min=1, help="Stores on each broker.", show_default="unchanged")
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="POLICY", help="When messages are deleted, for example delete,168h.",
                     show_default="unchanged"),
    ] = None,
    wait: Wait = 120.0,
) -> None:  # fmt: skip
    """Give a topic more partitions or stores, or another retention, on all its brokers; wait until they have it.

    Queries and producers that use the topic go on. Running queries of Spark read new partitions from their beginning.
    While a broker applies the change, it refuses messages for some seconds; producers send them again.
    """
    admin = connection.admin
    brokers = change_topic(admin, topic, partitions, stores, retention)
    _wait(wait, f"the change of topic {topic}", brokers, lambda: is_ready(admin, topic))
    print_line(f"changed topic {topic} on broker {joined(brokers)}")


@app.command("delete")
@connected(token=True)
def delete_topic(connection: Connection, topic: Topic, wait: Wait = 120.0, yes: Yes = False) -> None:
    """Delete a topic with all its messages on all brokers."""
    admin = connection.admin
    found = existing(admin, topic)
    if not yes:
        where = joined(one.broker_id for one in found)
        confirm(f"Delete topic {topic} and all its messages on broker {where}?")
    brokers = remove_topic(admin, topic)
    _wait(wait, f"the end of topic {topic}", brokers, lambda: not deployments(admin, topic))
    print_line(f"deleted topic {topic}")


def _wait(seconds: float, what: str, brokers: Sequence[int], is_done: Callable[[], bool]) -> None:
    """Ask until the brokers have applied a change, unless `seconds` is 0; raise `AdminError` if they do not."""
    if not seconds:
        return
    deadline = time.monotonic() + seconds
    with progress(f"waiting for broker {joined(brokers)}") as advance:
        while not is_done():
            if time.monotonic() > deadline:
                raise AdminError(
                    f"{what} is configured, but the brokers did not apply it within {seconds:g} s. Check that they "
                    "run: `tubemq-spark topics describe` shows their state"
                )
            advance(1)
            time.sleep(_PAUSE)
