# SPDX-License-Identifier: Apache-2.0
"""The partition of a key: the same in every language, and stable when partitions are added or removed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.key_partitioner import SLOTS, KeyMap, key_map, owner_of, slot_of
from tubemq_spark.protocol.metadata import Partition

EIGHT = [
    Partition(broker_id, "demo", partition_id)
    for broker_id, partition_ids in ((1, (0, 1, 2)), (2, (0, 1, 2)), (7, (10_000, 10_001)))
    for partition_id in partition_ids
]

# Computed in Java by java.util.zip.CRC32 and java.security.MessageDigest's SHA-256, the highest digest found with
# Arrays.compareUnsigned, and once more in JavaScript by Node's zlib.crc32, crypto and Buffer.compare.
GOLDEN = [
    ("", 0, "2:1"),
    ("a", 3651, "7:10001"),
    ("key", 2985, "1:0"),
    ("Zürich", 2366, "2:2"),
    ("user-42", 2163, "2:1"),
    ("\x00\x01", 617, "2:1"),
    ("0123456789" * 10, 3004, "1:1"),
    ("11", 1399, "2:2"),
    ("12", 1229, "2:1"),
    ("13", 1115, "1:2"),
    ("14", 504, "1:1"),
    ("15", 366, "7:10000"),
]

keys = st.lists(st.binary(max_size=40), max_size=60)
topics = st.lists(
    st.builds(Partition, st.integers(1, 30), st.just("demo"), st.integers(0, 40_000)),
    min_size=1,
    max_size=24,
    unique=True,
)


@pytest.mark.parametrize(("key", "slot", "owner"), GOLDEN)
def test_other_languages_find_the_same_partition(key: str, slot: int, owner: str) -> None:
    assert slot_of(key.encode()) == slot
    found = KeyMap(EIGHT).partition(key.encode())
    assert found == owner_of(slot, EIGHT)
    assert f"{found.broker_id}:{found.partition_id}" == owner


@given(keys, topics, st.randoms())
def test_the_order_of_partitions_does_not_matter(
    keys: list[bytes], partitions: list[Partition], dice: random.Random
) -> None:
    shuffled = list(partitions)
    dice.shuffle(shuffled)
    one, other = KeyMap(partitions), key_map(tuple(shuffled))
    assert [one.partition(key) for key in keys] == [other.partition(key) for key in reversed(keys)][::-1]


@given(keys, topics, st.data())
def test_a_removed_partition_moves_only_its_own_keys(
    keys: list[bytes], partitions: list[Partition], data: st.DataObject
) -> None:
    """And a new partition takes keys from all others, and moves no other key."""
    gone = data.draw(st.sampled_from(partitions))
    before, after = KeyMap(partitions), KeyMap([one for one in partitions if one != gone] or [gone])
    for key in keys:
        assert before.partition(key) in (after.partition(key), gone)


@given(st.binary(), topics)
def test_the_topic_does_not_matter(key: bytes, partitions: list[Partition]) -> None:
    """So two topics with the same partitions keep equal keys in partitions of the same number."""
    elsewhere = [one._replace(topic="other") for one in partitions]
    assert KeyMap(elsewhere).partition(key) == KeyMap(partitions).partition(key)._replace(topic="other")


@pytest.mark.parametrize("brokers", [1, 4])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_shares_are_nearly_even(brokers: int, count: int) -> None:
    partitions = [Partition(broker, "demo", number) for broker in range(1, brokers + 1) for number in range(count)]
    shares = Counter(owner_of(slot, partitions) for slot in range(SLOTS))
    even = SLOTS / len(partitions)
    assert set(shares) == set(partitions)
    assert max(abs(share - even) for share in shares.values()) < 4 * even**0.5  # four standard deviations
