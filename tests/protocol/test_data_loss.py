# SPDX-License-Identifier: Apache-2.0
"""Losses of tails, and the range that is left to read after a loss."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import DataLossError, ProtocolError
from tubemq_spark.protocol.data_loss import lost_tails, may_be_replaced, remaining_range, replaced_error
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch
from tubemq_spark.protocol.log_fingerprint import IdSpan, KnownIds
from tubemq_spark.protocol.metadata import Partition

START, END = 280, 560
POSITIONS = st.integers(min_value=0, max_value=30).map(lambda number: number * 28)


def lost(asked: int, offered: int) -> DataLossError:
    return DataLossError("gone", topic="t", broker_id=1, partition=0, asked=asked, offered=offered)


def test_store_that_ends_before_the_read_position_lost_its_tail() -> None:
    lost_one, whole = Partition(1, "t", 0), Partition(1, "t", 1)
    (loss,) = lost_tails({lost_one: 140, whole: 0}, {lost_one: 84, whole: 0}, {lost_one: 84, whole: 0}).values()
    assert (loss.topic, loss.broker_id, loss.partition, loss.asked, loss.offered) == ("t", 1, 0, 140, 84)
    text = str(loss)
    assert text.startswith("1:t:0: the store ends at 84, but the query has read up to 140")
    assert "[84, 140)" in text


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


IDS = IdSpan(10, 19)


def test_the_error_names_the_range() -> None:
    error = replaced_error(Partition(1, "t", 2), 0, 2800)
    assert re.match(r"1:t:2: messages in \[0, 2800\) have other ids .* Start the query again", str(error))


@pytest.mark.parametrize("span", [IDS, None])
@pytest.mark.parametrize(("last", "replaced"), [(11, False), (12, True), (10, True), (99, True), (None, True)])
def test_compares_the_last_message_with_its_known_id(last: int | None, replaced: bool, span: IdSpan | None) -> None:
    assert may_be_replaced(KnownIds(span, 11), last) == replaced


@pytest.mark.parametrize(
    ("last", "replaced"), [(9, True), (10, False), (15, False), (19, False), (20, True), (None, False)]
)
def test_compares_the_last_message_with_the_span_of_ids(last: int | None, replaced: bool) -> None:
    assert may_be_replaced(KnownIds(IDS), last) == replaced


@pytest.mark.parametrize(("last", "replaced"), [(1, True), (99, True), (None, False)])
def test_suspects_all_messages_without_ids(last: int | None, replaced: bool) -> None:
    assert may_be_replaced(KnownIds(), last) == replaced
