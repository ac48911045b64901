# SPDX-License-Identifier: Apache-2.0
"""Binary search over the index: finds the first message of a partition that is not earlier than a moment.

TubeMQ cannot look up offsets by time. The only time that a message has is its attribute `$msgTime$`, which a client
sees when it reads the message. So a search probes: a seek and one fetch or more at a position. The first message with a
time decides in which half the search goes on. Messages without a time, or with an invalid one, are skipped. What such
a time is worth:

* It is from the producer's clock, in whole minutes. So the moment is rounded down to its minute, and all messages of
  that minute count as not earlier.
* It has no time zone. In a zone with summer time one hour of the year is ambiguous and counts as the first of the two,
  so the times of the second hour repeat those of the first. No search can tell the two apart: a read that begins in
  them begins at the first one, and a read that ends in them ends behind the second one (`outside_repeated_hour`).
* It need not increase. So the search also reads `NEIGHBOURHOOD` index entries before the last message that it knows to
  be earlier, and returns the first message there that is not earlier. The result is exact if no message that is not
  earlier is more than `NEIGHBOURHOOD` entries before an earlier one. Otherwise it is some message that is not earlier,
  and none of the entries that were read before it is; which one depends on the course of the search.

Without any times the search would read the whole partition twice. So after `MOST_UNTIMED` messages without a time it
samples `_SAMPLES` positions all over the index, and gives up if no message there has a time.

Several partitions may share the index. A reply says at which entry the fetch began, but not where its messages are.
Each message has its own entry, which gives bounds for its position on both sides; they meet where all entries belong to
the partition. Elsewhere the search pinpoints the position by bisection too: it is the last position from which this
message, or one known to be before it, comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.fetched_batch import StoredMessage, key_of
from tubemq_spark.protocol.message import check_sum, decode_attributes, split_payload

NEIGHBOURHOOD = 1000  # index entries: what producers send at the same time comes in any order, but near
MOST_UNTIMED = 100_000  # messages
_SAMPLES = 32  # positions
_MINUTE = 60_000_000  # microseconds
_A_MINUTE = timedelta(minutes=1)

# Fetches of a probe. The second one shows where the first ended. More of them pass stretches without times, and even
# more pass stretches without messages of the partition, because the replies are small there.
_ONE, _BOUNDED, _PASSING, _PASSING_OTHERS = 1, 2, 4, 8

_PASSES_TO_END = 3  # a store has two memory blocks: see `exact_range`


TimeOf = Callable[[StoredMessage], int | None]


class Payload(StoredMessage, Protocol):
    """A message with its contents (the wire's TransferedMessage has them)."""

    @property
    def payLoadData(self) -> bytes: ...  # noqa: N802
    @property
    def flag(self) -> int: ...


def time_in(message: Payload, zone: tzinfo) -> int | None:
    """Return the message's time in microseconds since the epoch, or None if it has none or its bytes are damaged."""
    if check_sum(message.payLoadData) != message.checkSum:
        return None
    try:
        attributes, _ = split_payload(message.payLoadData, message.flag)
    except ProtocolError:
        return None
    return decode_attributes(attributes, zone).msg_time


def whole_minute(moment: int) -> int:
    """Round `moment`, in microseconds since the epoch, down to its minute."""
    return moment - moment % _MINUTE


def outside_repeated_hour(moment: datetime, zone: tzinfo, *, is_end: bool) -> datetime:
    """Return `moment`. In an hour that clocks of `zone` show twice, return the beginning of the first one, or for the
    end of a read the end of the second one."""
    if not _is_repeated(moment, zone):
        return moment
    minute = moment.astimezone(timezone.utc).replace(second=0, microsecond=0)
    if is_end:
        while _is_repeated(minute, zone):
            minute += _A_MINUTE
    else:
        while _is_repeated(minute - _A_MINUTE, zone):
            minute -= _A_MINUTE
    return minute


def _is_repeated(moment: datetime, zone: tzinfo) -> bool:
    try:
        local = moment.astimezone(timezone.utc).astimezone(zone)  # no clock of `zone` may show `moment` itself
    except OverflowError:  # on the first or last day that Python knows
        return False
    return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


class Probe(NamedTuple):
    """A seek to `position`, and the number of fetches behind it."""

    position: int
    fetches: int


class Reply(NamedTuple):
    """The messages that a fetch from `begin` on returned, in order."""

    begin: int
    messages: Sequence[StoredMessage]


class SearchState(Enum):
    BISECTING = auto()  # finds the entries that must be read one after another
    SCANNING = auto()  # reads them for the first message that is not earlier
    PINPOINTING = auto()  # finds the position of that message
    SAMPLING = auto()  # finds out whether any message has a time
    DONE = auto()
    HOPELESS = auto()


class _Window(NamedTuple):
    """A reply; all its messages are before position `end`."""

    begin: int
    end: int
    messages: Sequence[StoredMessage]


class Times:
    """The times of the messages that were read."""

    def __init__(self, time_of: TimeOf) -> None:
        self._time_of = time_of
        self.untimed = 0  # messages until one had a time
        self.are_found = False

    def of(self, message: StoredMessage) -> int | None:
        time = self._time_of(message)
        self.are_found = self.are_found or time is not None
        self.untimed += not self.are_found
        return time


@dataclass
class _Reading:
    """Reads from `start` until a message decides. That there is none before `limit` decides too. The next probe has so
    many `fetches` at position `at`.
    """

    start: int
    limit: int
    fetches: int
    at: int = -1

    def __post_init__(self) -> None:
        self.at = self.start


class Search:
    """Finds `position`: of the first message in [earliest, end) that is not earlier than `moment`, else `end`.

    Positions are bytes of the index. `moment` and the results of `time_of` may be any numbers that increase along the
    log, such as times; `time_of` returns None for a message without. `neighbourhood` is in index entries, see above.

    The search `is_hopeless` if no message has a time.
    """

    def __init__(
        self, moment: int, earliest: int, end: int, time_of: TimeOf, *, neighbourhood: int = NEIGHBOURHOOD
    ) -> None:
        self._samples: list[int] | None = None  # positions still to sample, the next one last; None: not needed so far
        self._moment = moment
        self._earliest = earliest
        self.times = Times(time_of)
        self._neighbourhood = neighbourhood * UNIT
        self._usual_fetches = _ONE  # `_BOUNDED` after a probe that found no time
        self._distances: Mapping[tuple[int, int], int] = {}  # of messages before the wanted one, in entries
        self._bisect(end)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.name} in [{self._low}, {self._high}) at {self._reading.at}>"

    def next_probe(self) -> Probe | None:
        """Return what to probe next, None if the position is known, or never will be."""
        is_over = self._state in (SearchState.DONE, SearchState.HOPELESS)
        return None if is_over else Probe(self._reading.at, self._reading.fetches)

    @property
    def position(self) -> int | None:
        return self._low if self._state is SearchState.DONE else None

    @property
    def is_hopeless(self) -> bool:
        return self._state is SearchState.HOPELESS

    def finish(self, position: int) -> None:
        """End the search with this position."""
        self._state = SearchState.DONE
        self._low = position

    def found(self, begin: int, outcomes: Sequence[Reply | NotFound], max_offset: int) -> bool:
        """Process a probe: the seek led to `begin`, the fetches to `outcomes`, and the store ended at `max_offset`.

        Return False if that told nothing new. The same probe should be repeated a little later.
        """
        before = self._progress()
        if max_offset < self._end:
            self._bisect(max_offset)  # the store lost its tail, and maybe messages on which the search relies
            return True
        windows, over = _windows(begin, outcomes, max_offset)
        if windows or over or (self._state is SearchState.SAMPLING and NotFound.PASSED in outcomes):
            over = over or _reached(windows) >= self._reading.limit
            _HANDLERS[self._state](self, windows, over)
        elif NotFound.PASSED in outcomes:
            self._reading.fetches = _PASSING_OTHERS
        return self._progress() != before

    def _progress(self) -> tuple[object, ...]:
        return self._state, self._low, self._high, self._reading.at, self._reading.fetches

    # What to probe next

    def _bisect(self, end: int) -> None:
        self._end = end
        self._state = SearchState.BISECTING
        self._low, self._high = self._earliest, end  # an earlier message is at low - UNIT or behind; none is at high
        self._halve()

    def _halve(self) -> None:
        if self._high - self._low > self._neighbourhood:
            self._reading = _Reading(_middle(self._low, self._high), self._high, self._usual_fetches)
        else:
            self._state = SearchState.SCANNING
            begin = max(self._earliest, self._low - UNIT - self._neighbourhood)
            self._reading = _Reading(begin, self._end, _BOUNDED)
            if begin >= self._end:
                self.finish(self._end)

    def _pinpoint(self, low: int, high: int) -> None:
        """The wanted message is in [low, high)."""
        self._state = SearchState.PINPOINTING
        self._low, self._high = low, high
        if high - low > UNIT:
            self._reading = _Reading(_middle(low, high), high, self._usual_fetches)
        else:
            self.finish(min(low, self._end))

    def _read_on(self, windows: Sequence[_Window]) -> None:
        """No message of `windows` decides."""
        if not self.times.are_found and self.times.untimed >= MOST_UNTIMED and self._samples is None:
            entries = (self._end - self._earliest) // UNIT
            positions = {self._earliest + entries * number // _SAMPLES * UNIT for number in range(_SAMPLES)}
            self._samples = sorted(positions | {max(self._earliest, self._end - self._neighbourhood)})
            self._sample_next()
            return
        self._usual_fetches = _BOUNDED
        self._reading.at = max(self._reading.at, _reached(windows))
        self._reading.fetches = _PASSING if any(window.messages for window in windows) else _PASSING_OTHERS

    def _sample_next(self) -> None:
        assert self._samples is not None
        if self._samples:
            self._state = SearchState.SAMPLING
            self._reading = _Reading(self._samples.pop(), self._end, _ONE)
        else:
            self._state = SearchState.HOPELESS

    # What probes found

    def _narrow(self, windows: Sequence[_Window], over: bool) -> None:
        first = next(self._timed(windows), None)
        if first is None and not over:
            self._read_on(windows)
            return
        if first is None or first[1] >= self._moment:
            self._high = self._reading.start
        else:
            last = next(self._timed(windows, backwards=True), first)
            if last[1] < self._moment:
                self._low = last[0] + UNIT
            else:
                self._low = self._high = first[0] + UNIT
        self._halve()

    def _timed(self, windows: Sequence[_Window], *, backwards: bool = False) -> Iterator[tuple[int, int]]:
        """Yield (position, time) of the messages with a time. A message is at its position or behind it."""
        step = -1 if backwards else 1
        for window in windows[::step]:
            for index in range(len(window.messages))[::step]:
                time = self.times.of(window.messages[index])
                if time is not None:
                    yield window.begin + index * UNIT, time

    def _sample(self, windows: Sequence[_Window], _: bool) -> None:
        if any(self._timed(windows)):
            self._bisect(self._end)
        else:
            self._sample_next()

    def _scan(self, windows: Sequence[_Window], over: bool) -> None:
        for begin, end, messages in windows:
            for index, message in enumerate(messages):
                time = self.times.of(message)
                if time is None or time < self._moment:
                    continue
                self._distances = {key_of(other): index - number for number, other in enumerate(messages[: index + 1])}
                # Messages at the end or behind it count as being at the end.
                low = min(begin + index * UNIT, self._end)
                high = min(end - (len(messages) - index) * UNIT, self._end) + UNIT
                self._pinpoint(low, high)
                if self._state is SearchState.PINPOINTING:
                    # Where each entry is a message of the partition, another message comes next: one probe suffices.
                    self._reading = _Reading(low + UNIT, high, _ONE)
                return
        if over:
            self.finish(self._end)
        else:
            self._read_on(windows)

    def _locate(self, windows: Sequence[_Window], over: bool) -> None:
        found = next((window for window in windows if window.messages), None)
        distance = None if found is None else self._distances.get(key_of(found.messages[0]))
        if found is not None and distance is not None:
            behind = len(found.messages) - distance  # the wanted one and those after it, if the reply reaches that far
            high = min(self._high, found.end - behind * UNIT + UNIT) if behind > 0 else self._high
            self._pinpoint(found.begin + distance * UNIT, high)
        elif found is not None or over:
            self._pinpoint(self._low, self._reading.start)
        else:
            self._read_on(windows)


_HANDLERS: Mapping[SearchState, Callable[[Search, Sequence[_Window], bool], None]] = {
    SearchState.BISECTING: Search._narrow,
    SearchState.SCANNING: Search._scan,
    SearchState.PINPOINTING: Search._locate,
    SearchState.SAMPLING: Search._sample,
}


def _windows(begin: int, outcomes: Sequence[Reply | NotFound], max_offset: int) -> tuple[list[_Window], bool]:
    """Return the replies that follow each other from `begin` on, and whether the log ended behind them."""
    replies: list[Reply] = []
    passed = 0
    over = False
    for outcome in outcomes:
        if isinstance(outcome, Reply):
            least = replies[-1].begin + len(replies[-1].messages) * UNIT if replies else begin
            if outcome.begin < least or (not replies and not passed and outcome.begin > begin):
                break  # another client moved the cursor
            replies.append(outcome)
        elif outcome is NotFound.PASSED:
            passed += 1
        elif outcome is NotFound.END and not replies and not passed and begin < max_offset:
            break  # likewise: the log does not end at `begin`
        over = outcome is NotFound.END or passed == _PASSES_TO_END
        if over or outcome is NotFound.WAIT:
            break
    ends = [reply.begin for reply in replies[1:]] + [max_offset]
    return [_Window(at, end, messages) for (at, messages), end in zip(replies, ends, strict=False)], over


def _reached(windows: Sequence[_Window]) -> int:
    """Return a position before which everything was read. Each message has at least one entry of its own."""
    return windows[-1].begin + len(windows[-1].messages) * UNIT if windows else -1


def _middle(low: int, high: int) -> int:
    return low + (high - low) // UNIT // 2 * UNIT
