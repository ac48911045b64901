from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.client.consumer import fetch_throttle as pacing_module
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.protocol.flow_rules import DataLimit, EmptyWait, FetchPause, FlowRule, FlowRules, Limits

SHARE = 1000
LIMIT = DataLimit(start=0, end=2400, lag=100, per_minute=12 * SHARE, wait_ms=500)
NONE = Limits()
BEHIND = 101
NOON = 4 * 3600.0  # in GMT+8, on the first of January 1970


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing_module, "_told", set())


class Reader:
    """A reader whose time passes by `advance` alone."""

    def __init__(self, *, default: Limits = NONE, group: Limits = NONE, filtered: bool = False) -> None:
        self.now = 0.0
        rules = FlowRules(FlowRule("default", 11, "D", default), FlowRule("group", 22, "G", group))
        self.pacing = FetchThrottle(
            rules, filtered, where="1:demo:0 for group g", clock=lambda: self.now, wall=lambda: NOON + self.now
        )

    def advance(self, seconds: float) -> None:
        self.now += seconds

    @property
    def wait(self) -> float:
        return self.pacing.before_fetch()

    def heard(self, size: int, lag: int = BEHIND, *, slow: bool = False) -> float:
        """How long to wait afterwards."""
        self.pacing.heard([size // 2, size - size // 2], lag, slow)
        return self.wait


def test_without_rules_nothing_is_waited_for() -> None:
    reader = Reader()
    assert reader.wait == 0
    assert reader.heard(1 << 40) == 0
    reader.pacing.not_found()
    assert reader.wait == 0
    assert not reader.pacing.one_at_a_time
    assert not reader.pacing.esc_flow_ctrl


# Data limits


@pytest.mark.parametrize("owner", ["default", "group"])
def test_what_is_read_beyond_a_share_is_read_slowly(owner: str) -> None:
    reader = Reader(group=Limits((LIMIT,))) if owner == "group" else Reader(default=Limits((LIMIT,)))
    assert reader.heard(50 * SHARE) == 0  # what came before there was a limit is not counted
    assert reader.heard(SHARE - 1) == 0
    assert reader.heard(1) == 0.5
    reader.advance(0.25)
    assert reader.wait == 0.25
    reader.advance(0.25)
    assert reader.wait == 0
    assert reader.heard(1) == 0.5


def test_a_new_share_begins_after_five_seconds() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.heard(0)
    for _ in range(3):
        assert reader.heard(SHARE) == 0.5
        reader.advance(5)
        assert reader.heard(1) == 0.5
        reader.advance(0.5)
        assert reader.heard(0) == 0


def test_reading_beyond_the_shares_uses_up_the_minute() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.heard(0)
    assert reader.heard(4 * SHARE) == 0.5
    reader.advance(5.5)
    assert reader.heard(4 * SHARE) == 0  # the next share begins behind these
    assert reader.heard(4 * SHARE) == 0.5
    for _ in range(9):
        reader.advance(5.5)
        assert reader.heard(0) == 0.5
    reader.advance(5.5)
    assert reader.now == 60.5
    assert reader.heard(SHARE) == 0
    assert reader.heard(SHARE - 1) == 0


def test_a_limit_is_chosen_for_a_minute_by_the_last_lag() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    assert reader.heard(SHARE, 100) == 0
    assert reader.heard(SHARE, BEHIND) == 0
    reader.advance(60)
    assert reader.heard(SHARE, BEHIND) == 0
    reader.advance(0.5)
    reader.heard(0, -1)
    assert reader.heard(SHARE, 0) == 0.5


def test_without_a_lag_there_is_no_limit_yet() -> None:
    reader = Reader(group=Limits((LIMIT,)))
    for _ in range(3):
        assert reader.heard(50 * SHARE, -1) == 0
    assert reader.heard(SHARE, BEHIND) == 0
    assert reader.heard(SHARE, -1) == 0.5


@pytest.mark.parametrize(("start", "end", "limited"), [(1200, 1200, True), (0, 1159, False), (1201, 2400, False)])
def test_limits_have_their_hours(start: int, end: int, limited: bool) -> None:
    reader = Reader(group=Limits((LIMIT._replace(start=start, end=end),)))
    reader.heard(0)
    assert reader.heard(SHARE) == (0.5 if limited else 0)
    assert reader.pacing.esc_flow_ctrl is limited
    assert reader.pacing.one_at_a_time  # its hour may come while the reader reads


def test_the_broker_limits_by_the_default_rule_unless_the_group_has_a_limit_now() -> None:
    assert not Reader(default=Limits((LIMIT,))).pacing.esc_flow_ctrl
    reader = Reader(group=Limits((LIMIT._replace(end=1200),)))
    assert reader.pacing.esc_flow_ctrl
    reader.advance(60)
    assert not reader.pacing.esc_flow_ctrl


# Pauses


@pytest.mark.parametrize(
    ("filtered", "slow", "wait"), [(False, False, 0.1), (False, True, 0.1), (True, False, 0.2), (True, True, 0.3)]
)
def test_pauses_are_made_after_each_success(filtered: bool, slow: bool, wait: float) -> None:
    reader = Reader(default=Limits(pause=FetchPause(100, 200, 300)), filtered=filtered)
    assert reader.wait == 0
    for _ in range(3):
        assert reader.heard(0, 0, slow=slow) == pytest.approx(wait)
        reader.advance(wait)
        assert reader.wait == 0
    assert reader.pacing.one_at_a_time


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
def test_who_never_pauses_may_have_many_fetches_under_way(pause: FetchPause, filtered: bool, one: bool) -> None:
    assert Reader(group=Limits(pause=pause), filtered=filtered).pacing.one_at_a_time is one


def test_a_limit_that_is_used_up_goes_before_the_pause() -> None:
    reader = Reader(group=Limits((LIMIT,), pause=FetchPause(2000, 0, 0)))
    assert reader.heard(0) == 2
    reader.advance(2)
    assert reader.heard(SHARE) == 0.5


def test_a_wait_of_a_few_milliseconds_is_none() -> None:
    assert Reader(group=Limits(pause=FetchPause(10, 0, 0))).heard(0) == 0
    assert Reader(group=Limits(pause=FetchPause(11, 0, 0))).heard(0) == 0.011


# Fetches without messages


def test_empty_answers_in_a_row_are_counted() -> None:
    reader = Reader(group=Limits(empty=(EmptyWait(4, 800), EmptyWait(2, 300))))
    for _ in range(2):
        waits = []
        for _ in range(5):
            reader.pacing.not_found()
            waits.append(reader.wait)
            reader.advance(reader.wait)
        assert waits == pytest.approx([0, 0.3, 0.3, 0.8, 0.8])
        assert reader.heard(0) == 0  # a success, be it an empty one
    assert not reader.pacing.one_at_a_time


def test_a_452_does_not_count_among_empty_answers() -> None:
    reader = Reader(group=Limits(empty=(EmptyWait(2, 700),)))
    reader.pacing.not_found()
    reader.pacing.limited(300)
    reader.advance(0.3)
    reader.pacing.not_found()
    assert reader.wait == pytest.approx(0.7)


@pytest.mark.parametrize(("asked", "wait"), [(500, 0.5), (200, 0.2), (0, 0.2), (-500, 0.2), (60_000, 60)])
def test_a_452_is_waited_for_as_it_asks(asked: int, wait: float) -> None:
    reader = Reader()
    reader.pacing.limited(asked)
    assert reader.wait == wait
    reader.advance(wait)
    assert reader.wait == 0


def test_the_longest_of_several_waits_counts() -> None:
    reader = Reader()
    for asked in (300, 900, 200):
        reader.pacing.limited(asked)
    assert reader.wait == 0.9


@pytest.mark.parametrize("answer", [FetchThrottle.not_found, lambda pacing: pacing.limited(200)], ids=["404", "452"])
def test_a_share_ends_with_any_answer(answer: Callable[[FetchThrottle], None]) -> None:
    reader = Reader(group=Limits((LIMIT,)))
    reader.heard(0)
    assert reader.heard(SHARE) == 0.5
    reader.advance(5.5)
    answer(reader.pacing)
    reader.advance(1)
    assert reader.heard(SHARE - 1) == 0
    assert reader.heard(1) == 0.5


DAYS = 2**31 - 1  # milliseconds: 24 days, the longest wait that a rule or a broker can name
LONGEST = 300.0  # seconds that are obeyed at a time
DEMANDS: dict[str, tuple[Limits, Callable[[Reader], object]]] = {
    "data": (Limits((LIMIT._replace(wait_ms=DAYS),)), lambda reader: [reader.heard(0), reader.heard(SHARE)]),
    "empty": (Limits(empty=(EmptyWait(1, DAYS),)), lambda reader: reader.pacing.not_found()),
    "452": (NONE, lambda reader: reader.pacing.limited(DAYS)),
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_no_server_makes_a_reader_wait_for_days(demand: str, caplog: pytest.LogCaptureFixture) -> None:
    limits, happen = DEMANDS[demand]
    reader = Reader(default=limits)
    happen(reader)
    assert reader.wait == LONGEST
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "with waits of 2147484 s, of which 300 s are obeyed at a time" in record.message
    reader.advance(LONGEST)
    assert reader.wait == 0


def test_what_is_said_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing_module, "_MOST_TOLD", 10)
    for number in range(100):
        FetchThrottle(FlowRules(), filtered=False, where=str(number)).limited(300)
    assert len(pacing_module._told) <= 10


# The log

HAPPENINGS: dict[str, tuple[Callable[[Reader], object], int, str]] = {
    "data": (
        lambda reader: [reader.heard(0), reader.heard(SHARE)],
        logging.WARNING,
        "who lags by more than 100 B reads 0 MiB a minute at most, by the group flow control rule 22 G",
    ),
    "pause": (
        lambda reader: reader.heard(0),
        logging.WARNING,
        "there is a pause after each fetch, by the group flow control rule 22 G",
    ),
    "empty": (
        lambda reader: reader.pacing.not_found(),
        logging.INFO,
        "there is a pause after fetches that find nothing, 1 or more in a row, by the default flow control rule 11 D",
    ),
    "452": (
        lambda reader: reader.pacing.limited(300),
        logging.WARNING,
        "the broker limits the speed (452), by the default flow control rule 11 D",
    ),
}


def limited_reader() -> Reader:
    return Reader(group=Limits((LIMIT,), pause=FetchPause(50, 0, 0)), default=Limits(empty=(EmptyWait(1, 300),)))


@pytest.mark.parametrize("happening", HAPPENINGS)
def test_each_limit_is_said_once(happening: str, caplog: pytest.LogCaptureFixture) -> None:
    happen, level, words = HAPPENINGS[happening]
    with caplog.at_level(logging.INFO, pacing_module.__name__):
        for reader in (limited_reader(), limited_reader()):
            for _ in range(3):
                happen(reader)
    said = [record for record in caplog.records if words in record.message]
    assert [record.levelno for record in said] == [level]
    assert said[0].message.startswith("1:demo:0 for group g is read more slowly, as the cluster wants it: ")


def test_a_broker_may_limit_by_a_rule_that_nobody_told(caplog: pytest.LogCaptureFixture) -> None:
    FetchThrottle(FlowRules(), filtered=False).limited(300)
    assert caplog.messages == [
        "a partition is read more slowly, as the cluster wants it: the broker limits the speed (452), by the default "
        "flow control rule"
    ]


def test_rules_that_make_nobody_wait_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, pacing_module.__name__):
        reader = Reader(group=Limits((LIMIT,), (EmptyWait(2, 5),), FetchPause(0, 9, 9)))
        reader.heard(0)
        reader.pacing.not_found()
    assert caplog.records == []


# Any life

LIMITS = st.builds(
    Limits,
    st.lists(st.builds(DataLimit, st.just(0), st.just(2400), *[st.integers(0, 5000)] * 3), max_size=2).map(tuple),
    st.lists(st.builds(EmptyWait, st.integers(1, 4), st.integers(0, 5000)), max_size=2).map(tuple),
    st.none() | st.builds(FetchPause, *[st.integers(0, 5000)] * 3),
)
ANSWERS = st.one_of(
    st.tuples(st.just("heard"), st.lists(st.integers(0, 5000), max_size=3), st.integers(-1, 10_000), st.booleans()),
    st.tuples(st.just("not_found")),
    st.tuples(st.just("limited"), st.integers(-10, 5000)),
)


@given(LIMITS, LIMITS, st.booleans(), st.lists(st.tuples(ANSWERS, st.integers(0, 70))))
def test_who_waits_as_told_may_fetch(
    default: Limits, group: Limits, filtered: bool, life: list[tuple[tuple[object, ...], int]]
) -> None:
    reader = Reader(default=default, group=group, filtered=filtered)
    for (name, *values), later in life:
        getattr(reader.pacing, str(name))(*values)
        wait = reader.wait
        assert wait == 0 or 0.01 < wait < 5.000001  # the clock is a sum of floats
        if wait and name == "heard":
            assert reader.pacing.one_at_a_time
        reader.advance(wait)
        assert reader.wait == 0
        reader.advance(later)
