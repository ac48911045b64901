# SPDX-License-Identifier: Apache-2.0
"""Partition assignment by the master: shares of a group's members, and the orders of a rebalance. It has no clock and
no messages.

A rebalance compares the share of each member with the partitions it reported last. All members must have released the
partitions that they were ordered to release, before a member of the group is ordered to take one.

wire: DefaultLoadBalancer, ConsumerEventManager, EventType.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.java import hash_order

Held = Mapping[str, Mapping[str, Collection[Partition]]]
"""Partitions by client id and topic. A client that never reported is missing."""

Shares = dict[str, dict[str, list[Partition]]]
"""The partitions that each client should have, by topic."""


def first_shares(client_ids: Collection[str], partitions: Mapping[str, Sequence[Partition]]) -> Shares:
    """Return the shares of a master's first rebalance: ranges of each topic's partitions, of nearly equal length."""
    ordered = sorted(client_ids)
    shares: Shares = {client_id: {} for client_id in ordered}
    for topic, found in partitions.items():
        each, more = divmod(len(found), len(ordered))
        rest = iter(sorted(found))
        for number, client_id in enumerate(ordered):
            shares[client_id][topic] = [next(rest) for _ in range(each + (number < more))]
    return shares


def next_shares(
    client_ids: Collection[str], held: Held, partitions: Collection[Partition], choose: Callable[[int], int]
) -> Shares:
    """Return the shares of a later rebalance.

    Partitions without an owner go to random members; `choose` returns a number below its argument. Only when every
    partition has an owner, members with more than their part give some to others.
    """
    order = hash_order(client_ids)
    free = dict.fromkeys(hash_order(partitions))
    shares: Shares = {client_id: {} for client_id in order}
    for client_id in order:
        for topic, kept in held.get(client_id, {}).items():
            shares[client_id][topic] = [one for one in hash_order(kept) if one in free]
            for one in shares[client_id][topic]:
                del free[one]
    if not free:
        _level(shares, len(partitions))
        return shares
    known = [client_id for client_id in order if client_id in held]
    if known:
        for one in free:
            shares[known[choose(len(known))]].setdefault(one.topic, []).append(one)
    return shares


def bound_shares(booked: Mapping[str, str], partitions: Collection[Partition]) -> Shares:
    """Return the shares of bound consumption: a partition with given offsets goes to the member whose offset wins."""
    shares: Shares = {}
    for one in hash_order(partitions):
        if str(one) in booked:
            shares.setdefault(booked[str(one)], {}).setdefault(one.topic, []).append(one)
    return shares


def _level(shares: Shares, count: int) -> None:
    """Move partitions from members with more than their part to members with none, or fewer than the smallest part.

    A partition that no member may take stays free until the next rebalance.
    """
    least, more = divmod(count, len(shares))
    most = least + (more > 0)
    moved: deque[Partition] = deque()
    takers: dict[str, int] = {}
    for client_id, topics in shares.items():
        load = sum(map(len, topics.values()))
        if load < most:
            if load == 0 or load < least:
                takers[client_id] = most - load
            continue
        surplus = load - most if more > 0 else load - least
        more -= 1
        for topic in hash_order(topics):
            taken = topics[topic][:surplus]
            topics[topic] = topics[topic][surplus:]
            moved.extend(taken)
            surplus -= len(taken)
    for client_id in hash_order(takers):
        for _ in range(min(takers[client_id], len(moved))):
            one = moved.popleft()
            shares[client_id].setdefault(one.topic, []).append(one)
    for client_id in hash_order(takers)[: len(moved)]:
        one = moved.popleft()
        shares[client_id].setdefault(one.topic, []).append(one)


def change(
    share: Mapping[str, Sequence[Partition]], held: Mapping[str, Collection[Partition]], disabled: Collection[str]
) -> tuple[list[Partition], list[Partition]]:
    """Return the partitions that a member with `held` must release, and those that it must take, to reach its share.

    Topics outside the share stay; `disabled` topics are released.
    """
    removed: list[Partition] = []
    added: list[Partition] = []
    for topic in hash_order(share):
        had = held.get(topic, ())
        wanted = () if topic in disabled else share[topic]
        removed += [one for one in hash_order(had) if one not in wanted]
        added += [one for one in wanted if one not in had]
    return removed, added


class EventType(IntEnum):
    CONNECT = 1  # after a DISCONNECT of the same round
    DISCONNECT = 2  # before a CONNECT of the same round
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


@dataclass
class Order:
    """An instruction for one member. The master sends it once and keeps it until the member reports."""

    rebalance_id: int
    op_type: EventType
    subscribe_info: list[str]
    is_sent: bool = False


class Orders:
    """The orders that members have not reported as done yet."""

    def __init__(self) -> None:
        self._disconnects: dict[str, deque[Order]] = {}
        self._connects: dict[str, deque[Order]] = {}

    @property
    def client_ids(self) -> list[str]:
        """The clients with orders."""
        return list({**self._disconnects, **self._connects})

    def give(self, client_id: str, rebalance_id: int, removed: list[str], added: list[str]) -> None:
        if removed:
            op_type = EventType.DISCONNECT if added else EventType.ONLY_DISCONNECT
            self._disconnects.setdefault(client_id, deque()).append(Order(rebalance_id, op_type, removed))
        if added:
            op_type = EventType.CONNECT if removed else EventType.ONLY_CONNECT
            self._connects.setdefault(client_id, deque()).append(Order(rebalance_id, op_type, added))

    def next(self, client_id: str, group: Collection[str]) -> Order | None:
        """Return the member's order that is due in its `group`, sent or not."""
        queue = self._due(group).get(client_id)
        return queue[0] if queue else None

    def report(self, client_id: str, group: Collection[str]) -> None:
        """Remove the member's due order, whichever one it has reported."""
        due = self._due(group)
        if queue := due.get(client_id):
            queue.popleft()
            if not queue:
                del due[client_id]

    def drop(self, client_id: str) -> None:
        self._disconnects.pop(client_id, None)
        self._connects.pop(client_id, None)

    def clear(self) -> None:
        self._disconnects.clear()
        self._connects.clear()

    def _due(self, group: Collection[str]) -> dict[str, deque[Order]]:
        """Return the connects of a group, or the disconnects as long as any member still has one."""
        return self._connects if self._disconnects.keys().isdisjoint(group) else self._disconnects
