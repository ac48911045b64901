from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testing.master_bench import StoppedClock
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import filter_code
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.offsets import GroupOffsets, Key
from tubemq_spark.testing.store import DATA_HEADER, NO_CODE, UNIT, Found, Store

CONFIG = ServerConfig()
NO_LIMIT = 1 << 40
ROOMY = replace(CONFIG, mem_cache_msg_count=NO_LIMIT, mem_cache_msg_size=NO_LIMIT, transfer_size=NO_LIMIT)
FILES, FLUSHING, ALL = 1, 2, 3  # read policies


def make_store(
    partitions: int = 1,
    *,
    max_bytes: int = NO_LIMIT,
    config: ServerConfig = CONFIG,
    clock: StoppedClock | None = None,
) -> Store:
    return Store(partitions, max_bytes, config, clock or StoppedClock())


def append(
    store: Store, count: int = 1, *, partition: int = 0, code: int = NO_CODE, payload: bytes = b"x", first: int = 0
) -> list[int]:
    """Positions; message ids count from `first`."""
    return [store.append(partition, code, first + n, 0, 0, payload) for n in range(count)]


def read(
    store: Store,
    position: int = 0,
    *,
    partition: int = 0,
    codes: Sequence[int] | None = None,
    policy: int = ALL,
    size_limit: int = NO_LIMIT,
) -> Found:
    wanted = None if codes is None else frozenset(codes)
    return store.read(position, partition, wanted, policy, size_limit, -2)


def messages(found: Found) -> list[pb.TransferedMessage]:
    reply = pb.GetMessageResponseB2C()
    reply.MergeFromString(b"".join(found.chunks))
    return list(reply.messages)


def ids(found: Found) -> list[int]:
    return [message.messageId for message in messages(found)]


def drain(store: Store, partition: int = 0, policy: int = ALL) -> list[int]:
    position, seen = store.min_offset, []
    while position < store.max_offset:
        found = read(store, position, partition=partition, policy=policy)
        seen += ids(found)
        position += found.advance
    return seen


def test_a_new_store_is_empty() -> None:
    store = make_store()
    assert (store.min_offset, store.committed_offset, store.max_offset, store.max_data_offset) == (0, 0, 0, 0)
    assert (list(store.entries()), store.segments) == ([], [0])


def test_all_partitions_share_the_index() -> None:
    store = make_store(partitions=2)
    positions = [append(store, partition=n % 2, payload=b"12345678")[0] for n in range(4)]
    assert positions == [0, UNIT, 2 * UNIT, 3 * UNIT]
    assert (store.max_offset, store.max_data_offset) == (4 * UNIT, 4 * (DATA_HEADER + 8))


def test_a_message_comes_out_as_it_went_in() -> None:
    store = make_store()
    store.append(0, NO_CODE, 77, 123, 0, b"payload")
    (message,) = messages(read(store))
    assert (message.messageId, message.checkSum, message.flag, message.payLoadData) == (77, 123, 0, b"payload")


@pytest.mark.parametrize(
    ("policy", "in_memory", "flushed"),
    [
        (FILES, (404, "current offset is exceed max file offset"), (200, "OK!")),
        (FLUSHING, (404, "Can't found Message by index in cache"), (200, "OK!")),
        (ALL, (200, "OK!"), (200, "OK!")),
    ],
)
def test_a_policy_says_how_far_a_reader_sees(policy: int, in_memory: tuple[int, str], flushed: tuple[int, str]) -> None:
    store = make_store()
    append(store, 3)
    found = read(store, policy=policy)
    assert (found.code, found.text) == in_memory
    assert found.advance == (3 * UNIT if found.code == ErrCode.SUCCESS else 0)
    store.flush()
    found = read(store, policy=policy)
    assert (found.code, found.text) == flushed


def test_a_reader_of_files_is_told_their_end() -> None:
    store = make_store()
    append(store, 3)
    store.flush()
    append(store, 2)
    assert [read(store, policy=policy).max_offset for policy in (FILES, FLUSHING, ALL)] == [84, 140, 140]


def test_reads_of_files_halve_what_is_left_and_memory_is_read_at_once() -> None:
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


