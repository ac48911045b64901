# SPDX-License-Identifier: Apache-2.0
"""How much a micro-batch may read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.range_planner import ranges
from tubemq_spark.source.rate_limit import PollInterval, RateLimit, entries_between, limited_ends

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)
A1, S0, S1 = Partition(1, "t", 2), Partition(2, "s", 0), Partition(2, "s", 10_000)


def test_partitions_of_a_store_count_once() -> None:
    assert entries_between({A: 0, B: 28, C: 0}, {A: 280, B: 280, C: 56}) == 10 + 2
    assert entries_between({A: 28}, {A: 28}) == 0
    assert entries_between({A: 56}, {A: 28, B: 280}) == 0  # a lost tail, and a partition that only enters


def test_everything_is_read_within_the_limit() -> None:
    assert limited_ends({A: 0, C: 0}, {A: 280, C: 280}, 20, (1, "t", 0)) == ({A: 280, C: 280}, (1, "t", 0))


def test_shares_are_proportional_to_the_backlog() -> None:
    ends, _ = limited_ends({A: 0, C: 0, S0: 0}, {A: 28 * 600, C: 28 * 300, S0: 28 * 100}, 100, None)
    assert ends == {A: 28 * 60, C: 28 * 30, S0: 28 * 10}


def test_partitions_of_a_store_share_its_range() -> None:
    """A partition that is ahead waits for the others."""
    ends, _ = limited_ends({A: 0, B: 280, A1: 28}, {A: 2800, B: 2800, A1: 2800}, 8, None)
    assert ends == {A: 224, B: 280, A1: 224}


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 30),
)
def test_limit_holds_and_no_store_starves(stores: list[tuple[int, int, bool]], limit: int) -> None:
    """Each step reads `limit` entries, or everything. In as many steps as there are stores, each store gets some."""
    start: dict[Partition, int] = {}
    log_ends: dict[Partition, int] = {}
    last: tuple[int, str, int] | None = None
    for number, (backlog, ahead, shared) in enumerate(stores):
        for p in range(2 if shared else 1):
            partition = Partition(number + 1, "t", p)
            start[partition] = 28 * (100 + (min(ahead, backlog) if p else 0))
            log_ends[partition] = 28 * (100 + backlog)
    for _ in range(200):
        if start == log_ends:
            break
        waiting = {p.store for p in start if start[p] < log_ends[p]}
        served: set[tuple[int, str, int]] = set()
        for _ in range(len(stores)):
            before = entries_between(start, log_ends)
            ends, last = limited_ends(start, log_ends, limit, last)
            assert all(start[p] <= ends[p] <= log_ends[p] for p in start)
            assert entries_between(start, ends) == min(limit, before)
            served |= {p.store for p in ranges(start, ends)} | {p.store for p in log_ends if ends[p] == log_ends[p]}
            start = ends
        assert waiting <= served
    assert start == log_ends


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 20))
def test_batches_of_a_query_have_no_gap_or_overlap(growth: list[list[int]], limit: int) -> None:
    """Stores grow, batches are limited, and C appears later: each position is in at most one range, in order."""
    ends = {A: 0, B: 280, C: 56}
    position: dict[Partition, int] = {A: 0, B: 280}
    read: dict[Partition, int] = {}
    last: tuple[int, str, int] | None = None
    for step, steps in enumerate(growth):
        ends = {partition: end + 28 * more for (partition, end), more in zip(ends.items(), steps, strict=True)}
        end, last = limited_ends(position, {p: ends[p] for p in position}, limit, last)
        if step and C not in position:
            end[C] = 56
        for partition, (begin, until) in ranges(position, end).items():
            assert begin == read.get(partition, {A: 0, B: 280, C: 56}[partition])
            read[partition] = until
        position = end
    assert {p: until for p, until in position.items() if p in read} == read


def test_available_now_ends_where_the_stores_ended_first() -> None:
    limit = RateLimit(least=100, most=2, max_delay=5.0)
    limit.stop_at_next_ends()
    assert limit.batch_end({A: 0}, {A: 28}, {}, limited=True) == {A: 28}  # and the store grew before Spark got it
    assert limit.batch_end({A: 0}, {A: 28 * 3}, {C: 56}, limited=True) == {A: 56}
    limit.keep_run_ends()
    assert not limit.admits_new_partitions
    assert limit.batch_end({A: 56, C: 0}, {A: 28 * 9, C: 280}, {}, limited=False) == {A: 28 * 3, C: 56}


def test_lost_tail_is_not_limited() -> None:
    limit = RateLimit(least=None, most=1, max_delay=5.0)
    assert limit.batch_end({A: 280, C: 0}, {A: 140, C: 56}, {}, limited=True) == {A: 140, C: 28}


# How often an idle query asks the brokers


class Idle:
    """An idle query of which Spark asks again 10 ms after each answer, or after `asks_every` seconds."""

    def __init__(self, least: float, asks_every: float = 0.01) -> None:
        self.clock = ManualClock()
        self.poll = PollInterval(least, clock=self.clock)
        self.poll.polled(has_news=True)
        self._asks_every = asks_every

    def questions(self, seconds: float) -> int:
        count, end = 0, self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(self._asks_every)
            self.clock.advance(self.poll.pause())
            self.poll.polled(has_news=False)
            count += 1
        return count


def test_interval_grows_with_the_time_without_news() -> None:
    idle = Idle(0.1)
    assert idle.questions(1.0) in (10, 11)
    assert idle.poll.pause() == pytest.approx(0.1, abs=0.02)
    assert 20 <= idle.questions(9.0) <= 25
    assert idle.poll.pause() == pytest.approx(1.0, abs=0.1)
    assert 59 <= idle.questions(60.0) <= 61
    assert idle.poll.pause() == pytest.approx(1.0)


def test_news_shorten_the_interval() -> None:
    idle = Idle(0.1)
    idle.questions(60.0)
    idle.poll.polled(has_news=True)
    assert idle.poll.pause() == pytest.approx(0.1, abs=0.02)
    assert idle.questions(1.0) in (10, 11)


@pytest.mark.parametrize(("least", "questions"), [(0.0, 6000), (2.0, 30), (5.0, 12)])
def test_zero_and_long_intervals_do_not_grow(least: float, questions: int) -> None:
    assert Idle(least).questions(60.0) == pytest.approx(questions, abs=2)


def test_nobody_waits_twice() -> None:
    """Spark waits for its trigger, for a batch or for another source, too."""
    assert Idle(0.1, asks_every=0.3).questions(60.0) == 200


def test_first_request_is_due() -> None:
    assert PollInterval(3600.0).pause() == 0.0
