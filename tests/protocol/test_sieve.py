"""What is left out of a range whose positions were used again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tubemq_spark.protocol.marks import Span
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pieces import Piece
from tubemq_spark.protocol.sieve import Sieve

IDS = Span(10, 19)


def piece(*ids: int, begin: int = 280, sole: bool = True) -> Piece:
    messages = [SimpleNamespace(messageId=one, checkSum=0) for one in ids]
    positions = [begin + 28 * index for index in range(len(ids))] if sole else None
    return Piece(messages, positions, begin, begin + 28 * len(ids))


def sieve(ids: Span | None = IDS) -> Sieve:
    return Sieve(Partition(1, "t", 2), 0, 2800, ids)


def test_what_stood_there_passes() -> None:
    several = sieve()
    for whole in (piece(10, 19, 12), piece(), piece(15, sole=False)):
        assert several.sift(whole) is whole
    assert several.loss is None


def test_without_ids_all_passes() -> None:
    assert sieve(None).sift(piece(1, 99)) == piece(1, 99)


@pytest.mark.parametrize("sole", [True, False])
def test_from_the_first_strange_message_on_nothing_passes(sole: bool) -> None:
    """Not even one whose id would do: its wave of ids came by again."""
    one = sieve()
    assert [message.messageId for message in one.sift(piece(10, 11, 20, 12, sole=sole)).messages] == [10, 11]
    assert not one.sift(piece(13, sole=sole)).messages
    assert one.loss is not None
    assert (one.loss.asked, one.loss.offered) == (2800, 336 if sole else 280)
    assert (one.loss.topic, one.loss.broker_id, one.loss.partition) == ("t", 1, 2)
    assert str(one.loss).startswith("1:t:2: the broker lost messages of [0, 2800) before they were read")
