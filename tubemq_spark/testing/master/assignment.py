"""How a master deals a group's partitions out to its members, and the orders that come of it; no time, no messages.

A round compares what each member should have with what it last reported. A member that was told to give something up
must have done so before any member of its group is told to take something.

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
"""Partitions by client id and topic. A client that never reported is not in it."""

Shares = dict[str, dict[str, list[Partition]]]
"""What each client should have, by topic."""


def first_shares(client_ids: Collection[str], partitions: Mapping[str, Sequence[Partition]]) -> Shares:
    """The first round of a master: each topic's partitions in order, cut into runs of nearly equal length."""
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
    """A later round. While there are partitions that nobody has, it deals them to members at random: `choose` gives a
    number below its argument. Only when there are none it takes from who has more than others."""
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
    """A round of bound consumption: partitions whose offsets members gave, to the members whose offsets count."""
    shares: Shares = {}
    for one in hash_order(partitions):
        if str(one) in booked:
            shares.setdefault(booked[str(one)], {}).setdefault(one.topic, []).append(one)
    return shares


def _level(shares: Shares, count: int) -> None:
    """Takes from members with more than their part and gives to those with nothing, or less than the smallest part.

    What nobody may take is left over, for the next round to deal out.
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


@dataclass(frozen=True)
class Change:
    """What one member must give up and take to get from what it has to its share."""

    removed: list[Partition]
    added: list[Partition]


def change(
    share: Mapping[str, Sequence[Partition]], held: Mapping[str, Collection[Partition]], disabled: Collection[str]
) -> Change:
    """Topics that the share does not name stay as they are; nothing of a `disabled` topic is left or taken."""
    removed, added = [], []
    for topic in hash_order(share):
        had = held.get(topic, ())
        wanted = () if topic in disabled else share[topic]
        removed += [one for one in hash_order(had) if one not in wanted]
        added += [one for one in wanted if one not in had]
    return Change(removed, added)


class EventType(IntEnum):
    CONNECT = 1  # after a DISCONNECT of the same round
    DISCONNECT = 2  # before a CONNECT of the same round
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


@dataclass
class Order:
    """What one member is told to do; it is told once, and keeps the order until it reports."""

    rebalance_id: int
    op_type: EventType
    subscribe_info: list[str]
    is_sent: bool = False


class Orders:
    """The orders of all members that are not yet reported as done."""

    def __init__(self) -> None:
        self._disconnects: dict[str, deque[Order]] = {}
        self._connects: dict[str, deque[Order]] = {}

    @property
    def client_ids(self) -> set[str]:
        """Who has any."""
        return {*self._disconnects, *self._connects}

    def give(self, client_id: str, rebalance_id: int, removed: list[str], added: list[str]) -> None:
        if removed:
            op_type = EventType.DISCONNECT if added else EventType.ONLY_DISCONNECT
            self._disconnects.setdefault(client_id, deque()).append(Order(rebalance_id, op_type, removed))
        if added:
            op_type = EventType.CONNECT if removed else EventType.ONLY_CONNECT
            self._connects.setdefault(client_id, deque()).append(Order(rebalance_id, op_type, added))

    def next(self, client_id: str, group: Collection[str]) -> Order | None:
        """The member's order that is due in its `group`, whether it was sent or not."""
        queue = self._due(group).get(client_id)
        return queue[0] if queue else None

    def report(self, client_id: str, group: Collection[str]) -> None:
        """The member has done something: what is due in its group counts as done, whatever it was."""
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
        """No member of a group may connect while another has still to disconnect."""
        return self._connects if self._disconnects.keys().isdisjoint(group) else self._disconnects
