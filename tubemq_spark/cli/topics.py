# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark topics`: list, describe, create, alter and delete topics, through the master's HTTP API.

A change is configuration at first. `admin_reload_broker_configure` sends it to the brokers, which apply it within
seconds (wire: WebAdminTopicDeployHandler, WebBrokerConfHandler).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import typer

from tubemq_spark.cli.commands import Commands
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.output import confirm, note, print_result, print_rows, progress
from tubemq_spark.cli.parameters import Json, Yes, connected
from tubemq_spark.client.admin_api import AdminApi, AdminError, check_rows, checked_rows, joined
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.metadata import TOPIC_NAME
from tubemq_spark.similar_names import near, proposal

_RETENTION = re.compile(r"delete,([0-9]{1,9})([smh]?)")  # wire: validDeletePolicyParameter in WebParameterUtils
_SECONDS = {"s": 1, "m": 60, "h": 3600, "": 3600}
_STATES = ("normal", "deleted", "removed")  # by number (wire: TopicStatus, whose 3 is also of removed ones)
_APPLIED = ("acceptPublish", "acceptSubscribe", "numPartitions", "numTopicStores")
_MAX_RETENTION = 168 * 3600  # seconds (wire: DataStoreUtils.MAX_FILE_VALID_DURATION)
_PAUSE = 0.5  # seconds between two questions whether the brokers have applied a change

app = Commands(help="List, describe, create, alter and delete topics. Uses the master's HTTP API.")


def _check_name(name: str) -> str:
    if TOPIC_NAME.fullmatch(name) is None:
        raise ConfigError(f"the topic name {name!r} must begin with a letter and have 1 to 64 letters, digits and _")
    return name


def _check_retention(policy: str | None) -> str | None:
    if policy is None:
        return None
    found = _RETENTION.fullmatch(policy)
    if found is None or not 0 < int(found[1]) * _SECONDS[found[2]] <= _MAX_RETENTION:
        raise ConfigError(
            f"--retention is {policy!r}; expected delete,TIME with a whole number of s, m or h, at most 168h, for "
            "example delete,72h"
        )
    return policy


def _retention(default: str) -> Any:
    return typer.Option(
        "--retention", metavar="POLICY", help="When messages are deleted, for example delete,168h.",
        show_default=default, callback=_check_retention,
    )  # fmt: skip


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False, callback=_check_name)
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="Seconds to wait until the brokers have applied the change."),
]


