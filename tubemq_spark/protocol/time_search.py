"""Finding the first message of a partition that is not earlier than a moment.

TubeMQ has no look-up by time for consumers: what a message carries is `$msgTime$`, and where it stands shows only when
it is read. So the store's index is bisected by reading: a probe is a seek and a fetch or a few behind it, and what the
first message with a time says halves the rest. A message without a time, or with a bad one, says nothing and is
stepped over. What such a time is worth:

* It is the producer's, by the producer's clock, and knows minutes only: the moment is rounded down to its minute, and
  all messages of that minute count as not earlier.
* It names no zone. In a zone with summer time the hour that stands twice on the clock counts as the first of the two,
  so the second one repeats the first one's times.
* It need not grow. Where bisecting has come to, a neighbourhood of `NEIGHBOURHOOD` index entries before the last
  message known to be earlier is read too, and the first message there that is not earlier is the answer. So the answer
  is exact as long as no message that is not earlier stands more than `NEIGHBOURHOOD` entries before one that is.
  Otherwise it is a message that is not earlier, with none such among the entries read before it; which one depends on
  where the bisection went.

A partition whose messages have no times at all would be read as a whole, and twice. So a search that has read
`MOST_UNTIMED` messages and no time looks at `_SAMPLES` places all over the index, and gives up when no message there
has a time.

Several partitions may share the index. A fetch tells where it began but not where its messages stand: each has an entry
of its own, hence bounds on both sides, and these meet where all entries hold messages of the partition. Elsewhere the
position is bisected as well: it is the last one from which that message, or one known to stand before it, comes first.

`Search` knows no sockets: it says where to look next and is told what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import StoredMessage, key_of
from tubemq_spark.protocol.message import check_sum, decode_attributes, split_payload
from tubemq_spark.protocol.not_found import NotFound

NEIGHBOURHOOD = 1000  # index entries
MOST_UNTIMED = 100_000  # messages
_SAMPLES = 32
_MINUTE = 60_000_000  # microseconds

# Fetches of a probe. A second one tells where the first ended; more are for stretches that say nothing, and still more
# where these hold no messages of the partition, so that replies are small.
_PLAIN, _BOUNDED, _PASSING, _PASSING_OTHERS = 1, 2, 4, 8

_PASSES_TO_END = 3  # a store has two memory blocks: see `exact_range`


class Payload(StoredMessage, Protocol):
    """A message with what it holds (the wire's TransferedMessage has it)."""

    @property
    def payLoadData(self) -> bytes: ...  # noqa: N802
    @property
    def flag(self) -> int: ...


def time_in(message: Payload, zone: tzinfo) -> int | None:
    """The message's time in microseconds since the epoch, None when it has none or its bytes are damaged."""
    if check_sum(message.payLoadData) != message.checkSum:
        return None
    try:
        attributes, _ = split_payload(message.payLoadData, message.flag)
    except ProtocolError:
        return None
    return decode_attributes(attributes, zone).msg_time


class Probe(NamedTuple):
    """A seek to `position` and so many fetches behind it."""

    position: int
    fetches: int


class Reply(NamedTuple):
    """What a fetch found from `begin` on, in order."""

    begin: int
    messages: Sequence[StoredMessage]


class State(Enum):
    BISECTING = auto()  # which entries are read one after another?
    SCANNING = auto()  # reads them for the first message that is not earlier
    PINPOINTING = auto()  # where does that one stand?
    SAMPLING = auto()  # has any message a time?
    DONE = auto()
    HOPELESS = auto()


class _Window(NamedTuple):
    """A reply and a position that all its messages stand before."""

    begin: int
    end: int
    messages: Sequence[StoredMessage]


class Search:
    """Finds `position`: of the first message in [earliest, end) that is not earlier than `moment`, or `end`.

    Positions are bytes of the index. `moment` is anything that messages reach one after another, such as a time, and
    `time_of` tells it of a message (None: it has none). `neighbourhood` is in index entries, see the module.

    `untimed` counts the messages that were read until one had a time. The search `is_hopeless` when none has.
    """

    def __init__(
        self,
        moment: int,
        earliest: int,
        end: int,
        time_of: Callable[[StoredMessage], int | None],
        *,
        neighbourhood: int = NEIGHBOURHOOD,
    ) -> None:
        self.position: int | None = None
        self.untimed = 0
        self.has_times = False
        self._samples: list[int] | None = None  # where to look yet, the next one last; None before that was needed
        self._moment = moment
        self._earliest = earliest
        self._time_of = time_of
        self._neighbourhood = neighbourhood * UNIT
        self._usual = _PLAIN  # fetches of the next look; two once it turned out that one may say nothing
        self._known: Mapping[tuple[int, int], int] = {}  # messages up to the wanted one: how many entries before it
        self._bisect(end)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.name} in [{self._low}, {self._high}) at {self._at}>"

    def next_probe(self) -> Probe | None:
        """Where to look next, None when the position is known, or never will be."""
        return None if self._state in (State.DONE, State.HOPELESS) else Probe(self._at, self._fetches)

    @property
    def is_hopeless(self) -> bool:
        return self._state is State.HOPELESS

    def found(self, begin: int, outcomes: Sequence[Reply | NotFound], max_offset: int) -> bool:
        """The seek led to `begin`, each fetch to one of `outcomes`, and afterwards the store ended at `max_offset`.

        False when that brought nothing new: the same probe is to be tried again, a little later.
        """
        before = self._progress()
        if max_offset < self._end:
            self._bisect(max_offset)  # the store lost its tail: what was found there may not be there any more
            return True
        windows, over = _windows(begin, outcomes, max_offset)
        if windows or over or (self._state is State.SAMPLING and NotFound.PASSED in outcomes):
            over = over or _reached(windows) >= self._limit
            _HANDLERS[self._state](self, windows, over)
        elif NotFound.PASSED in outcomes:
            self._fetches = _PASSING_OTHERS
        return self._progress() != before

    def _progress(self) -> tuple[object, ...]:
        return self._state, self._low, self._high, self._at, self._fetches

    # Where to look

    def _bisect(self, end: int) -> None:
        self._end = end
        self._state = State.BISECTING
        self._low, self._high = self._earliest, end  # an earlier message stands at or behind low - UNIT, none at high
        self._halve()

    def _halve(self) -> None:
        if self._high - self._low > self._neighbourhood:
            self._look_from(_middle(self._low, self._high), self._high, self._usual)
        else:
            self._state = State.SCANNING
            begin = max(self._earliest, self._low - UNIT - self._neighbourhood)
            self._look_from(begin, self._end, _BOUNDED)
            if begin >= self._end:
                self._finish(self._end)

    def _pinpoint(self, low: int, high: int) -> None:
        """The wanted message stands in [low, high)."""
        self._state = State.PINPOINTING
        self._low, self._high = low, high
        if high - low > UNIT:
            self._look_from(_middle(low, high), high, self._usual)
        else:
            self._finish(min(low, self._end))

    def _look_from(self, start: int, limit: int, fetches: int) -> None:
        """What counts is what comes first from `start` on; that there is nothing before `limit` is an answer, too."""
        self._start = self._at = start
        self._limit = limit
        self._fetches = fetches

    def _look_on(self, windows: Sequence[_Window]) -> None:
        """What was looked for did not come yet."""
        if not self.has_times and self.untimed >= MOST_UNTIMED and self._samples is None:
            entries = (self._end - self._earliest) // UNIT
            places = {self._earliest + entries * number // _SAMPLES * UNIT for number in range(_SAMPLES)}
            self._samples = sorted(places | {max(self._earliest, self._end - self._neighbourhood)})
            self._sample_next()
            return
        self._usual = _BOUNDED
        self._at = max(self._at, _reached(windows))
        self._fetches = _PASSING if any(window.messages for window in windows) else _PASSING_OTHERS

    def _sample_next(self) -> None:
        assert self._samples is not None
        if self._samples:
            self._state = State.SAMPLING
            self._look_from(self._samples.pop(), self._end, _PLAIN)
        else:
            self._state = State.HOPELESS

    def _finish(self, position: int) -> None:
        self._state = State.DONE
        self.position = position

    # What was found

    def _narrow(self, windows: Sequence[_Window], over: bool) -> None:
        first = next(self._timed(windows), None)
        if first is None and not over:
            self._look_on(windows)
            return
        if first is None or first[1] >= self._moment:
            self._high = self._start
        else:
            last = next(self._timed(windows, backwards=True), first)
            if last[1] < self._moment:
                self._low = last[0] + UNIT
            else:
                self._low = self._high = first[0] + UNIT
        self._halve()

    def _timed(self, windows: Sequence[_Window], *, backwards: bool = False) -> Iterator[tuple[int, int]]:
        """The times of messages that have one, each with a position that the message does not stand before."""
        step = -1 if backwards else 1
        for window in windows[::step]:
            for index in range(len(window.messages))[::step]:
                time = self._time(window.messages[index])
                if time is not None:
                    yield window.begin + index * UNIT, time

    def _time(self, message: StoredMessage) -> int | None:
        time = self._time_of(message)
        self.has_times = self.has_times or time is not None
        self.untimed += not self.has_times
        return time

    def _sample(self, windows: Sequence[_Window], _: bool) -> None:
        if any(self._timed(windows)):
            self._bisect(self._end)
        else:
            self._sample_next()

    def _scan(self, windows: Sequence[_Window], over: bool) -> None:
        for begin, end, messages in windows:
            for index, message in enumerate(messages):
                time = self._time(message)
                if time is not None and time >= self._moment:
                    self._known = {key_of(other): index - number for number, other in enumerate(messages[: index + 1])}
                    # All that stands at the end or behind it counts as standing at the end.
                    low = min(begin + index * UNIT, self._end)
                    high = min(end - (len(messages) - index) * UNIT, self._end) + UNIT
                    self._pinpoint(low, high)
                    if self._state is State.PINPOINTING:
                        # Where each entry is a message of the partition, another one stands next: one look settles it.
                        self._look_from(low + UNIT, high, _PLAIN)
                    return
        if over:
            self._finish(self._end)
        else:
            self._look_on(windows)

    def _locate(self, windows: Sequence[_Window], over: bool) -> None:
        found = next((window for window in windows if window.messages), None)
        distance = None if found is None else self._known.get(key_of(found.messages[0]))
        if found is not None and distance is not None:
            behind = len(found.messages) - distance  # the wanted one and those after it, if the reply reaches that far
            high = min(self._high, found.end - behind * UNIT + UNIT) if behind > 0 else self._high
            self._pinpoint(found.begin + distance * UNIT, high)
        elif found is not None or over:
            self._pinpoint(self._low, self._start)
        else:
            self._look_on(windows)


_HANDLERS: Mapping[State, Callable[[Search, Sequence[_Window], bool], None]] = {
    State.BISECTING: Search._narrow,
    State.SCANNING: Search._scan,
    State.PINPOINTING: Search._locate,
    State.SAMPLING: Search._sample,
}


class TimeSearch(Search):
    """A `Search` by time: `moment` and what `time_of` tells are in microseconds since the epoch."""

    def __init__(
        self,
        moment: int,
        earliest: int,
        end: int,
        time_of: Callable[[StoredMessage], int | None],
        *,
        neighbourhood: int = NEIGHBOURHOOD,
    ) -> None:
        super().__init__(moment - moment % _MINUTE, earliest, end, time_of, neighbourhood=neighbourhood)


def _windows(begin: int, outcomes: Sequence[Reply | NotFound], max_offset: int) -> tuple[list[_Window], bool]:
    """The replies that follow each other from `begin` on, and whether there was nothing behind them."""
    replies: list[Reply] = []
    passed = 0
    over = False
    for outcome in outcomes:
        if isinstance(outcome, Reply):
            least = replies[-1].begin + len(replies[-1].messages) * UNIT if replies else begin
            if outcome.begin < least or (not replies and not passed and outcome.begin > begin):
                break  # the cursor was moved by something else
            replies.append(outcome)
        elif outcome is NotFound.PASSED:
            passed += 1
        over = outcome is NotFound.END or passed == _PASSES_TO_END
        if over or outcome is NotFound.WAIT:
            break
    ends = [reply.begin for reply in replies[1:]] + [max_offset]
    return [_Window(at, end, messages) for (at, messages), end in zip(replies, ends, strict=False)], over


def _reached(windows: Sequence[_Window]) -> int:
    """All that stands before that position was read; each message has an entry of its own, at least."""
    return windows[-1].begin + len(windows[-1].messages) * UNIT if windows else -1


def _middle(low: int, high: int) -> int:
    return low + (high - low) // UNIT // 2 * UNIT
