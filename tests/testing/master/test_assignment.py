# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.master.assignment import Orders, Shares, first_shares, next_shares

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


def test_nobody_is_dealt_anything_at_random_before_it_reported() -> None:
    found = [Partition(1, "t", 0), Partition(1, "t", 1)]
    shares = flat(next_shares(["a", "b"], {"b": {}}, found, lambda count: 0))
    assert {client: sorted(has) for client, has in shares.items()} == {"a": [], "b": found}
    assert flat(next_shares(["a"], {}, found, lambda count: 0)) == {"a": []}


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


def test_orders_of_who_gives_up_and_takes() -> None:
    orders = Orders()
    orders.give("a", 1, ["x"], ["y"])
    told = []
    while (order := orders.next("a", ["a"])) is not None:
        told.append((order.op_type, order.subscribe_info))
        orders.report("a", ["a"])
    assert told == [(2, ["x"]), (1, ["y"])]
