# SPDX-License-Identifier: Apache-2.0
"""The official Java client against the embedded server: it sends, pulls, and receives by push."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.conftest import RELEASES
from tests.interop.java_client import JavaClient, Outgoing
from tests.interop.shapes import SAME_HASH, withheld_messages
from tests.waiting import wait_until
from tests.without_spark.sink import Task, plan_stream, run_task, schema
from tubemq_spark.testing import EmbeddedTubeMQ

COUNT = 300
TYPES = (*SAME_HASH, "news", None)
UNIT = 28


def outgoing(count: int = COUNT) -> list[Outgoing]:
    return [
        Outgoing(
            f"message {n}".encode(),
            attributes={"number": str(n), "grösse": "格"} if n % 3 else None,
            msg_type=TYPES[n % len(TYPES)],
            msg_time="202402282359" if n % 5 == 0 else None,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("embedded", RELEASES, indirect=True)
def test_java_pulls_what_java_sent_to_the_positions_of_its_receipts(
    embedded: EmbeddedTubeMQ, java_here: JavaClient
) -> None:
    messages = outgoing()
    receipts = java_here.produce("demo", messages)
    stored = {stored.message_id: stored for stored in embedded.messages("demo")}
    assert len(stored) == COUNT
    for message, receipt in zip(messages, receipts, strict=True):
        found = stored[receipt.message_id]
        place = f"{found.broker_id}:demo:{found.partition}"
        assert (place, found.offset) == (receipt.partition, receipt.append_offset)
        assert (found.body, found.attributes, found.msg_type) == (message.body, message.attributes, message.msg_type)
        assert (found.msg_time is None) == (message.msg_time is None)

    received = java_here.consume("demo", "readers", count=COUNT)

    assert Counter(
        (one.message_id, one.partition, one.body, one.msg_type, one.msg_time) for one in received
    ) == Counter(
        (receipt.message_id, receipt.partition, message.body, message.msg_type, message.msg_time)
        for message, receipt in zip(messages, receipts, strict=True)
    )
    attributes = {message.body: message.attributes for message in messages}
    assert {one.body: one.attributes for one in received} == attributes
    confirmed = [embedded.group_offset("readers", "demo", 1, partition) for partition in range(3)]
    assert confirmed == [COUNT * UNIT] * 3  # they share the store's index
    wait_until(lambda: not embedded.claims(), "that the broker has released the client's claims")


def test_a_blank_type_is_none_for_java_and_for_the_sink(embedded: EmbeddedTubeMQ, java_here: JavaClient) -> None:
    blank = ["", " ", "\t\u2003"]
    java_here.produce("demo", [Outgoing(b"java", msg_type=one, msg_time="202402282359") for one in blank])
    write = {"tubemq.master": embedded.master, "topic": "demo"}
    rows = [{"value": b"spark", "msg_type": one, "msg_time": "202402282359"} for one in blank]
    run_task(plan_stream(write, schema(rows)), rows, schema(rows), Task())

    received = java_here.consume("demo", "readers", count=6)

    assert Counter((one.body, one.attribute, one.msg_type) for one in received) == {
        (body, "$msgTime$=202402282359", None): 3 for body in (b"java", b"spark")
    }
    assert {stored.msg_type for stored in embedded.messages("demo")} == {None}


def test_a_filter_selects_by_type(embedded: EmbeddedTubeMQ, java_here: JavaClient) -> None:
    messages = outgoing()
    java_here.produce("demo", messages)
    embedded.flush("demo")  # a filter consumer of the Java client reads only from files
    wanted = {SAME_HASH[0], "news"}
    expected = [message.body for message in messages if message.msg_type in wanted]

    received = java_here.consume("demo", "choosy", filters=wanted, count=len(expected))

    assert sorted(message.body for message in received) == sorted(expected)


def test_a_bound_consumer_begins_at_its_positions(embedded: EmbeddedTubeMQ, java_here: JavaClient) -> None:
    sent = [embedded.send("demo", f"message {n}".encode(), partition=n % 3) for n in range(30)]
    start = {f"1:demo:{partition}": 12 * UNIT for partition in range(3)}

    received = java_here.consume("demo", "bound", at=start, count=18)

    assert sorted(message.body for message in received) == sorted(stored.body for stored in sent[12:])


def test_messages_that_no_broker_returns_do_not_stop_a_consumer(
    embedded: EmbeddedTubeMQ, java_here: JavaClient
) -> None:
    java_here.produce("demo", [*withheld_messages(5), Outgoing(b"visible")])

    received = java_here.consume("demo", "readers", count=1)

    assert [message.body for message in received] == [b"visible"]


@pytest.mark.parametrize("wanted", [("news",), pytest.param((), marks=pytest.mark.thorough)])
def test_a_push_consumer_receives_all(embedded: EmbeddedTubeMQ, java_here: JavaClient, wanted: tuple[str, ...]) -> None:
    for n in range(COUNT):
        embedded.send("demo", f"message {n}".encode(), msg_type=("news", "other")[n % 2])
    embedded.flush("demo")
    expected = [message for message in embedded.messages("demo") if not wanted or message.msg_type in wanted]
    last = {message.partition: message.offset for message in expected}

    def is_confirmed() -> bool:
        return all((embedded.group_offset("pushed", "demo", 1, number) or 0) > last[number] for number in last)

    with java_here.member("demo", "pushed", filters=wanted, push=True) as member:
        received = member.wait_until(lambda received: len(received) >= len(expected))
        wait_until(is_confirmed, "that all messages are confirmed")
        member.leave()

    assert sorted(message.body for message in received) == sorted(message.body for message in expected)
