# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tubemq_spark.client.consumer import fetch_throttle
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.protocol.flow_rules import DataLimit, EmptyWait, FetchPause, FlowRule, FlowRules, Limits

SHARE = 1000
LIMIT = DataLimit(start=0, end=2400, lag=100, per_minute=12 * SHARE, wait_ms=500)
NONE = Limits()
BEHIND = 101
NOON = 4 * 3600.0  # in GMT+8, on the first of January 1970


@pytest.fixture(autouse=True)
def nothing_is_logged_yet() -> None:
    fetch_throttle._log_once().cache_clear()


class ClockFromNoon(ManualClock):
    def time(self) -> float:
        return NOON + self.now


class Reader:
    """A reader whose time passes by `advance` alone."""

    def __init__(self, *, default: Limits = NONE, group: Limits = NONE, filtered: bool = False) -> None:
        self.clock = ClockFromNoon(0.0)
        rules = FlowRules(FlowRule("default", 11, "D", default), FlowRule("group", 22, "G", group))
        self.throttle = FetchThrottle(rules, filtered, where="1:demo:0 for group g", clock=self.clock)
        self.advance = self.clock.advance

    @property
    def wait(self) -> float:
        return self.throttle.seconds_to_wait()

    def fetch(self, size: int, lag: int = BEHIND, *, slow: bool = False) -> float:
        """How long to wait afterwards."""
        self.throttle.on_fetched(size, lag, slow)
        return self.wait


# Data limits


@pytest.mark.parametrize("owner", ["default", "group"])
def test_reads_beyond_a_share_are_slow(owner: str) -> None:
    reader = Reader(group=Limits((LIMIT,))) if owner == "group" else Reader(default=Limits((LIMIT,)))
    assert reader.fetch(50 * SHARE) == 0  # what came before there was a limit is not counted
    assert reader.fetch(SHARE - 1) == 0
    assert reader.fetch(1) == 0.5
    reader.advance(0.25)
    assert reader.wait == 0.25
    reader.advance(0.25)
    assert reader.wait == 0
    assert reader.fetch(1) == 0.5


def test_a_new_share_starts_after_five_seconds() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.fetch(0)
    for _ in range(3):
        assert reader.fetch(SHARE) == 0.5
        reader.advance(5)
        assert reader.fetch(1) == 0.5
        reader.advance(0.5)
        assert reader.fetch(0) == 0


def test_reads_beyond_the_shares_use_up_the_minute() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.fetch(0)
    assert reader.fetch(4 * SHARE) == 0.5
    reader.advance(5.5)
    assert reader.fetch(4 * SHARE) == 0  # the next share begins behind these
    assert reader.fetch(4 * SHARE) == 0.5
    for _ in range(9):
        reader.advance(5.5)
        assert reader.fetch(0) == 0.5
    reader.advance(5.5)
    assert reader.clock.now == 60.5
    assert reader.fetch(SHARE) == 0
    assert reader.fetch(SHARE - 1) == 0


def test_a_limit_is_chosen_for_a_minute_by_the_last_lag() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    assert reader.fetch(SHARE, 100) == 0
    assert reader.fetch(SHARE, BEHIND) == 0
    reader.advance(60)
    assert reader.fetch(SHARE, BEHIND) == 0
    reader.advance(0.5)
    reader.fetch(0, -1)
    assert reader.fetch(SHARE, 0) == 0.5


def test_without_a_lag_there_is_no_limit_yet() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    for _ in range(3):
        assert reader.fetch(50 * SHARE, -1) == 0
    assert reader.fetch(SHARE, BEHIND) == 0
    assert reader.fetch(SHARE, -1) == 0.5


# Pauses


