"""Tests of the range that is left to read after a loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import DataLossError, ProtocolError
from tubemq_spark.protocol.data_loss import remaining_range
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch

START, END = 280, 560
POSITIONS = st.integers(min_value=0, max_value=30).map(lambda number: number * 28)


def lost(asked: int, offered: int) -> DataLossError:
    return DataLossError("gone", topic="t", broker_id=1, partition=0, asked=asked, offered=offered)


def delivered_to(delivered: int) -> DeliveredLog:
    known = DeliveredLog()
    if delivered > START:
        messages = [SimpleNamespace(messageId=number, checkSum=0) for number in range((delivered - START) // 28)]
        known.add(FetchedBatch(messages, None, START, delivered))
    return known


@pytest.mark.parametrize(("asked", "offered", "delivered", "left"), [
    (START, 336, START, (336, END)),  # retention removed the beginning
    (START, 336, 392, (392, END)),  # and it was delivered before
    (START, 700, START, (END, END)),
    (END, 420, START, (START, 420)),  # the store lost a tail
    (END, 420, 392, (392, 420)),
    (END, 336, 392, (END, END)),  # and the delivered messages
    (END, 84, START, (END, END)),  # and messages before the range
    (392, START, 392, (END, END)),  # other messages are at the delivered positions
])  # fmt: skip
def test_the_remaining_range(asked: int, offered: int, delivered: int, left: tuple[int, int]) -> None:
    assert remaining_range(START, END, lost(asked, offered), delivered_to(delivered)) == left


@given(POSITIONS, POSITIONS, st.integers(min_value=10, max_value=20).map(lambda number: number * 28))
def test_the_remaining_range_is_smaller(asked: int, offered: int, delivered: int) -> None:
    try:
        start, end = remaining_range(START, END, lost(asked, offered), delivered_to(delivered))
    except ProtocolError:
        return
    assert START <= start <= end <= END
    assert end - start < END - START
    assert start == end or start >= delivered


def test_a_loss_outside_of_the_range_raises() -> None:
    with pytest.raises(ProtocolError, match=r"\[280, 560\) is whole"):
        remaining_range(START, END, lost(END, END), DeliveredLog())
