"""The first message that is not earlier is found, with few probes, whatever the store holds besides."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.simulated_store import UNIT, Fetched, Limits, Message, SimulatedStore
from tubemq_spark.protocol import time_search
from tubemq_spark.protocol.fetched_batch import StoredMessage, key_of
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_payload
from tubemq_spark.protocol.not_found import NotFound
from tubemq_spark.protocol.time_search import NEIGHBOURHOOD, Reply, TimeSearch, time_in

OURS, OTHERS = 7, 8
MINUTE = 60_000_000
SMALL = Limits(file_entries=5, memory_entries=6, first_messages=3, messages=4)
MOST_PROBES = 2000


@dataclass
class Shelf:
    """A store whose messages have times, in minutes."""

    store: SimulatedStore
    times: dict[tuple[int, int], int] = field(default_factory=dict)
    timed: list[tuple[int, int]] = field(default_factory=list)  # positions and times of ours
    probes: int = 0
    fetches: int = 0

    def append(self, partition: int, minute: int | None = None, *, poisoned: bool = False) -> None:
        self.store.append(partition, poisoned=poisoned)
        message = self.store.entries[-1].message
        if message is not None and minute is not None:
            self.times[key_of(message)] = minute * MINUTE
            if partition == OURS:
                self.timed.append(((len(self.store.entries) - 1) * UNIT, minute))

    def search(self, minute: int, neighbourhood: int = NEIGHBOURHOOD, *, seconds: int = 0) -> int:
        moment = minute * MINUTE + seconds * 1_000_000
        search = TimeSearch(moment, self.earliest, self.end, self.time_of, neighbourhood=neighbourhood)
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
        return next((at for at, time in self.timed if time >= minute and at >= self.earliest), self.end)

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
def shelves(draw: st.DrawFn, *, in_order: bool) -> Shelf:
    """Some of ours, some of others, some without a time, some that no fetch gives out; in files and in memory."""
    limits = draw(st.sampled_from([SMALL, Limits(), Limits(2, 1, 1, 1)]))
    shelf = Shelf(SimulatedStore(limits))
    sole = draw(st.booleans())
    minute = 0
    kinds = st.sampled_from(["timed", "timed", "timed", "other", "untimed", "poisoned"])
    for kind, step in draw(st.lists(st.tuples(kinds, st.integers(0, 3)), max_size=80)):
        minute = minute + step // 2 if in_order else step
        partition = OTHERS if kind == "other" and not sole else OURS
        shelf.append(partition, None if kind == "untimed" else minute, poisoned=kind == "poisoned")
    size = len(shelf.store.entries)
    shelf.store.backup = draw(st.integers(0, size))
    shelf.store.flushed = draw(st.integers(0, shelf.store.backup))
    shelf.store.minimum = draw(st.integers(0, max(0, shelf.store.flushed - 1)))
    shelf.store.busy, shelf.store.stale = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return shelf


@given(shelves(in_order=True), st.integers(0, 60), st.integers(0, 59), st.sampled_from([0, 1, 5, 1000]))
def test_exact_where_times_grow(shelf: Shelf, minute: int, seconds: int, neighbourhood: int) -> None:
    assert shelf.search(minute, neighbourhood, seconds=seconds) == shelf.expected(minute)


@given(shelves(in_order=False), st.integers(0, 4), st.sampled_from([0, 1, 5, 20]))
def test_exact_within_the_neighbourhood_where_they_do_not(shelf: Shelf, minute: int, neighbourhood: int) -> None:
    found, expected = shelf.search(minute, neighbourhood), shelf.expected(minute)
    last_earlier = max((at for at, time in shelf.timed if time < minute), default=0)
    if last_earlier - expected <= neighbourhood * UNIT:
        assert found == expected
    else:
        assert found == shelf.end or found in [at for at, time in shelf.timed if time >= minute]


def spread(size: int, share: int, *, untimed: range = range(0)) -> Shelf:
    """`size` entries, every `share`-th is ours, a thousand a minute; those in `untimed` have no time."""
    shelf = Shelf(SimulatedStore(Limits(first_messages=3000, messages=5000)))
    for number in range(size):
        partition = OURS if number % share == 0 else OTHERS
        shelf.append(partition, None if number in untimed else number // 1000)
    shelf.store.backup = shelf.store.flushed = size - size // 10
    return shelf


@pytest.mark.parametrize("size", [10, 1000, 50_000, 200_000])
@pytest.mark.parametrize("share", [1, 3])
def test_few_probes(size: int, share: int) -> None:
    """A store of one's own needs no search for the position: some replies count it out."""
    shelf = spread(size, share)
    for minute in random.Random(size).sample(range(-1, 202), 20):
        shelf.probes = shelf.fetches = 0
        assert shelf.search(minute) == shelf.expected(minute)
        halvings = math.ceil(math.log2(max(1, size / NEIGHBOURHOOD)))
        pinpointing = 1 if share == 1 else math.ceil(math.log2(5000)) + 1
        assert shelf.probes <= halvings + 4 + pinpointing, "replies are short only where the files end"
        assert shelf.fetches <= shelf.probes + 16


def test_entries_without_times_are_read_at_most_twice() -> None:
    size, untimed = 200_000, range(20_000, 180_000)
    shelf = spread(size, 1, untimed=untimed)
    assert shelf.search(20) == shelf.expected(20) == 180_000 * UNIT
    assert shelf.fetches <= 2 * len(untimed) / 3000 + 4 * math.log2(size)


