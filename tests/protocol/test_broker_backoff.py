# SPDX-License-Identifier: Apache-2.0
"""How long a broker or partition that failed gets no records, and when one is tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.broker_backoff import Backoff, Circuit

T = 1000.0  # the time of the last failure


@pytest.mark.parametrize(
    ("failures", "pause", "with_choice"),
    [
        (1, 0.1, 10.0),
        (2, 0.2, 20.0),
        (3, 0.4, 40.0),
        (4, 0.8, 80.0),
        (5, 1.6, 120.0),
        (6, 3.0, 120.0),
        (9999, 3.0, 120.0),
    ],
)
def test_the_pause_doubles_and_is_longer_for_records_with_a_choice(
    failures: int, pause: float, with_choice: float
) -> None:
    backoff = Backoff(failures, T)
    assert backoff.until(has_choice=False) == pytest.approx(T + pause)
    assert backoff.until(has_choice=True) == pytest.approx(T + with_choice)


@pytest.mark.parametrize(
    ("after", "without", "with_choice"),
    [
        (0.0, Circuit.OPEN, Circuit.OPEN),
        (0.19, Circuit.OPEN, Circuit.OPEN),
        (0.21, Circuit.HALF_OPEN, Circuit.OPEN),
        (19.9, Circuit.HALF_OPEN, Circuit.OPEN),
        (20.1, Circuit.HALF_OPEN, Circuit.HALF_OPEN),
        (1e6, Circuit.HALF_OPEN, Circuit.HALF_OPEN),  # only a stored record closes it
    ],
)  # fmt: skip
def test_the_circuit(after: float, without: Circuit, with_choice: Circuit) -> None:
    backoff = Backoff(2, T)
    assert backoff.circuit(T + after, has_choice=False) is without
    assert backoff.circuit(T + after, has_choice=True) is with_choice


@pytest.mark.parametrize("has_choice", [False, True])
def test_the_circuit_is_closed_without_failures(has_choice: bool) -> None:
    assert Backoff().circuit(T, has_choice=has_choice) is Circuit.CLOSED


@given(st.lists(st.floats(0.0, 10.0), max_size=50))
def test_failures_during_a_pause_are_one(pauses: list[float]) -> None:
    """They come from records that were in flight when the first one failed."""
    backoff, now = Backoff(), 0.0
    for pause in pauses:
        now += pause
        is_open = backoff.circuit(now, has_choice=False) is Circuit.OPEN
        after = backoff.after_failure(now)
        assert after == (backoff if is_open else Backoff(backoff.failures + 1, now))
        backoff = after
