# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.testing.broker.stores import (
    ALL,
    CONFIG,
    FILES,
    FLUSHING,
    ROOMY,
    append,
    drain,
    ids,
    make_store,
    read,
)
from tests.testing.master.calls import StoppedClock
from tubemq_spark.protocol.constants import STORE_DATA_HEADER_LEN as DATA_HEADER
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.broker.store import ENTRY_BYTES, NO_CODE, UNIT, Store
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.java import filter_code


@pytest.mark.parametrize(
    ("policy", "in_memory", "flushed"),
    [
        (FILES, (404, "current offset is exceed max file offset"), (200, "OK!")),
        (FLUSHING, (404, "Can't found Message by index in cache"), (200, "OK!")),
        (ALL, (200, "OK!"), (200, "OK!")),
    ],
)
def test_the_read_policy_limits_what_a_reader_sees(
    policy: int, in_memory: tuple[int, str], flushed: tuple[int, str]
) -> None:
    store = make_store()
    append(store, 3)
    found = read(store, policy=policy)
    assert (found.code, found.text) == in_memory
    assert found.advance == (3 * UNIT if found.code == ErrCode.SUCCESS else 0)
    store.flush()
    found = read(store, policy=policy)
    assert (found.code, found.text) == flushed


def test_a_reader_of_files_gets_their_end() -> None:
    store = make_store()
    append(store, 3)
    store.flush()
    append(store, 2)
    assert [read(store, policy=policy).max_offset for policy in (FILES, FLUSHING, ALL)] == [84, 140, 140]


def test_a_read_of_files_ends_half_way_and_one_of_memory_does_not() -> None:
    store = make_store()
    append(store, 10)
    store.flush()
    append(store, 7)
    advances, position = [], 0
    while position < store.max_offset:
        advances.append(read(store, position).advance // UNIT)
        position += advances[-1] * UNIT
    assert advances == [5, 3, 1, 1, 7]


@pytest.mark.parametrize(
    ("partitions", "in_files", "filtered", "in_memory"),
    [(1, 4000, 12_000, 6000), (3, 4000, 12_000, 6000), (9, 4500, 13_500, 9000), (20, 6750, 20_250, 10_000)],
)
def test_how_many_entries_one_read_scans(partitions: int, in_files: int, filtered: int, in_memory: int) -> None:
    code = filter_code("a")
    store = make_store(partitions, config=ROOMY)
    append(store, 45_000, code=code)
    assert read(store).advance == in_memory * UNIT
    store.flush()
    assert read(store).advance == in_files * UNIT
    assert read(store, codes=[code]).advance == filtered * UNIT


def test_more_partitions_lengthen_the_scans_of_a_store() -> None:
    store = make_store(1, config=ROOMY)
    append(store, 30_000)
    store.flush()
    store.set_layout(TopicLayout(20, 1))
    assert read(store).advance == 6750 * UNIT


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (100, 1), (101, 2), (300, 3), (301, 4)])
def test_a_read_of_files_ends_with_the_message_that_reaches_the_size_limit(limit: int, count: int) -> None:
    store = make_store()
    append(store, 40, payload=bytes(100 - DATA_HEADER))
    store.flush()
    found = read(store, size_limit=limit)
    assert (ids(found), found.advance, found.size) == (list(range(count)), count * UNIT, count * 100)
    assert found.data_position == count * 100


def test_a_read_of_memory_ignores_the_readers_size_limit() -> None:
    store = make_store(config=replace(CONFIG, transfer_size=1000))
    append(store, 40, payload=bytes(100 - DATA_HEADER))
    assert len(read(store, size_limit=1).chunks) == 10


def test_a_matching_type_in_another_partition_gives_an_empty_success() -> None:
    store = make_store(partitions=2)
    append(store, partition=1, code=7)
    found = read(store, codes=[7])
    assert (found.code, found.chunks, found.advance) == (200, [], UNIT)
    assert read(store, codes=[8]).text == "Can't found Message by index!"


