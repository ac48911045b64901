"""Batches of a range, and which of their messages were given out before.

A range is read again from its start after an interruption. `DeliveredLog` remembers the last message of each batch
given out: each batch comes from one uninterrupted stretch, so a second reading that meets the same messages at the
same counts has met all of them, and nothing between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tubemq_spark.errors import DataLossError, ProtocolError


class StoredMessage(Protocol):
    """What of a message tells it from all others of its store (the wire's TransferedMessage has it)."""

    @property
    def messageId(self) -> int: ...  # noqa: N802
    @property
    def checkSum(self) -> int: ...  # noqa: N802


@dataclass(frozen=True)
class FetchedBatch:
    """Consecutive messages of a range, all of them from the entries [begin, end); `positions` is one index position a
    message, None where the protocol does not determine them (several partitions share the store)."""

    messages: Sequence[StoredMessage]
    positions: Sequence[int] | None
    begin: int
    end: int

    def before(self, index: int) -> FetchedBatch:
        """Without the message at `index` and those behind it."""
        return replace(
            self,
            messages=self.messages[:index],
            positions=None if self.positions is None else self.positions[:index],
        )


class Mark(NamedTuple):
    """The last message of a batch given out, to know it again: `total` counts the messages of the range up to it,
    `ordinal` those at or behind `begin`."""

    key: tuple[int, int]
    position: int | None
    total: int
    ordinal: int
    begin: int
    end: int


class DeliveredLog:
    """What of a range was given out, and how far the present reading has met it again."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._met = 0  # marks that the present reading has met
        self._seen = 0  # messages that the present reading has come to

    def read_again(self) -> None:
        """A new reading begins at the start of the range."""
        self._met = self._seen = 0

    @property
    def awaited(self) -> Mark | None:
        """The first mark that the present reading has not met, None when it has met all."""
        return self._marks[self._met] if self._met < len(self._marks) else None

    @property
    def last(self) -> Mark | None:
        return self._marks[-1] if self._marks else None

    def add(self, batch: FetchedBatch) -> list[FetchedBatch]:
        """The part of the next `batch` of the present reading that is new, to be given out now; nothing without any.

        Raises `ValueError` when another message stands where `awaited` should, or that one at another position.
        """
        first, self._seen = self._seen, self._seen + len(batch.messages)
        while (mark := self.awaited) is not None:
            if mark.total > self._seen:
                return []
            index = mark.total - first - 1
            if (key_of(batch.messages[index]), _position(batch, index)) != (mark.key, mark.position):
                raise ValueError(f"message {mark.total} of the range is another one than before")
            self._met += 1
        known = max(0, self._marks[-1].total - first) if self._marks else 0
        if known == len(batch.messages):
            return []
        key, position = key_of(batch.messages[-1]), _position(batch, -1)
        self._marks.append(Mark(key, position, self._seen, len(batch.messages), batch.begin, batch.end))
        self._met += 1
        if not known:
            return [batch]
        positions = None if batch.positions is None else batch.positions[known:]
        return [FetchedBatch(batch.messages[known:], positions, batch.begin, batch.end)]


def remaining_range(start: int, end: int, loss: DataLossError, given: DeliveredLog) -> tuple[int, int]:
    """Return what of [start, end) is to be read after `loss`, when `given` was given out so far: a smaller range, maybe
    an empty one. Positions are bytes of the index.

    A store that lost a tail uses its positions for messages that came after the range was planned. These do not belong
    to the range. Raise `ProtocolError` if the loss is no loss of this range, which a reader must not retry.
    """
    behind = given.last.end if given.last else start
    if loss.offered > loss.asked:  # retention removed the beginning
        left = max(loss.offered, behind), end
    else:
        left = behind, min(loss.offered, end)
    if left[0] >= left[1]:
        return end, end
    if left == (start, end):
        raise ProtocolError(f"[{start}, {end}) is whole although it is said to be lost: {loss}")
    return left


def _position(batch: FetchedBatch, index: int) -> int | None:
    return None if batch.positions is None else batch.positions[index]


def key_of(message: StoredMessage) -> tuple[int, int]:
    return message.messageId, message.checkSum


def index_of(wanted: StoredMessage, messages: Sequence[StoredMessage]) -> int:
    """The index of `wanted`, or how many there are when it is not among them."""
    key = key_of(wanted)
    return next((index for index, message in enumerate(messages) if key_of(message) == key), len(messages))