def test_more_partitions_make_reads_of_a_store_longer() -> None:
    store = make_store(1, config=ROOMY)
    append(store, 30_000)
    store.flush()
    store.set_partitions(20)
    assert read(store).advance == 6750 * UNIT


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (100, 1), (101, 2), (300, 3), (301, 4)])
def test_a_read_of_files_ends_with_the_message_that_reaches_the_limit(limit: int, count: int) -> None:
    store = make_store()
    append(store, 40, payload=bytes(100 - DATA_HEADER))
    store.flush()
    found = read(store, size_limit=limit)
    assert (ids(found), found.advance, found.size) == (list(range(count)), count * UNIT, count * 100)
    assert found.data_position == count * 100


def test_a_read_of_memory_has_the_servers_limit_whatever_the_reader_is_allowed() -> None:
    store = make_store(config=replace(CONFIG, transfer_size=1000))
    append(store, 40, payload=bytes(100 - DATA_HEADER))
    assert len(read(store, size_limit=1).chunks) == 10


def test_messages_of_other_partitions_are_passed_over() -> None:
    store = make_store(partitions=2)
    for n in range(6):
        append(store, partition=n % 2, first=n)
    found = read(store, partition=1)
    assert (ids(found), found.advance) == ([1, 3, 5], 6 * UNIT)
    store.flush()
    assert (drain(store, 0), drain(store, 1)) == ([0, 2, 4], [1, 3, 5])


def test_memory_without_a_message_for_the_reader_is_not_found_and_passed() -> None:
    store = make_store(partitions=2)
    append(store, 4, partition=1)
    found = read(store, UNIT)
    assert (found.code, found.text, found.advance) == (404, "Can't found Message by index!", 3 * UNIT)
    store.flush()
    found = read(store, UNIT)  # in files it is an empty success
    assert (found.code, found.chunks, found.advance) == (200, [], 2 * UNIT)


@pytest.mark.parametrize("flushed", [False, True])
def test_filters_compare_hash_codes(flushed: bool) -> None:
    store = make_store()
    for n, msg_type in enumerate(["Aa", "BB", "other", "Aa"]):  # the first two have one hash code
        append(store, code=filter_code(msg_type), first=n)
    append(store, code=NO_CODE, first=4)
    if flushed:
        store.flush()
        append(store, 100, code=NO_CODE, first=5)  # so that the first read scans them all
        store.flush()
    assert ids(read(store, codes=[filter_code("BB")])) == [0, 1, 3]
    assert ids(read(store, codes=[filter_code("other"), filter_code("unknown")])) == [2]


def test_a_type_of_another_partition_makes_an_empty_success_of_a_filtered_read_of_memory() -> None:
    store = make_store(partitions=2)
    append(store, partition=1, code=7)
    found = read(store, codes=[7])
    assert (found.code, found.chunks, found.advance) == (200, [], UNIT)
    assert read(store, codes=[8]).text == "Can't found Message by index!"


def test_a_filtered_reader_near_the_end_is_told_to_be_slow() -> None:
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
def test_attributes_that_do_not_fit_hide_a_message(payload: bytes, readable: bool, flushed: bool) -> None:
    store = make_store()
    store.append(0, NO_CODE, 1, 0, 1, payload)
    store.append(0, NO_CODE, 2, 0, 0, payload)  # nothing is announced
    if flushed:
        store.flush()
    assert store.max_offset == 2 * UNIT
    assert drain(store) == ([1, 2] if readable else [2])


@pytest.mark.parametrize(
    "config", [replace(CONFIG, mem_cache_msg_count=4), replace(CONFIG, mem_cache_msg_size=5 * (DATA_HEADER + 1) - 1)]
)
def test_a_full_block_goes_into_the_files(config: ServerConfig) -> None:
    store = make_store(config=config)
    append(store, 4)
    assert read(store, policy=FLUSHING).code == ErrCode.NOT_FOUND
    append(store)
    assert read(store, policy=FLUSHING).code == ErrCode.SUCCESS
    assert store.committed_offset == 0  # written, and seen by those who read what is being flushed


def test_time_flushes_a_block_and_commits_it() -> None:
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