def test_a_filtered_reader_near_the_end_gets_the_slow_flag() -> None:
    store = make_store()
    append(store, 10, code=7)
    store.flush()
    assert read(store, codes=[7]).slow
    assert not read(store).slow


@pytest.mark.parametrize(
    ("payload", "readable"),
    [
        (b"", False),
        (b"abc", False),
        (struct.pack(">i", 5) + b"four", False),
        (struct.pack(">i", 4) + b"four", True),
        (struct.pack(">i", 0), True),
        (struct.pack(">i", -1) + b"x", True),
    ],
)
@pytest.mark.parametrize("flushed", [False, True])
def test_impossible_attributes_hide_a_message(payload: bytes, readable: bool, flushed: bool) -> None:
    store = make_store()
    store.append(0, NO_CODE, 1, 0, 1, payload)
    store.append(0, NO_CODE, 2, 0, 0, payload)  # no attributes are announced
    if flushed:
        store.flush()
    assert store.max_offset == 2 * UNIT
    assert drain(store) == ([1, 2] if readable else [2])


@pytest.mark.parametrize(
    "config", [replace(CONFIG, mem_cache_msg_count=4), replace(CONFIG, mem_cache_msg_size=5 * (DATA_HEADER + 1) - 1)]
)
def test_a_full_block_is_flushed(config: ServerConfig) -> None:
    store = make_store(config=config)
    append(store, 4)
    assert read(store, policy=FLUSHING).code == ErrCode.NOT_FOUND
    append(store)
    assert read(store, policy=FLUSHING).code == ErrCode.SUCCESS
    assert store.committed_offset == 0  # written; readers with policy 2 see it


def test_timers_flush_and_commit_a_block() -> None:
    clock = StoppedClock()
    store = make_store(clock=clock)
    append(store, 3)
    clock.advance(15)
    store.tick()
    assert read(store, policy=FILES).code == ErrCode.NOT_FOUND
    clock.advance(10)
    store.tick()
    assert store.committed_offset == 3 * UNIT


def test_many_messages_are_committed_with_their_block() -> None:
    store = make_store(config=replace(CONFIG, mem_cache_msg_count=1000))
    append(store, 1001)
    assert store.committed_offset == 1000 * UNIT


def test_a_crash_keeps_flushed_messages() -> None:
    store = make_store(config=replace(CONFIG, mem_cache_msg_count=4))
    append(store, 6)
    store.crash()
    assert drain(store, policy=FILES) == [0, 1, 2, 3]


def test_a_read_below_the_minimum_starts_at_the_minimum() -> None:
    store = make_store()
    append(store, 10)
    store.keep(3)
    assert ids(read(store, 0)) == [7, 8]


def test_a_full_segment_starts_the_next_one() -> None:
    store = make_store(config=replace(CONFIG, mem_cache_msg_count=3, max_index_segment_entries=5))
    append(store, 20)
    assert store.segments == [0, 6 * UNIT, 12 * UNIT, 18 * UNIT]  # blocks of 3 are not divided
    assert read(store, 5 * UNIT).advance == UNIT  # a read does not cross the end of a segment
    assert drain(store) == list(range(20))


MAX_BYTES = 200_000
BLOCK = 10_000


