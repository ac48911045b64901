# SPDX-License-Identifier: Apache-2.0
"""Invariants for every reader of a store under random changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.testing.broker.stores import ALL, CONFIG, FILES, FLUSHING, append, ids, make_store
from tests.testing.master.calls import StoppedClock
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.store import NO_CODE, UNIT, Store


class Reader:
    """A consumer that gets and commits. With `manual` a call commits, otherwise the next get confirms."""

    def __init__(
        self, store: Store, offsets: GroupOffsets, key: Key, *, codes: frozenset[int] | None, manual: bool, policy: int
    ) -> None:
        self.seen: list[int] = []
        self._store, self._offsets, self._key = store, offsets, key
        self._codes, self._manual, self._policy = codes, manual, policy
        offsets.load(key, store, 0, 0)

    def step(self) -> bool:
        """Get once; return True if there may be more."""
        position = self._offsets.next_read(self._key, self._store, self._manual, True)
        if position is None:
            return False
        found = self._store.read(position, self._key.partition_id, self._codes, self._policy, 500, -2)
        self._offsets.advance(self._key, found.advance, self._manual, not found.chunks)
        self.seen += ids(found)
        if self._manual:
            self._offsets.commit(self._key, True)
        return found.advance > 0

    def drain(self) -> None:
        while self.step():
            pass


SMALL = replace(CONFIG, mem_cache_msg_count=7, max_index_segment_entries=20, transfer_size=600)

appends = st.tuples(st.just("append"), st.integers(0, 2), st.sampled_from([NO_CODE, 7, 8]), st.integers(0, 200))
others = st.tuples(st.sampled_from(["flush", "tick", "read"]), st.just(0), st.just(0), st.just(0))
keeps = st.tuples(st.sampled_from(["keep", "keep data"]), st.integers(0, 40), st.just(0), st.just(0))
crashes = st.tuples(st.just("crash"), st.just(0), st.just(0), st.just(0))
Step = tuple[str, int, int, int]


class Play:
    """A store with readers of each kind for each of three partitions, and random steps."""

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
        elif what == "keep data":
            self.store.keep(number, data_only=True)
        elif what == "crash":
            self.store.crash()
        else:
            for _, _, reader in self.readers:
                reader.step()

    def wanted(self, partition: int, code: int | None) -> list[int]:
        return [n for n, (to, of) in enumerate(self.sent) if to == partition and code in (None, of)]


@given(steps=st.lists(appends | others, max_size=120), policy=st.sampled_from([FILES, FLUSHING, ALL]))
def test_every_reader_gets_its_messages_once_and_in_order(steps: list[Step], policy: int) -> None:
    play = Play(policy)
    for step in steps:
        play.do(step)
    play.store.flush()
    for partition, code, reader in play.readers:
        reader.drain()
        assert reader.seen == play.wanted(partition, code)


@given(steps=st.lists(appends | others | keeps, max_size=120))
def test_retention_costs_a_reader_only_deleted_messages(steps: list[Step]) -> None:
    play = Play(ALL)
    for step in steps:
        play.do(step)
    for partition, code, reader in play.readers:
        reader.drain()
        assert all(one < other for one, other in pairwise(reader.seen))
        first = play.store.data_offset // UNIT
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
