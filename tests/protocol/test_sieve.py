"""How a range whose positions were used again is suspected."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tubemq_spark.errors import PositionMovedError
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
        several.check(whole)


def test_without_ids_all_passes() -> None:
    sieve(None).check(piece(1, 99))


@pytest.mark.parametrize("ids", [(9,), (20,), (10, 11, 20, 12)])
def test_a_strange_message_ends_the_reading(ids: tuple[int, ...]) -> None:
    with pytest.raises(
        PositionMovedError, match=r"^1:t:2: messages in \[0, 2800\) have other ids .* Start the query again"
    ):
        sieve().check(piece(*ids))
