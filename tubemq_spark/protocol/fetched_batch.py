# SPDX-License-Identifier: Apache-2.0
"""Fetched batches of a range, and deduplication: which of their messages were delivered before.

After an interruption the range is read again from its start. `DeliveredLog` remembers the last message of each
delivered batch. Each batch comes from one uninterrupted reading. So a second reading that meets the same last messages
at the same counts has met all delivered messages, and no others between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tubemq_spark.protocol.message_columns import MessageColumns


class StoredMessage(Protocol):
    """The fields that distinguish a message from all others of its store (the wire's TransferedMessage has them)."""

    @property
    def messageId(self) -> int: ...  # noqa: N802
    @property
    def checkSum(self) -> int: ...  # noqa: N802


@dataclass(frozen=True)
class FetchedBatch:
    """Consecutive messages of a range: all messages of the index entries [begin, end).

    `positions` has one index position for each message. It is None where the protocol does not determine them: several
    partitions share the store.
    """

    messages: Sequence[StoredMessage]
    positions: Sequence[int] | None
    begin: int
    end: int


class DeliveredBatch(NamedTuple):
    """A delivered batch, as its last message: `total` counts the messages of the range up to it, `ordinal` those from
    `begin` on."""

    key: tuple[int, int]
    position: int | None
    total: int
    ordinal: int
    begin: int
    end: int


class DeliveredLog:
    """The batches of a range that were delivered, and how many of them the current reading has met again. The log
    `is_whole` if the range was delivered to its end."""

    def __init__(self) -> None:
        self.is_whole = False
        self._batches: list[DeliveredBatch] = []
        self._met = 0  # delivered batches that the current reading has met
        self._read = 0  # messages that the current reading has read
        self._ahead = 0  # messages up to the last delivered one, while `still_has_last` looks for it

    def restart(self) -> None:
        """A new reading begins at the start of the range."""
        self._met = self._read = 0

    @property
    def awaited(self) -> DeliveredBatch | None:
        """The first delivered batch that the current reading has not met, None when it has met all."""
        return self._batches[self._met] if self._met < len(self._batches) else None

    @property
    def unmet(self) -> tuple[int, int]:
        """The entries [begin, end) of the delivered batches that the current reading has not met."""
        return self._batches[self._met].begin, self._batches[-1].end

    @property
    def last(self) -> DeliveredBatch | None:
        return self._batches[-1] if self._batches else None

    def add(self, batch: FetchedBatch) -> list[FetchedBatch]:
        """Return the new part of the next `batch` of the current reading, to be delivered now, maybe nothing.

        Raise `ValueError` if the message or the position differs from the delivered one that must be there, or if a
        message is new although the log is whole.
        """
        first, self._read = self._read, self._read + len(batch.messages)
        while (delivered := self.awaited) is not None:
            if delivered.total > self._read:
                return []
            index = delivered.total - first - 1
            if (key_of(batch.messages[index]), _position(batch, index)) != (delivered.key, delivered.position):
                raise ValueError(f"message {delivered.total} of the range differs from the delivered one")
            self._met += 1
        known = max(0, self._batches[-1].total - first) if self._batches else 0
        if known == len(batch.messages):
            return []
        if self.is_whole:
            raise ValueError("the reading has more messages than were delivered")
        key, position = key_of(batch.messages[-1]), _position(batch, -1)
        self._batches.append(DeliveredBatch(key, position, self._read, len(batch.messages), batch.begin, batch.end))
        self._met += 1
        if not known:
            return [batch]
        positions = None if batch.positions is None else batch.positions[known:]
        return [FetchedBatch(batch.messages[known:], positions, batch.begin, batch.end)]

    def look_for_last(self) -> int:
        """Begin to look for the last delivered message; return the position to fetch from."""
        last = self._batches[-1]
        self._ahead = last.ordinal
        return last.begin

    def still_has_last(self, begin: int, messages: Sequence[StoredMessage]) -> bool | None:
        """Return whether this reply shows the last delivered message, None if the next one must show it."""
        last = self._batches[-1]
        if len(messages) >= self._ahead:
            return key_of(messages[self._ahead - 1]) == last.key
        self._ahead -= len(messages)
        return None if begin < last.end else False


def _position(batch: FetchedBatch, index: int) -> int | None:
    return None if batch.positions is None else batch.positions[index]


def key_of(message: StoredMessage) -> tuple[int, int]:
    return message.messageId, message.checkSum


def index_of(wanted: StoredMessage, messages: Sequence[StoredMessage]) -> int:
    """Return the index of `wanted` in `messages`, or `len(messages)` if it is not there."""
    key = key_of(wanted)
    keys = messages.keys() if isinstance(messages, MessageColumns) else map(key_of, messages)
    return next((index for index, other in enumerate(keys) if other == key), len(messages))


def payload_size(messages: Sequence[Any]) -> int:
    """Return how many bytes the messages' payloads have together."""
    if isinstance(messages, MessageColumns):
        return messages.size
    return sum(len(message.payLoadData) for message in messages)
