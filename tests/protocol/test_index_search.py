# SPDX-License-Identifier: Apache-2.0
"""A search finds the first message that is not earlier, with few probes, whatever else the store has."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.simulated_store import UNIT, Fetched, Limits, Message, SimulatedStore
from tubemq_spark.protocol import index_search
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.fetched_batch import StoredMessage, key_of
from tubemq_spark.protocol.index_search import (
    NEIGHBOURHOOD,
    Reply,
    Search,
    outside_repeated_hour,
    time_in,
    whole_minute,
)
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_payload
from tubemq_spark.protocol.message_columns import WireMessage

OURS, OTHERS = 7, 8
MINUTE = 60_000_000
SMALL = Limits(file_entries=5, memory_entries=6, first_messages=3, messages=4)
MOST_PROBES = 2000


@dataclass
class TimedStore:
    """A store whose messages have times, in minutes."""

    store: SimulatedStore
    times: dict[tuple[int, int], int] = field(default_factory=dict)
    ours: list[tuple[int, int]] = field(default_factory=list)  # positions and times of our messages
    probes: int = 0
    fetches: int = 0

    def append(self, partition: int, minute: int | None = None, *, unreadable: bool = False) -> None:
        self.store.append(partition, unreadable=unreadable)
        message = self.store.entries[-1].message
        if message is not None and minute is not None:
            self.times[key_of(message)] = minute * MINUTE
            if partition == OURS:
                self.ours.append(((len(self.store.entries) - 1) * UNIT, minute))

    def search(self, minute: int, neighbourhood: int = NEIGHBOURHOOD, *, seconds: int = 0) -> int:
        moment = minute * MINUTE + seconds * 1_000_000
        search = Search(whole_minute(moment), self.earliest, self.end, self.time_of, neighbourhood=neighbourhood)
        while (probe := search.next_probe()) is not None:
            assert self.earliest <= probe.position <= self.end
            self.probes += 1
            self.fetches += probe.fetches
            assert self.probes < MOST_PROBES, f"{search!r} does not come to an end"
            begin = self.store.seek(probe.position).curr_offset
            outcomes = [_outcome(self.store.fetch(OURS)) for _ in range(probe.fetches)]
            told = search.found(begin, outcomes, self.store.seek(0).max_offset)
            assert told or outcomes[0] in (NotFound.WAIT, Reply(begin, ())), f"{search!r} learns nothing: {outcomes}"
        assert search.position is not None
        return search.position

    def expected(self, minute: int) -> int:
        return next((at for at, time in self.ours if time >= minute and at >= self.earliest), self.end)

    def time_of(self, message: StoredMessage) -> int | None:
        return self.times.get(key_of(message))

    @property
    def earliest(self) -> int:
        return self.store.minimum * UNIT

    @property
    def end(self) -> int:
        return len(self.store.entries) * UNIT


def _outcome(answer: Fetched | NotFound) -> Reply | NotFound:
    return Reply(answer.begin, answer.messages) if isinstance(answer, Fetched) else answer


@st.composite
def timed_stores(draw: st.DrawFn, *, in_order: bool) -> TimedStore:
    """Messages of ours and of others, without a time, and some that no fetch returns; in files and in memory."""
    limits = draw(st.sampled_from([SMALL, Limits(), Limits(2, 1, 1, 1)]))
    timed = TimedStore(SimulatedStore(limits))
    sole = draw(st.booleans())
    minute = 0
    flushed, minimum = draw(st.integers(0, 80)), draw(st.integers(0, 80))
    kinds = st.sampled_from(["timed", "timed", "timed", "other", "untimed", "unreadable"])
    for number, (kind, step) in enumerate(draw(st.lists(st.tuples(kinds, st.integers(0, 3)), max_size=80))):
        minute = minute + step // 2 if in_order else step
        partition = OTHERS if kind == "other" and not sole else OURS
        timed.append(partition, None if kind == "untimed" else minute, unreadable=kind == "unreadable")
        if number == flushed:
            timed.store.flush()
            timed.store.expire(minimum)
    timed.store.busy, timed.store.stale = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return timed


@given(timed_stores(in_order=True), st.integers(0, 60), st.integers(0, 59), st.sampled_from([0, 1, 5, 1000]))
def test_result_is_exact_if_times_increase(timed: TimedStore, minute: int, seconds: int, neighbourhood: int) -> None:
    assert timed.search(minute, neighbourhood, seconds=seconds) == timed.expected(minute)


@given(timed_stores(in_order=False), st.integers(0, 4), st.sampled_from([0, 1, 5, 20]))
def test_result_is_exact_within_the_neighbourhood_if_times_do_not_increase(
    timed: TimedStore, minute: int, neighbourhood: int
) -> None:
    found, expected = timed.search(minute, neighbourhood), timed.expected(minute)
    last_earlier = max((at for at, time in timed.ours if time < minute), default=0)
    if last_earlier - expected <= neighbourhood * UNIT:
        assert found == expected
    else:
        assert found == timed.end or found in [at for at, time in timed.ours if time >= minute]


@lru_cache
def spread(size: int, share: int, *, untimed: range = range(0), per_fetch: int = 3000) -> TimedStore:
    """Return `size` entries: every `share`-th is ours, 1000 have the same minute, those in `untimed` have no time."""
    timed = TimedStore(SimulatedStore(Limits(first_messages=per_fetch, messages=per_fetch * 5 // 3)))
    for number in range(size):
        partition = OURS if number % share == 0 else OTHERS
        timed.append(partition, None if number in untimed else number // 1000)
        if number == size - size // 10 - 1:
            timed.store.flush()
    return timed


@pytest.mark.parametrize("size", [10, 1000, 40_000, pytest.param(200_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("share", [1, 3])
def test_a_search_takes_few_probes(size: int, share: int) -> None:
    """Where the partition owns the store, a few replies determine the position by counting."""
    timed = spread(size, share)
    for minute in random.Random(size).sample(range(-1, 202), 20):
        timed.probes = timed.fetches = 0
        assert timed.search(minute) == timed.expected(minute)
        halvings = math.ceil(math.log2(max(1, size / NEIGHBOURHOOD)))
        pinpointing = 1 if share == 1 else math.ceil(math.log2(5000)) + 1
        assert timed.probes <= halvings + 4 + pinpointing, "replies are short only where the files end"
        assert timed.fetches <= timed.probes + 16


def test_entries_without_times_are_read_at_most_twice() -> None:
    size, untimed = 80_000, range(10_000, 70_000)
    timed = spread(size, 1, untimed=untimed)
    assert timed.search(10) == timed.expected(10) == 70_000 * UNIT
    assert timed.fetches <= 2 * len(untimed) / 3000 + 4 * math.log2(size)


def test_a_search_samples_the_whole_store_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_search, "MOST_UNTIMED", 2_000)
    timed = spread(40_000, 1, untimed=range(2_000, 38_000))
    assert timed.search(38) == timed.expected(38) == 38_000 * UNIT


def test_entries_of_other_partitions_take_few_probes() -> None:
    timed = TimedStore(SimulatedStore())
    for number in range(60_000):
        timed.append(OURS if number in (1000, 50_000) else OTHERS, number // 1000)
        if number == 45_000:
            timed.store.flush()
    assert timed.search(1) == 1000 * UNIT
    timed.probes = timed.fetches = 0
    assert timed.search(2) == 50_000 * UNIT
    assert timed.probes <= 2 * 60_000 / (8 * 4000) + 2 * math.log2(60_000)


def one(number: int) -> Message:
    return Message(number, 0)


def test_messages_sent_during_a_search_count_as_behind_the_end() -> None:
    search = Search(0, 0, 2 * UNIT, lambda message: message.messageId * MINUTE - 2 * MINUTE)
    assert search.next_probe() == (0, 2)
    assert search.found(0, [Reply(0, [one(0), one(1), one(2)]), NotFound.END], 3 * UNIT)
    assert search.position == 2 * UNIT


def test_a_search_starts_again_after_a_truncation() -> None:
    search = Search(5 * MINUTE, 0, 5000 * UNIT, lambda message: message.messageId * MINUTE)
    assert search.next_probe() == (2500 * UNIT, 1)
    assert search.found(900 * UNIT, [NotFound.END], 900 * UNIT)
    assert search.next_probe() == (0, 2)
    assert search.found(0, [Reply(0, [one(4), one(3)]), NotFound.END], 900 * UNIT)
    assert search.position == 900 * UNIT


def test_a_search_goes_on_after_retention_removed_the_earliest_position() -> None:
    """The seek leads to the first entry that is left."""
    search = Search(5 * MINUTE, 0, 9 * UNIT, lambda message: message.messageId * MINUTE)
    assert search.next_probe() == (0, 2)
    assert search.found(6 * UNIT, [Reply(6 * UNIT, [one(4), one(8), one(9)]), NotFound.END], 9 * UNIT)
    assert search.position == 7 * UNIT


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [NotFound.WAIT],
        [Reply(3 * UNIT, [one(1)])],  # another client's fetch moved the cursor
        [Reply(0, [one(1)])],
        [NotFound.END],
    ],
)
def test_a_probe_that_tells_nothing_is_repeated(outcomes: list[Reply | NotFound]) -> None:
    search = Search(0, 2 * UNIT, 9 * UNIT, lambda message: 0)
    probe = search.next_probe()
    assert probe == (2 * UNIT, 2)
    assert not search.found(2 * UNIT, outcomes, 9 * UNIT)
    assert search.next_probe() == probe
    assert "SCANNING" in repr(search)


def test_replies_after_another_client_moved_the_cursor_are_not_used() -> None:
    search = Search(5 * MINUTE, 0, 9 * UNIT, lambda message: message.messageId * MINUTE)
    overlapping = [Reply(0, [one(1), one(2)]), Reply(UNIT, [one(7)])]
    assert search.found(0, overlapping, 9 * UNIT)
    assert search.next_probe() == (2 * UNIT, 4)


def stored(attributes: bytes, body: bytes = b"body", damage: int = 0) -> WireMessage:
    data, flag = encode_payload(body, attributes)
    return WireMessage(1, check_sum(data) ^ damage, data, flag)


TEN_PAST_MIDNIGHT = encode_attributes({"a": "b"}, None, "197001010010")


@pytest.mark.parametrize(
    ("message", "time"),
    [
        (stored(TEN_PAST_MIDNIGHT), 10 * MINUTE),
        (stored(b""), None),
        (stored(b"$msgType$=x"), None),
        (stored(b"$msgTime$=197013010010"), None),
        (stored(TEN_PAST_MIDNIGHT, damage=1), None),
        (WireMessage(1, check_sum(b"\x00\x00\x00\x09ab"), b"\x00\x00\x00\x09ab", 1), None),
    ],
)
def test_time_of_a_message(message: WireMessage, time: int | None) -> None:
    assert time_in(message, timezone.utc) == time


@pytest.mark.parametrize(
    ("zone", "given", "begin", "end"),
    [
        (timezone.utc, "2025-10-26T00:30:59+00:00", "2025-10-26T00:30+00:00", "2025-10-26T00:30+00:00"),
        (ZoneInfo("Europe/Berlin"), "2025-10-26T00:00+00:00", "2025-10-26T00:00+00:00", "2025-10-26T02:00+00:00"),
        (ZoneInfo("Europe/Berlin"), "2025-10-26T01:59:59+00:00", "2025-10-26T00:00+00:00", "2025-10-26T02:00+00:00"),
        (ZoneInfo("Europe/Berlin"), "2025-03-30T01:30+00:00", "2025-03-30T01:30+00:00", "2025-03-30T01:30+00:00"),
        (ZoneInfo("Australia/Lord_Howe"), "2026-04-04T15:10+00:00", "2026-04-04T14:30+00:00", "2026-04-04T15:30+00:00"),
        (ZoneInfo("Europe/Berlin"), "2025-10-26T04:00+02:00", "2025-10-26T02:00+00:00", "2025-10-26T02:00+00:00"),
        (ZoneInfo("America/New_York"), "0001-01-01T00:00+00:00", "0001-01-01T00:00+00:00", "0001-01-01T00:00+00:00"),
    ],
    ids=["none", "first", "last", "spring", "half an hour", "behind", "first day"],
)
def test_a_moment_leaves_the_hour_that_a_zone_repeats(zone: tzinfo, given: str, begin: str, end: str) -> None:
    moment = datetime.fromisoformat(given)
    for is_end, expected in ((False, begin), (True, end)):
        found = outside_repeated_hour(moment, zone, is_end=is_end)
        assert found.replace(second=0) == datetime.fromisoformat(expected)
