"""Which message ids are old ones, and which marks are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.log_fingerprint import ID_SECOND, MAX_FINGERPRINTS, Fingerprint, span_between, thinned

PEAK_AT = (1 << 41) / 1e9  # seconds into the wave
NOW = 1_700_000_000


def wave(seconds: float) -> int:
    """A broker's message id, so many seconds into a wave."""
    phase = int(seconds * 1e9) % (1 << 42)
    return min(phase, (1 << 42) - phase) << 22


def mark(at: float, position: int = 0, *, time: int | None = None) -> Fingerprint:
    return Fingerprint(position, 0, wave(at), NOW + int(at) if time is None else time)


steady = st.floats(70, PEAK_AT - 300) | st.floats(PEAK_AT + 300, 2 * PEAK_AT - 300)


@given(steady, st.floats(0, 100), st.floats(0, 1), st.floats(1, 60))
def test_what_was_sent_between_two_marks_is_old_and_what_comes_later_is_new(
    begin: float, seconds: float, share: float, restart: float
) -> None:
    span = span_between(mark(begin), mark(begin + seconds))
    assert span is not None
    assert span.has(wave(begin + share * seconds))
    assert not span.has(wave(begin + seconds + restart))
    assert not span.has(wave(begin - 6))


@given(steady, st.floats(1.1, 5), st.floats(-0.4, 0.4))
def test_messages_may_be_stored_in_another_order(begin: float, seconds: float, late: float) -> None:
    span = span_between(mark(begin), mark(begin + seconds))
    assert span is not None
    assert span.has(wave(begin + seconds + late))
    assert span.has(wave(begin - 10 * abs(late)))


@pytest.mark.parametrize("turn", [0, PEAK_AT, 2 * PEAK_AT])
@pytest.mark.parametrize(("before", "after"), [(10, 10), (50, 1), (59, -49), (-1, 40)])
def test_near_a_turning_point_ids_do_not_tell(turn: float, before: float, after: float) -> None:
    assert span_between(mark(turn - before + 2 * PEAK_AT), mark(turn + after + 2 * PEAK_AT)) is None


def test_a_clock_that_was_set_anew_is_noticed() -> None:
    assert span_between(mark(300, time=NOW), mark(400, time=NOW + 10)) is None


@given(st.lists(st.integers(0, 40), min_size=MAX_FINGERPRINTS + 1, max_size=20), st.integers(0, 40))
def test_marks_of_a_clock_that_went_back_are_thinned_too(times: list[int], now: int) -> None:
    marks = [Fingerprint(number * 28, 0, number, NOW + time) for number, time in enumerate(times)]
    kept = thinned(marks, NOW + now)
    assert len(kept) == MAX_FINGERPRINTS
    assert kept[0] == marks[0]
    assert kept[-2:] == tuple(marks[-2:])


def test_a_long_time_between_marks() -> None:
    assert span_between(mark(1000), mark(1000 + 16 * 60)) is None


def test_marks_of_unknown_age_must_be_near() -> None:
    assert span_between(mark(1000, time=0), mark(1029)) is not None
    assert span_between(mark(1000, time=0), mark(1031)) is None


@given(st.lists(st.integers(1, 500), min_size=1, max_size=300))
def test_few_marks_are_kept_and_some_of_each_age(pauses: list[int]) -> None:
    marks: tuple[Fingerprint, ...] = ()
    now = NOW
    taken = []
    for number, pause in enumerate(pauses):
        now += pause
        taken.append(Fingerprint(number * 28, 0, number, now))
        marks = thinned([*marks, taken[-1]], now)
        assert marks == tuple(sorted(marks))
        assert len(marks) <= MAX_FINGERPRINTS
        assert marks[0] == taken[0]
        assert marks[-2:] == tuple(taken[-2:])


def test_a_mark_stands_soon_before_any_loss() -> None:
    """A batch each second for a day: what was flushed a minute ago is known to be so, or ten minutes at the most."""
    marks: tuple[Fingerprint, ...] = ()
    for second in range(24 * 3600):
        marks = thinned([*marks, Fingerprint(second * 28, 0, second * ID_SECOND, NOW + second)], NOW + second)
    ages = [NOW + 24 * 3600 - 1 - one.time for one in marks]
    assert any(20 <= age <= 600 for age in ages)
    assert marks[0].position == 0


def test_thinning_is_of_no_consequence_for_few() -> None:
    marks = tuple(Fingerprint(number * 28, 0, number, NOW) for number in range(MAX_FINGERPRINTS))
    assert thinned(reversed(marks), NOW) == marks