def deployments(admin: AdminApi, topic: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each topic on each broker, or only those of one topic; without the brokers' own topics.

    `is_ready` is False until the broker has applied the configuration.
    """
    rows = admin.topics(topic)
    with checked_rows():
        found = [
            {
                "topic": str(row["topicName"]),
                "broker_id": int(row["brokerId"]),
                "address": f"{row['brokerIp']}:{row['brokerPort']}",
                "partitions": int(row["numPartitions"]),
                "stores": int(row["numTopicStores"]),
                "accepts_publish": bool(row["acceptPublish"]),
                "accepts_subscribe": bool(row["acceptSubscribe"]),
                "retention": str(row["deletePolicy"]),
                "state": _STATES[min(int(row["topicStatusId"]), 2)],
                "is_ready": all(row[name] == row["runInfo"].get(name) for name in _APPLIED),
            }
            for row in rows
        ]
    return sorted(found, key=itemgetter("topic", "broker_id"))


def existing(admin: AdminApi, name: str) -> list[dict[str, Any]]:
    """Return where the topic is; raise `ConfigError` if it does not exist."""
    found = deployments(admin, name)
    if not found:
        proposed = proposal(near(name, sorted({one["topic"] for one in deployments(admin)})))
        raise ConfigError(f"there is no topic {name}{proposed or '.'} `tubemq-spark topics list` shows all")
    return found


def _ids(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    return [one["broker_id"] for one in rows]


_Step = tuple[str, Iterable[int], Mapping[str, object]]
"""A call of the API: its method, the brokers, and further parameters."""


def _change(admin: AdminApi, what: str, name: str, brokers: Iterable[int], *steps: _Step) -> None:
    """Make those calls for topic `name` that have brokers, and send the result to `brokers`: also if a call before had
    made these steps, and was interrupted."""
    with _half_done(name):
        for method, ids, params in steps:
            if of := joined(ids):
                check_rows(admin.change(method, brokerId=of, topicName=name, **params), f"{what} topic {name}")
        check_rows(admin.change("admin_reload_broker_configure", brokerId=joined(brokers)), f"{what} topic {name}")


@contextmanager
def _half_done(name: str) -> Iterator[None]:
    """If the block fails or is interrupted, say how to see what is changed."""
    hint = f"`tubemq-spark topics describe {name}` shows what is changed"
    try:
        yield
    except (AdminError, TransportError) as error:  # of one call of several, or of one broker
        raise type(error)(f"{error}. {hint}") from None
    except KeyboardInterrupt:
        note(hint)
        raise


def configure_topic(
    admin: AdminApi, name: str, partitions: int, stores: int, brokers: Collection[int], retention: str | None
) -> list[int]:
    """Configure the topic on `brokers`, by default on all, and send it to them. Return the ids of the brokers."""
    known = admin.brokers()
    if unknown := sorted(set(brokers) - known.keys()):
        raise ConfigError(f"there is no broker {joined(unknown)}; the brokers are {joined(sorted(known))}")
    chosen = sorted(set(brokers) or known)
    if not chosen:
        raise AdminError("the cluster has no broker: add one first")
    if deployments(admin, name):
        raise AdminError(f"topic {name} exists already; `tubemq-spark topics describe {name}` shows it")
    settings: dict[str, object] = {"numPartitions": partitions, "numTopicStores": stores}
    settings |= {} if retention is None else {"deletePolicy": retention}
    _change(admin, "creating", name, chosen, ("admin_add_new_topic_record", chosen, settings))
    return chosen


def change_topic(
    admin: AdminApi, name: str, partitions: int | None, stores: int | None, retention: str | None
) -> list[int]:
    """Change what is not None on all brokers of the topic, and send it to them. Return the ids of the brokers."""
    parameters = {"partitions": "numPartitions", "stores": "numTopicStores", "retention": "deletePolicy"}
    given = {"partitions": partitions, "stores": stores, "retention": retention}
    wanted = {key: value for key, value in given.items() if value is not None}
    if not wanted:
        raise ConfigError("there is nothing to change: give --partitions, --stores or --retention")
    found = existing(admin, name)
    for one in found:
        if (partitions or one["partitions"]) < one["partitions"] or (stores or one["stores"]) < one["stores"]:
            raise ConfigError(
                f"topic {name} has {one['stores']} stores of {one['partitions']} partitions on broker "
                f"{one['broker_id']}; expected at least these numbers, because messages of a removed partition could "
                "not be read"
            )
    others = _ids(one for one in found if wanted.items() - one.items())  # a change of nothing is refused
    changes = {parameters[key]: value for key, value in wanted.items()}
    _change(admin, "changing", name, _ids(found), ("admin_modify_topic_info", others, changes))
    return _ids(found)


def is_ready(admin: AdminApi, name: str) -> bool:
    found = deployments(admin, name)
    return bool(found) and all(one["is_ready"] for one in found)


def _have_loaded(admin: AdminApi, brokers: Iterable[int]) -> bool:
    """Return True if no broker of these has yet to load its configuration, as far as the masters say."""
    status = admin.brokers()
    return all(str(status[one].get("isConfChanged")).lower() != "true" for one in brokers if one in status)


def remove_topic(admin: AdminApi, name: str) -> None:
    """Close the topic, delete it on all brokers, and send that to them."""
    found = existing(admin, name)
    accepting = [one for one in found if one["accepts_publish"] or one["accepts_subscribe"]]
    _change(
        admin,
        "deleting",
        name,
        _ids(found),
        ("admin_modify_topic_info", _ids(accepting), {"acceptPublish": False, "acceptSubscribe": False}),
        ("admin_delete_topic_info", _ids(one for one in found if one["state"] == "normal"), {}),
        ("admin_remove_topic_info", _ids(one for one in found if one["state"] != "removed"), {}),
    )


@app.command("list")
@connected(admin=True)
def list_topics(connection: Connection, as_json: Json = False) -> None:
    """List all topics of the cluster."""
    rows = []
    for topic, several in groupby(deployments(connection.admin), itemgetter("topic")):
        on = list(several)
        rows.append(
            {
                "topic": topic,
                "brokers": [one["broker_id"] for one in on],
                "partitions": sum(one["partitions"] * one["stores"] for one in on),
                "is_ready": all(one["is_ready"] for one in on),
            }
        )
    columns = {"topic": "topic", "brokers": "brokers", "partitions": "partitions", "ready": "is_ready"}
    print_rows(rows, columns, as_json=as_json, spare=("brokers",))


@app.command("describe")
@connected(admin=True)
def describe_topic(connection: Connection, topic: Topic, as_json: Json = False) -> None:
    """Show a topic's partitions, settings and state on each broker."""
    columns = {
        "broker": "broker_id", "address": "address", "stores": "stores", "partitions of each": "partitions",
        "publish": "accepts_publish", "subscribe": "accepts_subscribe", "retention": "retention", "ready": "is_ready",
    }  # fmt: skip
    spare = ("subscribe", "publish", "address")
    print_rows(existing(connection.admin, topic), columns, as_json=as_json, spare=spare)


@app.command("create")
@connected(token=True)
def create_topic(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="NUMBER", min=1,
        help="Partitions in each store.")] = 3,
    stores: Annotated[
        int, typer.Option("--stores", metavar="NUMBER", min=1,
        help="Stores on each broker; each is a log with files of its own.")
    ] = 1,
    broker: Annotated[
        list[int] | None,
        typer.Option("--broker", metavar="ID", help="The id of a broker; may be repeated.", show_default="all brokers"),
    ] = None,
    retention: Annotated[str | None, _retention("the brokers' setting")] = None,
    wait: Wait = 120.0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Create a topic, and wait until it can be read and written. Brokers take a few seconds, at times a minute."""
    admin = connection.admin
    brokers = configure_topic(admin, topic, partitions, stores, broker or (), retention)
    _wait(wait, topic, f"topic {topic}", brokers, lambda: is_ready(admin, topic))
    each = partitions * stores
    print_result(
        f"created topic {topic} with {each} partitions on each broker: {joined(brokers)}",
        {"topic": topic, "brokers": brokers, "partitions": each * len(brokers)},
        as_json=as_json,
    )


@app.command("alter")
@connected(token=True)
def alter_topic(
    connection: Connection,
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="NUMBER", min=1,
        help="Partitions in each store.", show_default="unchanged"),
    ] = None,
    stores: Annotated[
        int | None, typer.Option("--stores", metavar="NUMBER", min=1,
        help="Stores on each broker.", show_default="unchanged")
    ] = None,
    retention: Annotated[str | None, _retention("unchanged")] = None,
    wait: Wait = 120.0,
) -> None:  # fmt: skip
    """Give a topic more partitions or stores, or another retention, on all its brokers; wait until they have it.

    Queries and producers that use the topic go on. Running queries of Spark read new partitions from their beginning.
    While a broker applies the change, it refuses messages for some seconds; producers send them again.
    """
    admin = connection.admin
    brokers = change_topic(admin, topic, partitions, stores, retention)

    def is_done() -> bool:  # the rows of a topic do not say which retention a broker has applied
        return is_ready(admin, topic) and (retention is None or _have_loaded(admin, brokers))

    _wait(wait, topic, f"the change of topic {topic}", brokers, is_done)
    print_result(f"changed topic {topic} on broker {joined(brokers)}")


@app.command("delete")
@connected(token=True)
def delete_topic(connection: Connection, topic: Topic, wait: Wait = 120.0, yes: Yes = False) -> None:
    """Delete a topic with all its messages on all brokers.

    Brokers remove the files later, and release 1.2.0 on Java 17 keeps them: a topic that gets the same name has the old
    messages then.
    """
    admin = connection.admin
    brokers = _ids(existing(admin, topic))
    if not yes:
        confirm(f"Delete topic {topic} and all its messages on broker {joined(brokers)}?")
    remove_topic(admin, topic)
    _wait(wait, topic, f"the end of topic {topic}", brokers, lambda: not deployments(admin, topic))
    print_result(f"deleted topic {topic}")


def _wait(seconds: float, topic: str, what: str, brokers: Iterable[int], is_done: Callable[[], bool]) -> None:
    """Ask until the brokers have applied a change, unless `seconds` is 0; raise `AdminError` if they do not."""
    if not seconds:
        return
    deadline = time.monotonic() + seconds
    with _half_done(topic), progress(f"waiting for broker {joined(brokers)}") as advance:
        while not is_done():
            if time.monotonic() > deadline:
                raise AdminError(
                    f"{what} is configured, but the brokers did not apply it within {seconds:g} s. Check that they run"
                )
            advance(1)
            time.sleep(_PAUSE)
