# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

import pytest

from tests.testing.master.calls import StoppedClock
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.clock import Clock, Period


def test_time_passes_without_advance() -> None:
    clock = Clock()
    first, begin = clock.now(), time.monotonic()
    while time.monotonic() == begin:
        pass
    assert clock.now() > first
    assert abs(clock.wall_ms() - time.time() * 1000) < 60_000


def test_advance_skips_seconds() -> None:
    clock = Clock()
    now, wall = clock.now(), clock.wall_ms()
    clock.advance(1000.5)
    clock.advance(0)
    assert 1000.5 <= clock.now() - now < 1060
    assert 1_000_500 <= clock.wall_ms() - wall < 1_060_000


def test_advance_refuses_negative_seconds() -> None:
    with pytest.raises(ValueError, match="time does not go back"):
        Clock().advance(-1)


def test_advance_runs_due_timers_before_it_returns() -> None:
    seen: list[float] = []
    clock = Clock(lambda: seen.append(clock.now()))
    before = clock.now()
    clock.advance(5)
    assert [at >= before + 5 for at in seen] == [True]


def test_a_period_is_due_once_however_many_have_ended() -> None:
    clock = StoppedClock()
    period = Period(clock, 5)
    due = []
    for seconds in (0, 4.9, 0.1, 0, 4.9, 0.2, 50, 0, 5):
        clock.advance(seconds)
        due.append(period.is_due())
    assert due == [False, False, True, False, False, True, True, False, True]


def test_the_clusters_clock_drives_its_servers() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        before = tubemq.send("demo", b"x").offset
        tubemq.clock.advance(30)  # longer than the flush interval of a memory block
        tubemq.crash_broker(1)
        tubemq.start_broker(1)
        assert [message.offset for message in tubemq.messages("demo")] == [before]
