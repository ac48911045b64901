# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.testing.master.calls import StoppedClock
from tubemq_spark.errors import ConfigError
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.clock import Clock, Period, Timers


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
    with pytest.raises(ConfigError, match="time does not go back"):
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


class SlowHost:
    """Runs no function by itself."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], None]] = []

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self.functions.append(function)


@pytest.mark.parametrize("by_host", [True, False])
def test_a_timer_runs_once_by_the_hosts_time_or_by_the_clock(by_host: bool) -> None:
    """The host's sum of times may be rounded down, so the clock may be a little behind."""
    clock, host = StoppedClock(), SlowHost()
    timers = Timers(clock, host.after)
    ran: list[float] = []
    timers.after(0.3, lambda: ran.append(clock.now()))
    clock.advance(0.2)
    timers.run_due()
    assert ran == []
    clock.advance(0.0 if by_host else 0.1)
    for _ in range(2):
        (host.functions[0] if by_host else timers.run_due)()
    clock.advance(1.0)
    host.functions[0]()
    timers.run_due()
    assert len(ran) == 1


def test_the_clusters_clock_drives_its_servers() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        before = tubemq.send("demo", b"x").offset
        tubemq.clock.advance(30)  # longer than the flush interval of a memory block
        tubemq.crash_broker(1)
        tubemq.start_broker(1)
        assert [message.offset for message in tubemq.messages("demo")] == [before]
