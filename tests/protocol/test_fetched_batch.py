# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch, StoredMessage, index_of, payload_size
from tubemq_spark.protocol.message_columns import split_reply
from tubemq_spark.protocol.pb.BrokerService_pb2 import GetMessageResponseB2C, TransferedMessage


def messages(*ids: int) -> list[StoredMessage]:
    return [SimpleNamespace(messageId=number, checkSum=0) for number in ids]


def batch(*ids: int, begin: int = 0) -> FetchedBatch:
    return FetchedBatch(messages(*ids), range(begin, begin + 28 * len(ids), 28), begin, begin + 28 * len(ids))


def ids_of(batches: list[FetchedBatch]) -> list[int]:
    return [message.messageId for batch in batches for message in batch.messages]


def test_delivers_only_the_new_messages_of_a_second_reading() -> None:
    log = DeliveredLog()
    log.add(batch(1, 2))
    log.add(batch(3, begin=56))
    log.restart()
    assert log.add(batch(1)) == []
    assert log.add(batch(2, begin=28)) == []
    assert log.unmet == (56, 84)
    new = log.add(batch(3, 4, 5, begin=56))
    assert ids_of(new) == [4, 5]
    assert [list(one.positions or ()) for one in new] == [[84, 112]]
    assert log.awaited is None


@pytest.mark.parametrize("other", [batch(1, 9), batch(1, 2, begin=28)], ids=["message", "position"])
def test_refuses_a_second_reading_that_differs(other: FetchedBatch) -> None:
    log = DeliveredLog()
    log.add(batch(1, 2))
    log.restart()
    with pytest.raises(ValueError, match="message 2 of the range differs"):
        log.add(other)


@pytest.mark.parametrize(("replies", "found"), [
    ([(0, (1, 2))], [True]),
    ([(0, (1, 3))], [False]),
    ([(0, (1,)), (28, (2,))], [None, True]),
    ([(0, (1,)), (56, ())], [None, False]),
])  # fmt: skip
def test_looks_for_the_last_delivered_message(
    replies: list[tuple[int, tuple[int, ...]]], found: list[bool | None]
) -> None:
    log = DeliveredLog()
    log.add(batch(1, 2))
    assert log.look_for_last() == 0
    assert [log.still_has_last(begin, messages(*ids)) for begin, ids in replies] == found


def test_the_index_of_a_message() -> None:
    assert index_of(messages(2)[0], messages(1, 2)) == 1
    assert index_of(messages(9)[0], messages(1, 2)) == 2


def test_columns_are_messages_as_well() -> None:
    sent = [TransferedMessage(messageId=n, checkSum=0, payLoadData=bytes(n), flag=0) for n in (1, 2, 3)]
    split = split_reply(GetMessageResponseB2C(messages=sent).SerializePartialToString())
    assert split is not None
    columns = split[1]
    assert [index_of(messages(n)[0], columns) for n in (1, 3, 9)] == [0, 2, 3]
    assert payload_size(columns) == payload_size(sent) == 6
    log = DeliveredLog()
    log.add(batch(1, 2))
    log.restart()
    (new,) = log.add(FetchedBatch(columns, range(0, 84, 28), 0, 84))
    assert ids_of([new]) == [3]
