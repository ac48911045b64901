# SPDX-License-Identifier: Apache-2.0
"""Topics through the master's HTTP API: list, create and delete.

A change is configuration at first. `admin_reload_broker_configure` sends it to the brokers, which apply it within
seconds (wire: WebAdminTopicDeployHandler, WebBrokerConfHandler).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tubemq_spark.cli.admin import AdminApi, AdminError, check_rows, joined, rows_of
from tubemq_spark.errors import ConfigError

_INTERNAL = "__"  # the beginning of the names of the brokers' own topics
_RETENTION = re.compile(r"delete,([0-9]{1,9})([smh]?)")  # wire: validDeletePolicyParameter in WebParameterUtils
_SECONDS = {"s": 1, "m": 60, "h": 3600, "": 3600}
_APPLIED = ("acceptPublish", "acceptSubscribe", "numPartitions", "numTopicStores")
_MAX_RETENTION = 168 * 3600  # seconds (wire: DataStoreUtils.MAX_FILE_VALID_DURATION)


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
    answer = admin.query("admin_query_topic_info", **({} if topic is None else {"topicName": topic}))
    found = [row for one in rows_of(answer) for row in one["topicInfo"]]
    return sorted(
        (_deployment(row) for row in found if topic is not None or not row["topicName"].startswith(_INTERNAL)),
        key=lambda one: (one.topic, one.broker_id),
    )


def _deployment(row: dict[str, Any]) -> Deployment:
    run = row["runInfo"]
    return Deployment(
        topic=row["topicName"],
        broker_id=row["brokerId"],
        address=f"{row['brokerIp']}:{row['brokerPort']}",
        partitions=row["numPartitions"],
        stores=row["numTopicStores"],
        accepts_publish=row["acceptPublish"],
        accepts_subscribe=row["acceptSubscribe"],
        retention=row["deletePolicy"],
        is_ready=all(row[name] == run.get(name) for name in _APPLIED),
    )


def create_topic(
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
    reload(admin, chosen)
    return chosen


def delete_topic(admin: AdminApi, name: str) -> list[int]:
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
    reload(admin, chosen)
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


def reload(admin: AdminApi, brokers: Sequence[int]) -> None:
    check_rows(admin.change("admin_reload_broker_configure", brokerId=joined(brokers)), "sending the change to brokers")


def is_ready(admin: AdminApi, name: str) -> bool:
    found = deployments(admin, name)
    return bool(found) and all(one.is_ready for one in found)