def test_a_crash_loses_the_block_and_its_positions_are_given_again() -> None:
    store = make_store()
    append(store, 3)
    store.flush()
    append(store, 2, first=3)
    store.crash()
    assert (store.max_offset, store.committed_offset) == (3 * UNIT, 3 * UNIT)
    assert append(store, first=100) == [3 * UNIT]
    assert drain(store) == [0, 1, 2, 100]


def test_a_crash_leaves_what_was_written() -> None:
    store = make_store(config=replace(CONFIG, mem_cache_msg_count=4))
    append(store, 6)
    store.crash()
    assert drain(store, policy=FILES) == [0, 1, 2, 3]


@pytest.mark.parametrize("keep", [0, 1, 5, 6, 10, 11])
def test_retention_moves_the_minimum_and_no_position(keep: int) -> None:
    store = make_store(config=replace(CONFIG, max_index_segment_entries=4))
    append(store, 10)
    kept = min(keep, 10)
    store.keep(keep)
    assert (store.min_offset, store.max_offset) == ((10 - kept) * UNIT, 10 * UNIT)
    assert [position for position, _ in store.entries()] == [n * UNIT for n in range(10 - kept, 10)]
    assert drain(store) == list(range(10 - kept, 10))
    assert append(store, first=10) == [10 * UNIT]


def test_a_read_below_the_minimum_begins_there() -> None:
    store = make_store()
    append(store, 10)
    store.keep(3)
    assert ids(read(store, 0)) == [7, 8]


def test_segments_begin_where_the_ones_before_are_full() -> None:
    store = make_store(config=replace(CONFIG, mem_cache_msg_count=3, max_index_segment_entries=5))
    append(store, 20)
    assert store.segments == [0, 6 * UNIT, 12 * UNIT, 18 * UNIT]  # blocks of 3 are not cut
    assert read(store, 5 * UNIT).advance == UNIT  # nor do reads go over the end of a segment
    assert drain(store) == list(range(20))


