"""What is left of a range after a loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import DataLossError, ProtocolError
from tubemq_spark.protocol.fetched_batch import DeliveredLog, Piece, what_is_left

START, END = 280, 560
POSITIONS = st.integers(min_value=0, max_value=30).map(lambda number: number * 28)


def lost(asked: int, offered: int) -> DataLossError:
    return DataLossError("gone", topic="t", broker_id=1, partition=0, asked=asked, offered=offered)


def given_up_to(upto: int) -> DeliveredLog:
    known = DeliveredLog()
    if upto > START:
        messages = [SimpleNamespace(messageId=number, checkSum=0) for number in range((upto - START) // 28)]
        known.add(Piece(messages, None, START, upto))
    return known


@pytest.mark.parametrize(("asked", "offered", "upto", "left"), [
    (START, 336, START, (336, END)),  # retention removed the beginning
    (START, 336, 392, (392, END)),  # and it had been given out
    (START, 700, START, (END, END)),
    (END, 420, START, (START, 420)),  # the store lost a tail
    (END, 420, 392, (392, 420)),
    (END, 336, 392, (END, END)),  # and what was given out with it
    (END, 84, START, (END, END)),  # and what stood before the range with it
    (392, START, 392, (END, END)),  # other messages stand where these were given out
])  # fmt: skip
def test_what_is_left(asked: int, offered: int, upto: int, left: tuple[int, int]) -> None:
    assert what_is_left(START, END, lost(asked, offered), given_up_to(upto)) == left


@given(POSITIONS, POSITIONS, st.integers(min_value=10, max_value=20).map(lambda number: number * 28))
def test_it_is_less_than_before(asked: int, offered: int, upto: int) -> None:
    try:
        start, end = what_is_left(START, END, lost(asked, offered), given_up_to(upto))
    except ProtocolError:
        return
    assert START <= start <= end <= END
    assert end - start < END - START
    assert start == end or start >= upto


def test_a_loss_that_loses_nothing_is_not_retried() -> None:
    with pytest.raises(ProtocolError, match=r"\[280, 560\) is whole"):
        what_is_left(START, END, lost(END, END), DeliveredLog())
