"""Marks: messages by which a store is known again after a crash of its broker.

A broker that dies loses what it had not flushed, and uses the positions again for other messages. An index that has
the same message at a mark has not changed before it, so one look at the newest mark shows a loss, and a look at each of
them between which two marks the lost tail begins. Which messages between these two are old and which are new shows in
their ids (wire: IdWorker): they are the nanoseconds of the broker's monotonic clock, as a triangle wave that rises for
36.6 minutes and falls as long, and a new process of the broker begins at least about a second later. So a message is
old when its id lies between those of the two marks. That holds as long as the wave does not turn and nothing else moves
the clock between them: `span_between` says when it can be relied on.

Marks prove losses; ids only tell where one begins. So a wrong guess about ids is never taken for a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SECOND = 1_000_000_000 << 22
"""As ids count."""

_PEAK = 1 << 63
# Messages may be stored in another order than they got their ids in: concurrent ones, and those that a full memory held
# up. A new process begins later than that; before the first mark there is nothing that could be taken for an old one.
_BEHIND, _BEFORE = SECOND // 2, 5 * SECOND
_TURN = 60  # seconds: an id so near to where the wave turns may come again soon
_LONGEST = 15 * 60  # seconds between two marks that a wave of 36 minutes can tell apart from all others
_TOLERANCE = 30  # seconds by which the time between two messages may be longer than that between their marks

MOST = 6

Store = tuple[int, str, int]
"""Broker, topic and store id: its partitions share one index."""


class Fingerprint(NamedTuple):
    """The first message of `partition_id` at or behind `position` has `message_id`. It was sent at about `time`, in
    seconds since the epoch by the driver's clock, 0 when nobody knows. Drivers' clocks are set anew: a later mark may
    have an earlier time, and a mark may be younger than now."""

    position: int
    partition_id: int
    message_id: int
    time: int


Marks = Mapping[Store, tuple[Fingerprint, ...]]
"""Of each store by position, the newest last."""


class IdSpan(NamedTuple):
    """Ids of old messages, both ends included."""

    low: int
    high: int

    def has(self, message_id: int) -> bool:
        return self.low <= message_id <= self.high


class KnownIds(NamedTuple):
    """Of the messages that stood in a range of one partition: all of them lie in `span`, and the last one's is `last`.
    None for what is not known."""

    span: IdSpan | None = None
    last: int | None = None


UNKNOWN_IDS = KnownIds()


def span_between(first: Fingerprint, last: Fingerprint) -> IdSpan | None:
    """The ids of the messages from `first` to `last`; None when ids cannot tell them from later ones: the wave turns
    there, or too much time has gone by, or the broker's clock was set anew between them."""
    low, high = sorted((first.message_id, last.message_id))
    seconds = _TOLERANCE + (last.time - first.time if first.time and last.time else 0)
    if not 0 <= seconds <= _LONGEST or high - low > seconds * SECOND:
        return None
    to_the_turn = max(_TURN, seconds // 2) * SECOND
    if low < to_the_turn or _PEAK - high < to_the_turn:
        return None
    if high - low < 2 * _BEHIND:  # too near each other to tell whether the wave rises
        return IdSpan(low - _BEHIND, high + _BEHIND)
    if first.message_id > last.message_id:
        return IdSpan(low - _BEHIND, high + _BEFORE)
    return IdSpan(low - _BEFORE, high + _BEHIND)


def thinned(marks: Iterable[Fingerprint], now: int) -> tuple[Fingerprint, ...]:
    """At most `MOST` of them: the oldest, which tells a topic made anew from a lost tail, the two newest, and of the
    rest those that leave the gaps smallest in proportion to their age, so that one stands soon before any loss."""
    kept = sorted(set(marks))
    while len(kept) > MOST:
        least = min(range(1, len(kept) - 2), key=lambda i: (_gap(kept[i - 1], kept[i + 1], now), i))
        del kept[least]
    return tuple(kept)


def _gap(older: Fingerprint, newer: Fingerprint, now: int) -> float:
    return (_age(older, now) + 1) / (_age(newer, now) + 1)


def _age(mark: Fingerprint, now: int) -> int:
    """Seconds. The clock may have moved back since the mark was taken, which counts as no time."""
    return max(0, now - mark.time)