def held_bytes(store: Store) -> int:
    return sum(entry.size + ENTRY_BYTES for _, entry in store.entries())


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_the_memory_of_a_store_is_bounded(size: int) -> None:
    store = make_store(max_bytes=MAX_BYTES, config=replace(CONFIG, mem_cache_msg_size=BLOCK))
    minimum, count = 0, 5 * MAX_BYTES // (DATA_HEADER + ENTRY_BYTES + size)
    for n in range(count):
        append(store, payload=bytes(size), first=n)
        assert store.min_offset >= minimum
        minimum = store.min_offset
        kept = held_bytes(store) if n % 50 == 0 else 0
        assert kept <= MAX_BYTES
    assert held_bytes(store) > MAX_BYTES * 3 // 4
    assert store.max_offset == count * UNIT
    assert drain(store) == list(range(minimum // UNIT, count))


@pytest.mark.parametrize("max_bytes", [1000, 20_000, MAX_BYTES])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_a_bound_below_the_block_size_holds(max_bytes: int, size: int) -> None:
    store = make_store(max_bytes=max_bytes)
    for n in range(2000):
        append(store, payload=bytes(size), first=n)
        if n % 50 == 0:
            assert held_bytes(store) <= max_bytes
    minimum = store.min_offset // UNIT
    assert 0 < minimum < 2000
    assert held_bytes(store) > max_bytes * 3 // 4 - (DATA_HEADER + ENTRY_BYTES + size)
    assert drain(store) == list(range(minimum, 2000))


def test_a_message_above_the_bound_stays_until_the_next_one() -> None:
    store = make_store(max_bytes=1000)
    append(store, 3, payload=bytes(5000))
    assert drain(store) == [2]


def test_a_large_bound_does_not_shorten_blocks() -> None:
    store = make_store(max_bytes=256 * 1024 * 1024)
    append(store, CONFIG.mem_cache_msg_count, payload=bytes(200))
    assert read(store, policy=FLUSHING).code == ErrCode.NOT_FOUND


@pytest.mark.parametrize("flushed", [False, True])
def test_a_lowered_bound_applies_at_once(flushed: bool) -> None:
    store = make_store(max_bytes=MAX_BYTES)
    append(store, 900)
    if flushed:
        store.flush()
    assert store.min_offset == 0
    store.set_layout(TopicLayout(1, 4))
    assert held_bytes(store) <= MAX_BYTES // 4
    assert store.max_offset == 900 * UNIT
    append(store, 900, first=900)
    assert held_bytes(store) <= MAX_BYTES // 4
    store.set_layout(TopicLayout(1, 1))
    append(store, 3000, first=1800)
    assert MAX_BYTES * 3 // 4 < held_bytes(store) <= MAX_BYTES


def test_a_topic_with_more_stores_divides_its_memory_again() -> None:
    with EmbeddedTubeMQ(topics={"demo": 1}, max_bytes=50_000) as tubemq:
        for _ in range(300):
            tubemq.send("demo", b"x", partition=0)
        before = len(tubemq.messages("demo"))
        tubemq.create_topic("demo", 1, stores=2)
        after = len(tubemq.messages("demo"))
    assert after * (DATA_HEADER + ENTRY_BYTES + 1) <= 25_000 < before * (DATA_HEADER + ENTRY_BYTES + 1)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_reader_passes_over_entries_whose_data_has_gone(partitions: int) -> None:
    """Nothing tells it: the begin of the store stays, and its cursor moves on."""
    store = make_store(partitions)
    for number in range(10):
        append(store, partition=number % partitions, first=number)
    store.flush()
    append(store, 2, first=10)
    store.keep(3, data_only=True)
    assert (store.min_offset, store.data_offset) == (0, 9 * UNIT)
    assert drain(store) == [number for number in (9, 10, 11) if number > 9 or number % partitions == 0]
    found = read(store)
    assert (found.code, found.advance, ids(found), found.data_position) == (ErrCode.SUCCESS, 5 * UNIT, [], -2)
    assert read(store, policy=FILES, position=5 * UNIT).max_offset == 10 * UNIT, "the tail is in memory as before"
    store.keep(5)
    assert (store.min_offset, store.data_offset) == (7 * UNIT, 9 * UNIT)
    store.keep(1)
    assert (store.min_offset, store.data_offset) == (11 * UNIT, 11 * UNIT)


def test_data_in_memory_is_flushed_before_retention_removes_it() -> None:
    store = make_store()
    append(store, 5)
    store.keep(2, data_only=True)
    assert (store.committed_offset, store.data_offset) == (5 * UNIT, 3 * UNIT)
    store.crash()
    assert drain(store) == [3, 4]
