# SPDX-License-Identifier: Apache-2.0
"""Topics of a real cluster: declare them at the master, and check whether they are ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

FLUSH_SOON: Mapping[str, str] = {"memCacheFlushIntvl": "4000", "unflushThreshold": "1", "unflushInterval": "1"}
"""Settings with which messages reach a broker's files as soon as possible: after 14 s, or when a block is full."""

FLUSH_NEVER: Mapping[str, str] = {"memCacheFlushIntvl": "2000000000"}
"""Settings with which messages reach a broker's files only when it stops, or when a block is full."""

_TOPICS_PER_CALL = 50  # a master limits the number


@dataclass(frozen=True)
class TopicSpec:
    """A topic with ``partitions`` in each of ``stores`` stores on each of ``brokers``, on all brokers if None.

    ``settings`` are further parameters of ``admin_add_new_topic_record``, such as ``FLUSH_SOON``. ``max_msg_size_mb``
    is how long a message may be, by default as in the whole cluster.
    """

    partitions: int = 3
    stores: int = 1
    brokers: tuple[int, ...] | None = None
    delete_policy: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    max_msg_size_mb: int | None = None

    def on(self, brokers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids of the brokers with this topic in a cluster of ``brokers``."""
        return brokers if self.brokers is None else self.brokers


class Admin(Protocol):
    """A server's HTTP API, as ``RealTubeMQ.admin``."""

    def __call__(self, **params: object) -> dict[str, Any]: ...


def declare(master: Admin, topics: Mapping[str, TopicSpec], brokers: tuple[int, ...]) -> None:
    """Assign topics to their brokers, equal ones in one call; a broker that already runs needs a reload to see them."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name, spec in topics.items():
        alike[repr(spec)].append(name)
    for names in alike.values():
        spec = topics[names[0]]
        policy = {"deletePolicy": spec.delete_policy} if spec.delete_policy else {}
        for first in range(0, len(names), _TOPICS_PER_CALL):
            master(
                method="admin_add_new_topic_record",
                topicName=",".join(names[first : first + _TOPICS_PER_CALL]),
                brokerId=",".join(map(str, spec.on(brokers))),
                numPartitions=spec.partitions,
                numTopicStores=spec.stores,
                **policy,
                **spec.settings,
            )
    for name, spec in topics.items():
        if spec.max_msg_size_mb is not None:
            set_max_msg_size(master, name, spec.max_msg_size_mb)


def set_max_msg_size(master: Admin, topic: str, megabytes: int) -> None:
    """Set how long a message of the topic may be. Release 1.2 refuses more than the cluster's limit, and keeps it when
    that is lowered afterwards. A broker that already runs needs a reload to see it."""
    master(method="admin_set_cluster_default_setting", maxMsgSizeInMB=megabytes)
    master(method="admin_update_topic_control_info", topicName=topic, maxMsgSizeInMB=megabytes)
    master(method="admin_set_cluster_default_setting", maxMsgSizeInMB=1)


def are_open(master: Admin, topics: Mapping[str, TopicSpec], brokers: Collection[int]) -> bool:
    """Return True if clients may read and write all partitions of ``topics`` on ``brokers``."""
    rows = {row["topicName"]: row["topicInfo"] for row in master(method="admin_query_topic_info")["data"]}
    # A master of release 2.5 that has just started lists no topics yet.
    return topics.keys() <= rows.keys() and all(
        _is_open(row["runInfo"], spec)
        for name, spec in topics.items()
        for row in rows[name]
        if row["brokerId"] in brokers
    )


def are_flushed(broker: Admin, data: Path, topic: str) -> bool:
    """Return True if the index files in a broker's folder ``data`` reach the end of its stores of ``topic``."""
    for row in broker(method="admin_query_broker_all_store_info", topicName=topic)["dataSet"]:
        for store in row["storeInfo"]:
            end = max(partition["maxOffset"] for partition in store["partitionInfo"])
            files = (data / f"{topic}-{store['storeId']}" / "index").glob("*.index")
            if max((int(file.stem) + file.stat().st_size for file in files), default=0) < end:
                return False
    return True


def _is_open(run: Mapping[str, Any], spec: TopicSpec) -> bool:
    """Return True if a broker has opened the topic; ``run`` has only dashes before it registers."""
    return (
        run["acceptPublish"] is True
        and run["acceptSubscribe"] is True
        and (run["numPartitions"], run["numTopicStores"]) == (spec.partitions, spec.stores)
    )
