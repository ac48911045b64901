"""How a range whose positions were used again is suspected."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.marks import Ids, Span
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pieces import Piece
from tubemq_spark.protocol.sieve import Sieve

IDS = Span(10, 19)


def piece(*ids: int, begin: int = 280, sole: bool = True) -> Piece:
    messages = [SimpleNamespace(messageId=one, checkSum=0) for one in ids]
    positions = [begin + 28 * index for index in range(len(ids))] if sole else None
    return Piece(messages, positions, begin, begin + 28 * len(ids))


def sieve(span: Span | None = IDS, last: int | None = None) -> Sieve:
    return Sieve(Partition(1, "t", 2), 0, 2800, Ids(span, last))


def test_what_stood_there_passes() -> None:
    several = sieve()
    for whole in (piece(10, 19, 12), piece(), piece(15, sole=False)):
        several.check(whole)


def test_without_ids_all_passes() -> None:
    unknowing = sieve(None)
    unknowing.check(piece(1, 99))
    unknowing.check_end()


@pytest.mark.parametrize(("pieces", "last", "is_strange"), [
    ([(10, 11), ()], 11, False),
    ([(10,), (11,)], 11, False),
    ([(10, 11), (12,)], 11, True),
    ([(11, 10)], 11, True),
    ([()], 11, True),
    ([], 11, True),
])  # fmt: skip
@pytest.mark.parametrize("span", [IDS, None])
def test_the_last_message_is_known(
    pieces: list[tuple[int, ...]], last: int, is_strange: bool, span: Span | None
) -> None:
    knowing = sieve(span, last)
    for ids in pieces:
        knowing.heard(piece(*ids))
    with pytest.raises(PositionMovedError, match="have other ids") if is_strange else nullcontext():
        knowing.check_end()


@pytest.mark.parametrize("ids", [(9,), (20,), (10, 11, 20, 12)])
def test_a_strange_message_ends_the_reading(ids: tuple[int, ...]) -> None:
    with pytest.raises(
        PositionMovedError, match=r"^1:t:2: messages in \[0, 2800\) have other ids .* Start the query again"
    ):
        sieve().check(piece(*ids))