@pytest.mark.parametrize(
    ("filtered", "slow", "wait"), [(False, False, 0.1), (False, True, 0.1), (True, False, 0.2), (True, True, 0.3)]
)
def test_there_is_a_pause_after_each_successful_fetch(filtered: bool, slow: bool, wait: float) -> None:
    reader = Reader(default=Limits(pause=FetchPause(100, 200, 300)), filtered=filtered)
    assert reader.wait == 0
    for _ in range(3):
        assert reader.fetch(0, 0, slow=slow) == pytest.approx(wait)
        reader.advance(wait)
        assert reader.wait == 0
    assert reader.throttle.one_at_a_time


@pytest.mark.parametrize(
    ("pause", "filtered", "one"),
    [
        (FetchPause(0, 0, 0), True, False),
        (FetchPause(0, 0, 1), True, True),
        (FetchPause(0, 5, 9), False, False),
        (FetchPause(5, 0, 0), True, False),
        (FetchPause(5, 0, 0), False, True),
    ],
)
def test_a_reader_without_pauses_may_have_many_fetches_in_flight(pause: FetchPause, filtered: bool, one: bool) -> None:
    assert Reader(group=Limits(pause=pause), filtered=filtered).throttle.one_at_a_time is one


def test_a_used_up_limit_takes_precedence_over_the_pause() -> None:
    reader = Reader(group=Limits((LIMIT,), pause=FetchPause(2000, 0, 0)))
    assert reader.fetch(0) == 2
    reader.advance(2)
    assert reader.fetch(SHARE) == 0.5


# Fetches without messages


def test_empty_replies_in_a_row_lengthen_the_wait() -> None:
    reader = Reader(group=Limits(empty=(EmptyWait(4, 800), EmptyWait(2, 300))))
    for _ in range(2):
        waits = []
        for _ in range(5):
            reader.throttle.on_not_found()
            waits.append(reader.wait)
            reader.advance(reader.wait)
        assert waits == pytest.approx([0, 0.3, 0.3, 0.8, 0.8])
        assert reader.fetch(0) == 0  # a success, be it an empty one
    assert not reader.throttle.one_at_a_time


def test_a_452_does_not_count_as_an_empty_reply() -> None:
    reader = Reader(group=Limits(empty=(EmptyWait(2, 700),)))
    reader.throttle.on_not_found()
    reader.throttle.on_limited(300)
    reader.advance(0.3)
    reader.throttle.on_not_found()
    assert reader.wait == pytest.approx(0.7)


@pytest.mark.parametrize(("asked", "wait"), [(500, 0.5), (200, 0.2), (0, 0.2), (-500, 0.2), (60_000, 60)])
def test_the_wait_after_a_452_is_the_one_it_names(asked: int, wait: float) -> None:
    reader = Reader()
    reader.throttle.on_limited(asked)
    assert reader.wait == wait
    reader.advance(wait)
    assert reader.wait == 0


def test_the_longest_of_several_waits_applies() -> None:
    reader = Reader()
    for asked in (300, 900, 200):
        reader.throttle.on_limited(asked)
    assert reader.wait == 0.9


@pytest.mark.parametrize(
    "answer", [FetchThrottle.on_not_found, lambda throttle: throttle.on_limited(200)], ids=["404", "452"]
)
def test_any_reply_may_end_a_share(answer: Callable[[FetchThrottle], None]) -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.fetch(0)
    assert reader.fetch(SHARE) == 0.5
    reader.advance(5.5)
    answer(reader.throttle)
    reader.advance(1)
    assert reader.fetch(SHARE - 1) == 0
    assert reader.fetch(1) == 0.5


