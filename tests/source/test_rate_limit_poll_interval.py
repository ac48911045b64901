# SPDX-License-Identifier: Apache-2.0
"""How often an idle query asks the brokers."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tubemq_spark.source.rate_limit import PollInterval


class Idle:
    """An idle query that asks whenever it is due; the clock advances in steps of 10 ms."""

    def __init__(self, least: float) -> None:
        self.clock = ManualClock()
        self.poll = PollInterval(least, clock=self.clock)
        self.poll.polled(has_news=True)

    def questions(self, seconds: float) -> int:
        count = 0
        for _ in range(round(seconds * 100)):
            self.clock.advance(0.01)
            if self.poll.is_due:
                self.poll.polled(has_news=False)
                count += 1
        return count


def test_interval_grows_with_the_time_without_news() -> None:
    idle = Idle(0.1)
    assert idle.questions(1.0) in (9, 10)
    assert idle.poll.interval == pytest.approx(0.1)
    assert 20 <= idle.questions(9.0) <= 25
    assert idle.poll.interval == pytest.approx(1.0, abs=0.1)
    assert 59 <= idle.questions(60.0) <= 61
    assert idle.poll.interval == 1.0


def test_news_shorten_the_interval() -> None:
    idle = Idle(0.1)
    idle.questions(60.0)
    idle.poll.polled(has_news=True)
    assert idle.poll.interval == pytest.approx(0.1)
    assert idle.questions(1.0) in (9, 10)


@pytest.mark.parametrize(("least", "questions"), [(0.0, 6000), (2.0, 30), (5.0, 12)])
def test_zero_and_long_intervals_do_not_grow(least: float, questions: int) -> None:
    assert Idle(least).questions(60.0) == pytest.approx(questions, abs=2)


def test_first_request_is_due() -> None:
    assert PollInterval(3600.0).is_due
