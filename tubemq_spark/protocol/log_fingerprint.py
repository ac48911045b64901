# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of a log: message ids at single positions, which show whether a broker's store was truncated.

A broker that crashes loses the messages that it had not flushed, and then stores other messages at the same positions.
Kafka detects such a log truncation by leader epochs; TubeMQ has none. A fingerprint is a position and the id of the
message there.

What a fingerprint proves: a store loses only its tail. If it still has the same message at a fingerprint, nothing
before that position has changed. So one probe at the newest fingerprint shows whether there was a loss. After a loss,
probes at the older ones show the two fingerprints between which the lost tail begins.

Why ids: they show which messages between these two are old and which are new. An id (wire: IdWorker) is the time of the
broker's monotonic clock in nanoseconds, as a triangle wave that rises for 36.6 minutes and falls as long. After a crash
a new broker process needs at least about a second to start. So a message is old if its id lies between the ids of the
two fingerprints. This is wrong if the wave turns between them, or if something else moves the clock; `span_between`
returns None where that is possible.

Only fingerprints prove losses. Ids only show where a loss begins, so a wrong guess never reports a false loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

ID_SECOND = 1_000_000_000 << 22
"""The difference of two ids that were given one second apart."""

MAX_FINGERPRINTS = 6
"""Of one store, so that a checkpoint stays small."""

_PEAK = 1 << 63
# Ids may be in another order than positions: producers send at the same time, and a full memory block delays messages.
# A new broker process starts later than that. Before the first fingerprint no new message can be taken for an old one.
_AFTER_LAST, _BEFORE_FIRST = ID_SECOND // 2, 5 * ID_SECOND
_NEAR_TURN = 60  # seconds: an id so near to the turn of the wave may soon occur again
_LONGEST = 15 * 60  # seconds between two fingerprints that a wave of 36 minutes can tell apart from all others
_TOLERANCE = 30  # seconds by which the time between two messages may be longer than that between their fingerprints

NO_MESSAGE = 0

Store = tuple[int, str, int]
"""Broker, topic and store id: its partitions share one index."""


class Fingerprint(NamedTuple):
    """The message at `position` is of `partition_id` and has `message_id`.

    One without a time may be of the partition's first message behind `position`, if nothing showed whose the entry is.
    If a crash takes only that message, a loss of the entry is reported.

    `NO_MESSAGE`: no message stood at `position`, because retention had removed it. Only another store has one there.
    The message was sent at about `time`, in seconds since the epoch by the driver's clock; 0 if unknown. Drivers'
    clocks may be set: a later fingerprint may have an earlier time, and a time may lie in the future.
    """

    position: int
    partition_id: int
    message_id: int
    time: int


Fingerprints = Mapping[Store, tuple[Fingerprint, ...]]
"""Of each store, in the order of their positions."""


class IdSpan(NamedTuple):
    """Ids of old messages; both bounds are inclusive."""

    low: int
    high: int

    def has(self, message_id: int) -> bool:
        return self.low <= message_id <= self.high


class KnownIds(NamedTuple):
    """The ids of the messages in a range of one partition: all are in `span`, the last is `last`. None if unknown.

    `mark` is the fingerprint of the store's last entry in the range, maybe of another partition; if there is none, the
    newest one before the range.
    """

    span: IdSpan | None = None
    last: int | None = None
    mark: Fingerprint | None = None


UNKNOWN_IDS = KnownIds()


def span_between(first: Fingerprint, last: Fingerprint) -> IdSpan | None:
    """Return the ids of the messages from `first` to `last`, or None if later messages may have such ids.

    That is so if the wave of ids turns there, after too much time, or if the broker's clock was set.
    """
    low, high = sorted((first.message_id, last.message_id))
    seconds = _TOLERANCE + (last.time - first.time if first.time and last.time else 0)
    if not 0 <= seconds <= _LONGEST or high - low > seconds * ID_SECOND:
        return None
    to_turn = max(_NEAR_TURN, seconds // 2) * ID_SECOND
    if low < to_turn or _PEAK - high < to_turn:
        return None
    if high - low < 2 * _AFTER_LAST:  # too close to show whether the wave rises or falls
        return IdSpan(low - _AFTER_LAST, high + _AFTER_LAST)
    if first.message_id > last.message_id:
        return IdSpan(low - _AFTER_LAST, high + _BEFORE_FIRST)
    return IdSpan(low - _BEFORE_FIRST, high + _AFTER_LAST)


def thinned(fingerprints: Iterable[Fingerprint], now: int) -> tuple[Fingerprint, ...]:
    """Return at most `MAX_FINGERPRINTS` of them: the oldest, the two newest, and some between.

    The oldest one distinguishes a topic that was deleted and created again from a truncated one. Of those between,
    the ones stay that keep the gaps small in proportion to their age, so that one lies shortly before any loss.
    """
    kept = sorted(set(fingerprints))
    while len(kept) > MAX_FINGERPRINTS:
        ages = [max(0, now - one.time) + 1 for one in kept]  # at least 1: the clock may have been set back
        del kept[min(range(1, len(kept) - 2), key=lambda i: (ages[i - 1] / ages[i + 1], i))]
    return tuple(kept)
