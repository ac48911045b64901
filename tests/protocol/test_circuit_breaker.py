# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker: which brokers and partitions are avoided after failures, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.circuit_breaker import (
    SLOW_AFTER,
    BreakerState,
    Endpoint,
    FailureStats,
    breaker_states,
    max_avoided,
)
from tubemq_spark.protocol.metadata import Partition

T = 1000.0  # the time of the last failure, and the time now


def lost(count: int) -> FailureStats:
    return FailureStats(lost=count, last=T)


def refused(count: int) -> FailureStats:
    return FailureStats(refused=count, last=T)


def full(count: int) -> FailureStats:
    return FailureStats(full=count, last=T)


def slow(seconds: float, **others: float) -> FailureStats:
    return FailureStats(in_flight_since=T - seconds, **others)  # type: ignore[arg-type]


TABLE = [
    # one broker's failures    backoff   other records avoid it for       then half open
    (lost(1),                  0.1,      15.0,                            True),
    (lost(2),                  0.2,      30.0,                            True),
    (lost(3),                  0.4,      60.0,                            True),
    (lost(4),                  0.8,      120.0,                           True),
    (lost(5),                  1.6,      120.0,                           True),
    (lost(6),                  3.0,      120.0,                           True),
    (lost(10_000),             3.0,      120.0,                           True),
    (refused(1),               0.1,      50.0,                            True),
    (refused(4),               0.8,      50.0,                            True),
    (refused(10_000),          3.0,      50.0,                            True),
    (full(1),                  0.1,      3.0,                             True),
    (full(2),                  0.2,      6.0,                             True),
    (full(5),                  1.6,      48.0,                            True),
    (full(6),                  3.0,      50.0,                            True),
    (FailureStats(1, 1, 1, last=T),  0.4,      50.0,                            True),  # all kinds count
    (FailureStats(4, 1, 1, last=T),  3.0,      120.0,                           True),
    (slow(1.1),               -T,       SLOW_AFTER,                            False),
    (slow(300.0),             -T,       SLOW_AFTER,                            False),
    (slow(9.0, full=1, last=T - 2),   -1.9, 1.0,                         True),  # as long as it is slow
    (slow(9.0, full=1, last=T - 1.5), -1.4, 1.5,                         True),
]  # fmt: skip


@pytest.mark.parametrize(("stats", "backoff", "avoided_for", "half_open"), TABLE)
def test_one_broker_of_many(stats: FailureStats, backoff: float, avoided_for: float, half_open: bool) -> None:
    (state,) = breaker_states({7: stats}, 10, T).values()
    assert tuple(state) == pytest.approx((T + backoff, T + avoided_for, half_open))


@pytest.mark.parametrize("stats", [row[0] for row in TABLE])
def test_the_only_broker_is_tried_again_after_its_backoff(stats: FailureStats) -> None:
    (state,) = breaker_states({7: stats}, 1, T).values()
    assert state.avoid_until == state.backoff_until <= T + 3.0


@pytest.mark.parametrize("stats", [FailureStats(), FailureStats(last=T), slow(0.0), slow(1.0)], ids=str)
def test_a_healthy_broker_has_no_state(stats: FailureStats) -> None:
    assert breaker_states({7: stats}, 10, T) == {}


@pytest.mark.parametrize(
    ("brokers", "known", "avoided"),
    [
        ({1: lost(1), 2: lost(2)}, 2, {2}),
        ({1: lost(1), 2: lost(2), 3: lost(3)}, 3, {3}),
        ({1: lost(1), 2: lost(2), 3: lost(3)}, 7, {2, 3}),
        ({1: lost(1), 2: lost(1), 3: lost(1)}, 7, {1, 2}),
        ({1: slow(2.0), 2: slow(9.0), 3: slow(5.0)}, 4, {2}),
        ({1: slow(900.0), 2: full(1)}, 4, {2}),
        ({1: FailureStats(), 2: slow(0.5), 3: lost(1)}, 3, {3}),
        ({1: lost(9)._replace(last=T - 121.0), 2: lost(1)}, 2, {2}),
        ({}, 3, set()),
    ],
    ids=["the worse of two", "the worst of three", "two of seven", "equals", "the slowest", "failed before slow",
         "healthy ones", "those whose time is over", "nobody"],
)  # fmt: skip
def test_which_brokers_are_avoided(brokers: dict[Endpoint, FailureStats], known: int, avoided: set[int]) -> None:
    states = breaker_states(brokers, known, T)
    assert {one for one, state in states.items() if state.avoid_until > max(T, state.backoff_until)} == avoided


@pytest.mark.parametrize(
    ("known", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (6, 1), (7, 2), (10, 3), (100, 30)]
)  # fmt: skip
def test_how_many_brokers_may_be_avoided(known: int, most: int) -> None:
    assert max_avoided(known) == most


@pytest.mark.parametrize(
    ("failed", "backoff"), [(1, 0.1), (2, 0.2), (3, 0.4), (5, 1.6), (6, 3.0), (10_000, 3.0)]
)  # fmt: skip
def test_the_state_of_a_partition(failed: int, backoff: float) -> None:
    (state,) = breaker_states({Partition(7, "t", 0): FailureStats(failed=failed, last=T)}, 1, T).values()
    assert tuple(state) == pytest.approx((T + backoff, T + 3.0, True))


# Any failures

counters = st.integers(0, 40)
moments = st.floats(0.0, T)
all_counts = st.builds(FailureStats, counters, counters, counters, st.just(0), moments, st.none() | moments)
clusters = st.dictionaries(st.integers(1, 40), all_counts, max_size=20)


@given(clusters, st.integers(20, 60))
def test_the_backoff_is_never_longer_than_the_avoidance(brokers: dict[Endpoint, FailureStats], known: int) -> None:
    for one, state in breaker_states(brokers, known, T).items():
        assert state.backoff_until <= state.avoid_until <= max(T + SLOW_AFTER, brokers[one].last + 120.0)
        assert state.backoff_until <= brokers[one].last + 3.0
        assert state.half_open == (brokers[one].total > 0)


@given(all_counts, st.sampled_from(["lost", "refused", "full"]))
def test_more_failures_never_shorten_anything(stats: FailureStats, kind: str) -> None:
    def state(stats: FailureStats) -> BreakerState:
        return breaker_states({1: stats}, 10, T).get(1, BreakerState(0.0, 0.0, False))

    less, more = state(stats), state(stats._replace(**{kind: getattr(stats, kind) + 1}))
    assert less.backoff_until <= more.backoff_until
    assert less.avoid_until <= more.avoid_until
    assert more.half_open