MAX_BYTES = 200_000
BLOCK = 10_000


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_what_a_store_keeps_is_bounded(size: int) -> None:
    store = make_store(max_bytes=MAX_BYTES, config=replace(CONFIG, mem_cache_msg_size=BLOCK))
    minimum, count = 0, 5 * MAX_BYTES // (DATA_HEADER + size)
    for n in range(count):
        append(store, payload=bytes(size), first=n)
        assert store.min_offset >= minimum
        minimum = store.min_offset
        kept = sum(entry.size for _, entry in store.entries()) if n % 50 == 0 else 0
        assert kept <= MAX_BYTES
    assert sum(entry.size for _, entry in store.entries()) > MAX_BYTES * 3 // 4
    assert store.max_offset == count * UNIT
    assert drain(store) == list(range(minimum // UNIT, count))


def test_a_reader_that_is_overtaken_goes_on_at_the_minimum() -> None:
    store = make_store(max_bytes=MAX_BYTES, config=replace(CONFIG, mem_cache_msg_size=BLOCK))
    offsets = GroupOffsets(CONFIG, StoppedClock())
    key = Key("g", "demo", 0)
    reader = Reader(store, offsets, key, codes=None, manual=False, policy=ALL)
    append(store, 100, payload=bytes(100))
    reader.step()
    append(store, 10_000, payload=bytes(100), first=100)
    lost_to = store.min_offset // UNIT
    before = len(reader.seen)
    reader.drain()
    assert lost_to > 100 > before
    assert reader.seen[before:] == list(range(lost_to, 10_100))


# -- what holds for every reader -------------------------------------------------------------------------------------


class Reader:
    """Gets and commits as a consumer does; `manual` commits by a call, otherwise the next get confirms."""

    def __init__(
        self, store: Store, offsets: GroupOffsets, key: Key, *, codes: frozenset[int] | None, manual: bool, policy: int
    ) -> None:
        self.seen: list[int] = []
        self._store, self._offsets, self._key = store, offsets, key
        self._codes, self._manual, self._policy = codes, manual, policy
        offsets.load(key, store, 0, 0)

    def step(self) -> bool:
        """Whether there may be more."""
        position = self._offsets.next_read(self._key, self._store, self._manual, True)
        if position is None:
            return False
        found = self._store.read(position, self._key.partition_id, self._codes, self._policy, 500, -2)
        self._offsets.book(self._key, found.advance, self._manual, not found.chunks)
        self.seen += ids(found)
        if self._manual:
            self._offsets.commit(self._key, True)
        return True

    def drain(self) -> None:
        while self.step():
            pass


SMALL = replace(CONFIG, mem_cache_msg_count=7, max_index_segment_entries=20, transfer_size=600)

appends = st.tuples(st.just("append"), st.integers(0, 2), st.sampled_from([NO_CODE, 7, 8]), st.integers(0, 200))
others = st.tuples(st.sampled_from(["flush", "tick", "read"]), st.just(0), st.just(0), st.just(0))
keeps = st.tuples(st.just("keep"), st.integers(0, 40), st.just(0), st.just(0))
crashes = st.tuples(st.just("crash"), st.just(0), st.just(0), st.just(0))
Step = tuple[str, int, int, int]


class Play:
    """A store with readers of each kind for each of three partitions, and the steps that are played on it."""

    def __init__(self, policy: int) -> None:
        self.clock = StoppedClock()
        self.store = make_store(3, config=SMALL, clock=self.clock)
        offsets = GroupOffsets(SMALL, self.clock)
        self.sent: list[tuple[int, int]] = []  # partition and code by message id
        kinds = [
            (partition, codes, manual) for partition in range(3) for codes in (None, 7) for manual in (True, False)
        ]
        self.readers = [
            (
                partition,
                codes,
                Reader(
                    self.store,
                    offsets,
                    Key(f"g{codes}{manual}", "demo", partition),
                    codes=None if codes is None else frozenset([codes]),
                    manual=manual,
                    policy=policy,
                ),
            )
            for partition, codes, manual in kinds
        ]

    def do(self, step: Step) -> None:
        what, number, code, size = step
        if what == "append":
            append(self.store, partition=number, code=code, payload=bytes(size), first=len(self.sent))
            self.sent.append((number, code))
        elif what == "flush":
            self.store.flush()
        elif what == "tick":
            self.clock.advance(25)
            self.store.tick()
        elif what == "keep":
            self.store.keep(number)
        elif what == "crash":
            self.store.crash()
        else:
            for _, _, reader in self.readers:
                reader.step()

    def wanted(self, partition: int, code: int | None) -> list[int]:
        return [n for n, (to, of) in enumerate(self.sent) if to == partition and code in (None, of)]


@given(steps=st.lists(appends | others, max_size=120), policy=st.sampled_from([FILES, FLUSHING, ALL]))
def test_every_reader_sees_each_message_of_its_own_once_and_in_order(steps: list[Step], policy: int) -> None:
    play = Play(policy)
    for step in steps:
        play.do(step)
    play.store.flush()
    for partition, code, reader in play.readers:
        reader.drain()
        assert reader.seen == play.wanted(partition, code)


@given(steps=st.lists(appends | others | keeps, max_size=120))
def test_retention_costs_a_reader_what_is_gone_and_nothing_else(steps: list[Step]) -> None:
    play = Play(ALL)
    for step in steps:
        play.do(step)
    for partition, code, reader in play.readers:
        reader.drain()
        assert all(one < other for one, other in pairwise(reader.seen))
        first = play.store.min_offset // UNIT
        wanted = play.wanted(partition, code)
        assert set(reader.seen) <= set(wanted)
        assert {n for n in wanted if n >= first} <= set(reader.seen)


@given(steps=st.lists(appends | others | crashes, max_size=120))
def test_positions_and_bytes_add_up(steps: list[Step]) -> None:
    play = Play(ALL)
    store = play.store
    for step in steps:
        play.do(step)
        entries = list(store.entries())
        assert [position for position, _ in entries] == list(range(store.min_offset, store.max_offset, UNIT))
        assert store.min_offset <= store.committed_offset <= store.max_offset
        ends = [0, *(entry.data_end for _, entry in entries)]
        assert [b - a for a, b in pairwise(ends)] == [entry.size for _, entry in entries]
        assert store.max_data_offset == ends[-1]
