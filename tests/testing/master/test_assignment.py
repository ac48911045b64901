# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.master.assignment import (
    Change,
    EventType,
    Orders,
    Shares,
    bound_shares,
    change,
    first_shares,
    next_shares,
)

clients = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1, max_size=6)
partitions = st.lists(
    st.builds(Partition, st.integers(1, 3), st.sampled_from("tu"), st.integers(0, 9)), unique=True, max_size=40
)


def flat(shares: Shares) -> dict[str, list[Partition]]:
    return {client: [one for found in topics.values() for one in found] for client, topics in shares.items()}


def by_topic(found: list[Partition]) -> dict[str, list[Partition]]:
    topics: dict[str, list[Partition]] = {}
    for one in found:
        topics.setdefault(one.topic, []).append(one)
    return topics


def settle(
    client_ids: list[str], found: list[Partition], held: Mapping[str, list[Partition]], seed: int = 0
) -> tuple[dict[str, list[Partition]], int]:
    """Rebalance until nothing changes; return what members hold and the number of rebalances."""
    choose = random.Random(seed).randrange
    current = {client: list(held.get(client, ())) for client in client_ids}
    for rounds in range(200):
        shares = flat(next_shares(client_ids, {c: by_topic(has) for c, has in current.items()}, found, choose))
        if {c: set(has) for c, has in shares.items()} == {c: set(has) for c, has in current.items()}:
            return current, rounds
        current = shares
    raise AssertionError(f"no end: {current}")


def loads(current: Mapping[str, list[Partition]]) -> list[int]:
    return sorted(map(len, current.values()))


# -- shares


@given(clients, partitions, st.integers(0, 9))
def test_in_the_end_every_partition_has_one_owner_and_shares_differ_by_one(
    client_ids: list[str], found: list[Partition], seed: int
) -> None:
    current, _ = settle(client_ids, found, {}, seed)
    assert sorted(one for has in current.values() for one in has) == sorted(found)
    assert max(loads(current)) - min(loads(current)) <= 1


@given(clients, partitions, st.data())
def test_no_partition_has_two_owners_after_any_round(
    client_ids: list[str], found: list[Partition], data: st.DataObject
) -> None:
    owners = {one: data.draw(st.sampled_from([*client_ids, None])) for one in found}
    gone = [Partition(9, "t", number) for number in range(3)]
    held = {client: by_topic([*gone, *(one for one in found if owners[one] == client)]) for client in client_ids}
    shares = flat(next_shares(client_ids, held, found, random.Random(0).randrange))
    dealt = Counter(one for has in shares.values() for one in has)
    assert set(dealt) <= set(found)
    assert all(count == 1 for count in dealt.values())
    if None in owners.values():  # then no member must release a partition
        assert set(dealt) == set(found)
        assert all(owners[one] in (None, client) for client, has in shares.items() for one in has)


@given(clients, partitions, st.integers(0, 9))
def test_who_joins_takes_its_part_and_moves_no_more(client_ids: list[str], found: list[Partition], seed: int) -> None:
    before, _ = settle(client_ids, found, {}, seed)
    after, rounds = settle([*client_ids, "new"], found, before, seed)
    moved = [one for client in client_ids for one in before[client] if one not in after[client]]
    assert len(moved) == len(after["new"])
    assert len(found) // (len(client_ids) + 1) <= len(after["new"])
    assert max(loads(after)) - min(loads(after)) <= 1
    assert rounds <= 1


@given(clients, partitions, st.integers(0, 9))
def test_who_leaves_leaves_its_part_and_others_keep_theirs(
    client_ids: list[str], found: list[Partition], seed: int
) -> None:
    before, _ = settle([*client_ids, "old"], found, {}, seed)
    held = {client: by_topic(before[client]) for client in client_ids}
    shares = flat(next_shares(client_ids, held, found, random.Random(seed).randrange))
    assert all(set(before[client]) <= set(shares[client]) for client in client_ids)
    assert sorted(one for has in shares.values() for one in has) == sorted(found)


@given(clients, partitions)
def test_the_first_round_deals_each_topic_in_runs(client_ids: list[str], found: list[Partition]) -> None:
    topics = by_topic(found)
    shares = first_shares(client_ids, topics)
    for topic, all_of_it in topics.items():
        dealt = [one for client in sorted(client_ids) for one in shares[client][topic]]
        assert dealt == sorted(all_of_it)
        counts = [len(shares[client][topic]) for client in sorted(client_ids)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1


def test_nobody_is_dealt_anything_at_random_before_it_reported() -> None:
    found = [Partition(1, "t", 0), Partition(1, "t", 1)]
    shares = flat(next_shares(["a", "b"], {"b": {}}, found, lambda count: 0))
    assert {client: sorted(has) for client, has in shares.items()} == {"a": [], "b": found}
    assert flat(next_shares(["a"], {}, found, lambda count: 0)) == {"a": []}


def test_bound_partitions_go_to_who_gave_their_offsets() -> None:
    found = [Partition(1, "t", number) for number in range(3)]
    shares = bound_shares({"1:t:0": "a", "1:t:2": "b", "9:t:9": "a"}, found)
    assert flat(shares) == {"a": [found[0]], "b": [found[2]]}


T = [Partition(1, "t", number) for number in range(3)]


@pytest.mark.parametrize(
    ("share", "held", "disabled", "expected"),
    [
        ({"t": T}, {}, [], Change([], T)),
        ({"t": T}, {"t": T}, [], Change([], [])),
        ({"t": [T[0]]}, {"t": T[:2]}, [], Change([T[1]], [])),
        ({"t": [T[0], T[2]]}, {"t": T[:2]}, [], Change([T[1]], [T[2]])),
        ({"t": T}, {"t": T[:1]}, ["t"], Change([T[0]], [])),
        ({}, {"t": T}, [], Change([], [])),
    ],
)
def test_changes(
    share: dict[str, list[Partition]], held: dict[str, list[Partition]], disabled: list[str], expected: Change
) -> None:
    assert change(share, held, disabled) == expected


# -- orders


def test_a_group_disconnects_before_any_of_it_connects() -> None:
    orders = Orders()
    group = ["a", "b"]
    orders.give("a", 7, ["x"], [])
    orders.give("b", 7, [], ["x"])
    assert orders.client_ids == ["a", "b"]
    assert orders.next("b", group) is None
    first = orders.next("a", group)
    assert first is not None
    assert (first.rebalance_id, first.op_type, first.subscribe_info) == (7, EventType.ONLY_DISCONNECT, ["x"])
    orders.report("b", group)  # it has no due order
    assert orders.next("a", group) is first
    orders.report("a", group)
    second = orders.next("b", group)
    assert second is not None
    assert second.op_type is EventType.ONLY_CONNECT
    orders.report("b", group)
    assert not orders.client_ids


def test_orders_of_who_gives_up_and_takes() -> None:
    orders = Orders()
    orders.give("a", 1, ["x"], ["y"])
    told = []
    while (order := orders.next("a", ["a"])) is not None:
        told.append((order.op_type, order.subscribe_info))
        orders.report("a", ["a"])
    assert told == [(2, ["x"]), (1, ["y"])]


def test_no_orders_for_no_change() -> None:
    orders = Orders()
    orders.give("a", 1, [], [])
    assert not orders.client_ids
