# SPDX-License-Identifier: Apache-2.0
"""Which message ids count as old, and which fingerprints are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.log_fingerprint import ID_SECOND, MAX_FINGERPRINTS, Fingerprint, span_between, thinned

PEAK_AT = (1 << 41) / 1e9  # seconds into the wave
NOW = 1_700_000_000


def wave(seconds: float) -> int:
    """Return a broker's message id, so many seconds into a wave."""
    phase = int(seconds * 1e9) % (1 << 42)
    return min(phase, (1 << 42) - phase) << 22


def taken(at: float, *, time: int | None = None) -> Fingerprint:
    return Fingerprint(0, 0, wave(at), NOW + int(at) if time is None else time)


steady = st.floats(70, PEAK_AT - 300) | st.floats(PEAK_AT + 300, 2 * PEAK_AT - 300)


@given(steady, st.floats(0, 100), st.floats(0, 1), st.floats(1, 60))
def test_messages_between_two_fingerprints_are_old_and_later_messages_are_new(
    begin: float, seconds: float, share: float, restart: float
) -> None:
    span = span_between(taken(begin), taken(begin + seconds))
    assert span is not None
    assert span.has(wave(begin + share * seconds))
    assert not span.has(wave(begin + seconds + restart))
    assert not span.has(wave(begin - 6))


@given(steady, st.floats(1.1, 5), st.floats(-0.4, 0.4))
def test_old_messages_may_be_stored_in_another_order(begin: float, seconds: float, late: float) -> None:
    span = span_between(taken(begin), taken(begin + seconds))
    assert span is not None
    assert span.has(wave(begin + seconds + late))
    assert span.has(wave(begin - 10 * abs(late)))


@pytest.mark.parametrize("turn", [0, PEAK_AT, 2 * PEAK_AT])
@pytest.mark.parametrize(("before", "after"), [(10, 10), (50, 1), (59, -49), (-1, 40)])
def test_ids_tell_nothing_near_the_turn_of_the_wave(turn: float, before: float, after: float) -> None:
    assert span_between(taken(turn - before + 2 * PEAK_AT), taken(turn + after + 2 * PEAK_AT)) is None


def test_ids_tell_nothing_after_the_brokers_clock_was_set() -> None:
    assert span_between(taken(300, time=NOW), taken(400, time=NOW + 10)) is None


def test_ids_tell_nothing_if_the_fingerprints_are_far_apart() -> None:
    assert span_between(taken(1000), taken(1000 + 16 * 60)) is None


def test_ids_of_fingerprints_without_a_time_must_be_close() -> None:
    assert span_between(taken(1000, time=0), taken(1029)) is not None
    assert span_between(taken(1000, time=0), taken(1031)) is None


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_the_oldest_and_the_two_newest_fingerprints_are_kept(pauses: list[int]) -> None:
    kept: tuple[Fingerprint, ...] = ()
    now = NOW
    all_taken = []
    for number, pause in enumerate(pauses):
        now += pause
        all_taken.append(Fingerprint(number * 28, 0, number, now))
        kept = thinned([*kept, all_taken[-1]], now)
        assert kept == tuple(sorted(kept))
        assert len(kept) <= MAX_FINGERPRINTS
        assert kept[0] == all_taken[0]
        assert kept[-2:] == tuple(all_taken[-2:])


@given(st.lists(st.integers(0, 40), min_size=MAX_FINGERPRINTS + 1, max_size=20), st.integers(0, 40))
def test_fingerprints_are_thinned_after_the_clock_was_set_back(times: list[int], now: int) -> None:
    several = [Fingerprint(number * 28, 0, number, NOW + time) for number, time in enumerate(times)]
    kept = thinned(several, NOW + now)
    assert len(kept) == MAX_FINGERPRINTS
    assert kept[0] == several[0]
    assert kept[-2:] == tuple(several[-2:])


def test_a_fingerprint_lies_shortly_before_any_loss() -> None:
    """With a batch each second for two hours, one is between 20 seconds and ten minutes old."""
    kept: tuple[Fingerprint, ...] = ()
    for second in range(2 * 3600):
        kept = thinned([*kept, Fingerprint(second * 28, 0, second * ID_SECOND, NOW + second)], NOW + second)
    ages = [NOW + 2 * 3600 - 1 - one.time for one in kept]
    assert any(20 <= age <= 600 for age in ages)
    assert kept[0].position == 0


def test_few_fingerprints_are_all_kept() -> None:
    several = tuple(Fingerprint(number * 28, 0, number, NOW) for number in range(MAX_FINGERPRINTS))
    assert thinned(reversed(several), NOW) == several