def probe_all(shelf: Shelf, search: TimeSearch) -> None:
    while (probe := search.next_probe()) is not None:
        shelf.fetches += probe.fetches
        begin = shelf.store.seek(probe.position).curr_offset
        search.found(
            begin, [_outcome(shelf.store.fetch(OURS)) for _ in range(probe.fetches)], shelf.store.seek(0).max_offset
        )


@pytest.mark.parametrize("share", [1, 3])
def test_a_store_without_any_time_is_not_read_as_a_whole(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "MOST_UNTIMED", 10_000)
    shelf = spread(300_000, share, untimed=range(300_000))
    search = TimeSearch(0, 0, shelf.end, shelf.time_of)
    probe_all(shelf, search)
    assert search.is_hopeless
    assert search.position is None
    assert not search.has_times
    assert search.untimed >= 10_000
    assert shelf.fetches <= 10_000 * share / 3000 + 33 + 16


def test_long_stretches_without_times_are_read_where_others_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search looks all over the store before it gives up."""
    monkeypatch.setattr(time_search, "MOST_UNTIMED", 10_000)
    shelf = spread(100_000, 1, untimed=range(5_000, 95_000))
    assert shelf.search(95) == shelf.expected(95) == 95_000 * UNIT


def test_entries_of_others_are_passed_quickly() -> None:
    shelf = Shelf(SimulatedStore())
    for number in range(200_000):
        shelf.append(OURS if number in (1000, 190_000) else OTHERS, number // 1000)
    shelf.store.backup = shelf.store.flushed = 150_000
    assert shelf.search(1) == 1000 * UNIT
    shelf.probes = shelf.fetches = 0
    assert shelf.search(2) == 190_000 * UNIT
    assert shelf.probes <= 2 * 200_000 / (8 * 4000) + 2 * math.log2(200_000)


def test_nothing_is_asked_of_an_empty_store() -> None:
    search = TimeSearch(0, 5 * UNIT, 5 * UNIT, lambda message: None)
    assert search.next_probe() is None
    assert search.position == 5 * UNIT


def one(number: int) -> Message:
    return Message(number, 0)


def test_what_was_sent_meanwhile_stands_behind_the_end() -> None:
    """An answer that came later may show more than there was when the search began."""
    search = TimeSearch(0, 0, 2 * UNIT, lambda message: message.messageId * MINUTE - 2 * MINUTE)
    assert search.next_probe() == (0, 2)
    assert search.found(0, [Reply(0, [one(0), one(1), one(2)]), NotFound.END], 3 * UNIT)
    assert search.position == 2 * UNIT


def test_a_store_that_lost_its_tail_is_searched_anew() -> None:
    search = TimeSearch(5 * MINUTE, 0, 5000 * UNIT, lambda message: message.messageId * MINUTE)
    assert search.next_probe() == (2500 * UNIT, 1)
    assert search.found(900 * UNIT, [NotFound.END], 900 * UNIT)
    assert search.next_probe() == (0, 2)
    assert search.found(0, [Reply(0, [one(4), one(3)]), NotFound.END], 900 * UNIT)
    assert search.position == 900 * UNIT


def test_retention_overtakes_a_search() -> None:
    """What was the earliest position is gone: the seek leads to the first that is left."""
    search = TimeSearch(5 * MINUTE, 0, 9 * UNIT, lambda message: message.messageId * MINUTE)
    assert search.next_probe() == (0, 2)
    assert search.found(6 * UNIT, [Reply(6 * UNIT, [one(4), one(8), one(9)]), NotFound.END], 9 * UNIT)
    assert search.position == 7 * UNIT


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [NotFound.WAIT],
        [Reply(3 * UNIT, [one(1)])],  # somebody else's fetch moved the cursor
        [Reply(0, [one(1)])],
    ],
)
def test_a_probe_that_tells_nothing_is_made_again(outcomes: list[Reply | NotFound]) -> None:
    search = TimeSearch(0, 2 * UNIT, 9 * UNIT, lambda message: 0)
    probe = search.next_probe()
    assert probe == (2 * UNIT, 2)
    assert not search.found(2 * UNIT, outcomes, 9 * UNIT)
    assert search.next_probe() == probe
    assert "SCANNING" in repr(search)


def test_what_came_after_a_foreign_move_is_not_used() -> None:
    search = TimeSearch(5 * MINUTE, 0, 9 * UNIT, lambda message: message.messageId * MINUTE)
    overlapping = [Reply(0, [one(1), one(2)]), Reply(UNIT, [one(7)])]
    assert search.found(0, overlapping, 9 * UNIT)
    assert search.next_probe() == (2 * UNIT, 4)


@dataclass
class Payload:
    payLoadData: bytes  # noqa: N815
    flag: int
    checkSum: int  # noqa: N815
    messageId: int = 1  # noqa: N815


def stored(attributes: bytes, body: bytes = b"body", damage: int = 0) -> Payload:
    data, flag = encode_payload(body, attributes)
    return Payload(data, flag, check_sum(data) ^ damage)


TEN_PAST_MIDNIGHT = encode_attributes({"a": "b"}, None, "197001010010")


@pytest.mark.parametrize(
    ("message", "time"),
    [
        (stored(TEN_PAST_MIDNIGHT), 10 * MINUTE),
        (stored(b""), None),
        (stored(b"$msgType$=x"), None),
        (stored(b"$msgTime$=197013010010"), None),
        (stored(TEN_PAST_MIDNIGHT, damage=1), None),
        (Payload(b"\x00\x00\x00\x09ab", 1, check_sum(b"\x00\x00\x00\x09ab")), None),
    ],
)
def test_the_time_of_a_message(message: Payload, time: int | None) -> None:
    assert time_in(message, timezone.utc) == time
