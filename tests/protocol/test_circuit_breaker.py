"""What is left alone after trouble, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.circuit_breaker import (
    SLOW_AFTER,
    BreakerState,
    FailureStats,
    breaker_states,
    max_avoided,
    partition_breaker_state,
)

T = 1000.0  # when the last trouble came, and the moment of the judgement in the tables


def lost(count: int) -> FailureStats:
    return FailureStats(lost=count, last=T)


def refused(count: int) -> FailureStats:
    return FailureStats(refused=count, last=T)


def full(count: int) -> FailureStats:
    return FailureStats(full=count, last=T)


def owing(seconds: float, **others: float) -> FailureStats:
    return FailureStats(in_flight_since=T - seconds, **others)  # type: ignore[arg-type]


TABLE = [
    # one broker's counts      it rests  others' messages stay away for   then one at a time
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
    (FailureStats(1, 1, 1, last=T),  0.4,      50.0,                            True),  # rests add up
    (FailureStats(4, 1, 1, last=T),  3.0,      120.0,                           True),
    (owing(1.1),               -T,       SLOW_AFTER,                            False),
    (owing(300.0),             -T,       SLOW_AFTER,                            False),
    (owing(9.0, full=1, last=T - 2),   -1.9, 1.0,                         True),  # as long as it is slow
    (owing(9.0, full=1, last=T - 1.5), -1.4, 1.5,                         True),
]  # fmt: skip


@pytest.mark.parametrize(("counts", "rests", "stays_away", "on_trial"), TABLE)
def test_one_broker_of_many(counts: FailureStats, rests: float, stays_away: float, on_trial: bool) -> None:
    (verdict,) = breaker_states({7: counts}, 10, T).values()
    assert tuple(verdict) == pytest.approx((T + rests, T + stays_away, on_trial))


@pytest.mark.parametrize("counts", [row[0] for row in TABLE])
def test_the_only_broker_is_tried_again_after_its_backoff(counts: FailureStats) -> None:
    (verdict,) = breaker_states({7: counts}, 1, T).values()
    assert verdict.avoid_until == verdict.backoff_until <= T + 3.0


@pytest.mark.parametrize("counts", [FailureStats(), FailureStats(last=T), owing(0.0), owing(1.0)], ids=str)
def test_a_healthy_broker_has_no_state(counts: FailureStats) -> None:
    assert breaker_states({7: counts}, 10, T) == {}


@pytest.mark.parametrize(
    ("brokers", "known", "shielded"),
    [
        ({1: lost(1), 2: lost(2)}, 2, {2}),
        ({1: lost(1), 2: lost(2), 3: lost(3)}, 3, {3}),
        ({1: lost(1), 2: lost(2), 3: lost(3)}, 7, {2, 3}),
        ({1: lost(1), 2: lost(1), 3: lost(1)}, 7, {1, 2}),
        ({1: owing(2.0), 2: owing(9.0), 3: owing(5.0)}, 4, {2}),
        ({1: owing(900.0), 2: full(1)}, 4, {2}),
        ({1: FailureStats(), 2: owing(0.5), 3: lost(1)}, 3, {3}),
        ({1: lost(9)._replace(last=T - 121.0), 2: lost(1)}, 2, {2}),
        ({}, 3, set()),
    ],
    ids=["the worse of two", "the worst of three", "two of seven", "equals", "the slowest", "trouble, not slowness",
         "those without trouble", "those whose time is over", "nobody"],
)  # fmt: skip
def test_which_brokers_are_avoided(brokers: dict[int, FailureStats], known: int, shielded: set[int]) -> None:
    verdicts = breaker_states(brokers, known, T)
    assert {one for one, verdict in verdicts.items() if verdict.avoid_until > max(T, verdict.backoff_until)} == shielded


@pytest.mark.parametrize(
    ("known", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (6, 1), (7, 2), (10, 3), (100, 30)]
)  # fmt: skip
def test_how_many_brokers_may_be_avoided(known: int, most: int) -> None:
    assert max_avoided(known) == most


@pytest.mark.parametrize(
    ("failed", "rests"), [(1, 0.1), (2, 0.2), (3, 0.4), (5, 1.6), (6, 3.0), (10_000, 3.0)]
)  # fmt: skip
def test_the_state_of_a_partition(failed: int, rests: float) -> None:
    assert tuple(partition_breaker_state(FailureStats(failed=failed, last=T))) == pytest.approx(
        (T + rests, T + 3.0, True)
    )


# Whatever happened

counters = st.integers(0, 40)
moments = st.floats(0.0, T)
all_counts = st.builds(FailureStats, counters, counters, counters, st.just(0), moments, st.none() | moments)
clusters = st.dictionaries(st.integers(1, 40), all_counts, max_size=20)


def is_troubled(counts: FailureStats) -> bool:
    return counts.total > 0 or (counts.in_flight_since is not None and T - counts.in_flight_since > SLOW_AFTER)


@given(clusters, st.integers(0, 60))
def test_never_more_brokers_are_avoided_than_allowed(brokers: dict[int, FailureStats], more: int) -> None:
    known = len(brokers) + more
    shielded = [one for one in breaker_states(brokers, known, T).values() if one.avoid_until > one.backoff_until]
    assert len(shielded) <= max_avoided(known) <= max(1, known // 3)
    assert known == 0 or max_avoided(known) < known


@given(clusters)
def test_only_failed_or_slow_brokers_have_a_state(brokers: dict[int, FailureStats]) -> None:
    assert set(breaker_states(brokers, 60, T)) == {one for one, counts in brokers.items() if is_troubled(counts)}


@given(clusters, st.integers(20, 60))
def test_the_backoff_is_never_longer_than_the_avoidance(brokers: dict[int, FailureStats], known: int) -> None:
    for one, verdict in breaker_states(brokers, known, T).items():
        assert verdict.backoff_until <= verdict.avoid_until <= max(T + SLOW_AFTER, brokers[one].last + 120.0)
        assert verdict.backoff_until <= brokers[one].last + 3.0
        assert verdict.half_open == (brokers[one].total > 0)


@given(st.integers(0, 1000))
def test_the_backoff_of_a_partition_is_never_longer_than_the_avoidance(failed: int) -> None:
    verdict = partition_breaker_state(FailureStats(failed=failed, last=T))
    assert verdict.backoff_until <= verdict.avoid_until == T + 3.0


@given(all_counts, st.sampled_from(["lost", "refused", "full"]))
def test_more_failures_never_shorten_anything(counts: FailureStats, kind: str) -> None:
    def verdict(counts: FailureStats) -> BreakerState:
        return breaker_states({1: counts}, 10, T).get(1, BreakerState(0.0, 0.0, False))

    less, more = verdict(counts), verdict(counts._replace(**{kind: getattr(counts, kind) + 1}))
    assert less.backoff_until <= more.backoff_until
    assert less.avoid_until <= more.avoid_until
    assert more.half_open


@given(clusters, st.integers(20, 60))
def test_a_larger_cluster_never_avoids_a_broker_for_less_time(brokers: dict[int, FailureStats], known: int) -> None:
    small, large = breaker_states(brokers, known, T), breaker_states(brokers, known + 1, T)
    assert all(small[one].avoid_until <= large[one].avoid_until for one in small)