DAYS = 2**31 - 1  # milliseconds: 24 days, the longest wait that a rule or a broker can name
LONGEST = 300.0  # seconds that are obeyed at a time
DEMANDS: dict[str, tuple[Limits, Callable[[Reader], object]]] = {
    "data": (Limits((LIMIT._replace(wait_ms=DAYS),)), lambda reader: [reader.fetch(0), reader.fetch(SHARE)]),
    "empty": (Limits(empty=(EmptyWait(1, DAYS),)), lambda reader: reader.throttle.on_not_found()),
    "452": (NONE, lambda reader: reader.throttle.on_limited(DAYS)),
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_a_server_cannot_make_a_reader_wait_for_days(demand: str, caplog: pytest.LogCaptureFixture) -> None:
    limits, happen = DEMANDS[demand]
    reader = Reader(default=limits)
    happen(reader)
    assert reader.wait == LONGEST
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "with waits of 2147484 s, of which 300 s are obeyed at a time" in record.message
    reader.advance(LONGEST)
    assert reader.wait == 0


# The log

HAPPENINGS: dict[str, tuple[Callable[[Reader], object], int, str]] = {
    "data": (
        lambda reader: [reader.fetch(0), reader.fetch(SHARE)],
        logging.WARNING,
        "a reader that lags by more than 100 B reads 0 MiB a minute, by the group flow control rule 22 G",
    ),
    "pause": (
        lambda reader: reader.fetch(0),
        logging.WARNING,
        "there is a pause after each fetch, by the group flow control rule 22 G",
    ),
    "empty": (
        lambda reader: reader.throttle.on_not_found(),
        logging.INFO,
        "there is a pause after fetches that find nothing, 1 or more in a row, by the default flow control rule 11 D",
    ),
    "452": (
        lambda reader: reader.throttle.on_limited(300),
        logging.WARNING,
        "the broker limits the speed (452), by the default flow control rule 11 D",
    ),
}


def limited_reader() -> Reader:
    return Reader(group=Limits((LIMIT,), pause=FetchPause(50, 0, 0)), default=Limits(empty=(EmptyWait(1, 300),)))


@pytest.mark.parametrize("happening", HAPPENINGS)
def test_each_limit_is_logged_once(happening: str, caplog: pytest.LogCaptureFixture) -> None:
    happen, level, words = HAPPENINGS[happening]
    with caplog.at_level(logging.INFO, fetch_throttle.__name__):
        for reader in (limited_reader(), limited_reader()):
            for _ in range(3):
                happen(reader)
    said = [record for record in caplog.records if words in record.message]
    assert [record.levelno for record in said] == [level]
    assert said[0].message.startswith("[flow-limit] 1:demo:0 for group g is read more slowly, as the cluster demands: ")


def test_rules_without_a_wait_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, fetch_throttle.__name__):
        reader = Reader(group=Limits((LIMIT,), (EmptyWait(2, 5),), FetchPause(0, 9, 9)))
        reader.fetch(0)
        reader.throttle.on_not_found()
    assert caplog.records == []


# Any life

LIMITS = st.builds(
    Limits,
    st.lists(st.builds(DataLimit, st.just(0), st.just(2400), *[st.integers(0, 5000)] * 3), max_size=2).map(tuple),
    st.lists(st.builds(EmptyWait, st.integers(1, 4), st.integers(0, 5000)), max_size=2).map(tuple),
    st.none() | st.builds(FetchPause, *[st.integers(0, 5000)] * 3),
)
ANSWERS = st.one_of(
    st.tuples(st.just("on_fetched"), st.integers(0, 15_000), st.integers(-1, 10_000), st.booleans()),
    st.tuples(st.just("on_not_found")),
    st.tuples(st.just("on_limited"), st.integers(-10, 5000)),
)


@given(LIMITS, LIMITS, st.booleans(), st.lists(st.tuples(ANSWERS, st.integers(0, 70))))
@example(NONE, Limits(pause=FetchPause(0, 11, 0)), True, [(("on_fetched", 0, 0, False), 0)])
def test_a_reader_that_waits_as_demanded_may_fetch(
    default: Limits, group: Limits, filtered: bool, life: list[tuple[tuple[object, ...], int]]
) -> None:
    reader = Reader(default=default, group=group, filtered=filtered)
    for (name, *values), later in life:
        getattr(reader.throttle, str(name))(*values)
        wait = reader.wait
        assert wait == 0 or 0.01 < wait < 5.000001  # the clock is a sum of floats
        if wait and name == "on_fetched":
            assert reader.throttle.one_at_a_time
        reader.advance(wait)
        assert reader.wait == 0
        reader.advance(later)
