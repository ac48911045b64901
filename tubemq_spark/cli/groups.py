# SPDX-License-Identifier: Apache-2.0
"""Positions of a consumer group as the brokers' HTTP APIs report them. Asking changes nothing.

wire: BrokerAdminServlet. `admin_query_offset` lists the groups that have a record; release 2.1 and later list a new one
after some seconds. `admin_query_broker_all_consumer_info` lists the clients that hold partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tubemq_spark.cli.admin import AdminApi, AdminError, Answer, rows_of
from tubemq_spark.cli.moments import place_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

_NO_RECORD = -2


@dataclass(frozen=True)
class GroupState:
    """A group in one partition. `position` is None without a record; positions are bytes of the index.

    `lag` counts the entries of the store behind the position. Partitions of one store share its entries, so it is the
    most messages that the group can lack.
    """

    partition: Partition
    position: int | None
    end: int
    holder: str | None = None

    @property
    def lag(self) -> int | None:
        return None if self.position is None else max(0, self.end - self.position) // UNIT

    def as_json(self) -> dict[str, object]:
        values = {"position": self.position, "end": self.end, "lag": self.lag, "holder": self.holder}
        return {**place_of(self.partition), **values}


def group_states(admin: AdminApi, group: str, topic: str | None = None) -> list[GroupState]:
    """Return the group's state in each partition of the topics that it has read, or of one topic.

    Raise `AdminError` if no broker knows the group, else as `AdminApi`.
    """
    states: dict[Partition, GroupState] = {}
    for broker_id, status in sorted(admin.brokers().items()):
        if str(status.get("isBrokerOnline")) == "false" and str(status.get("runStatus")) != "running":
            continue
        holders = dict(_holders(broker_id, admin.ask_broker(status, _CONSUMERS, groupName=group)))
        try:
            found = dict(_positions(broker_id, admin.ask_broker(status, "admin_query_offset", groupName=group)))
        except AdminError:  # release 1.2 fails for some groups; the claims tell something at least
            found = {}
        for partition, (holder, position, end) in holders.items():
            known = found.get(partition, GroupState(partition, position, end))
            found[partition] = GroupState(partition, known.position, known.end, holder)
        states |= found
    wanted = {one: state for one, state in states.items() if topic in (None, one.topic)}
    known_topics = {one.topic for one, state in wanted.items() if state.position is not None or state.holder}
    if not known_topics:
        what = "" if topic is None else f" in topic {topic}"
        raise AdminError(
            f"no broker has a position of group {group}{what}. Check the name; a new group appears after some seconds, "
            "and an unused one is dropped after weeks"
        )
    return [state for one, state in sorted(wanted.items()) if one.topic in known_topics]


_CONSUMERS = "admin_query_broker_all_consumer_info"


def _positions(broker_id: int, answer: Answer) -> Iterator[tuple[Partition, GroupState]]:
    for info in (info for row in rows_of(answer) for info in row["subInfo"]):
        for at in info["offsets"]:
            partition = Partition(broker_id, info["topicName"], at["partitionId"])
            position = None if at["curOffset"] == _NO_RECORD else int(at["curOffset"])
            yield partition, GroupState(partition, position, int(at["offsetMax"]))


def _holders(broker_id: int, answer: Answer) -> Iterator[tuple[Partition, tuple[str, int | None, int]]]:
    for row in rows_of(answer):
        partition = Partition(broker_id, row["topicName"], row["partitionId"])
        position: Any = row.get("zkOffset")
        yield partition, (row["consumerId"], position, int(row.get("maxOffset", 0)))


def total_lag(states: Iterable[GroupState]) -> int:
    """Return how many entries the group has not read; those of a store that several partitions share count once."""
    stores: defaultdict[object, int] = defaultdict(int)
    for state in states:
        stores[state.partition.store] = max(stores[state.partition.store], state.lag or 0)
    return sum(stores.values())
