# SPDX-License-Identifier: Apache-2.0
"""Fault injection, seen from a plain connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.testing.raw import METHODS, Raw, send
from tests.waiting import wait_until
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import Framing, Method, OpType, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, Fault


def register(
    op_type: OpType = OpType.REGISTER, client: str = "c1", group: str = "g", partition: int = 0
) -> broker_pb.RegisterRequestC2B:
    return broker_pb.RegisterRequestC2B(
        opType=op_type, clientId=client, groupName=group, topicName="demo", partitionId=partition, readStatus=0
    )


def fetch(client: str) -> broker_pb.GetMessageRequestC2B:
    return broker_pb.GetMessageRequestC2B(
        clientId=client, partitionId=0, groupName="g", topicName="demo", manualCommitOffset=True
    )


def close_producer(client: str = "c1") -> master_pb.CloseRequestP2M:
    return master_pb.CloseRequestP2M(clientId=client)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"demo": 3, "other": 1}, brokers=2, masters=2) as cluster:
        yield cluster


@pytest.fixture
def raw(tubemq: EmbeddedTubeMQ) -> Iterator[Raw]:
    """A connection to broker 1."""
    with Raw(tubemq.broker_address(1)) as connection:
        yield connection


def bodies(tubemq: EmbeddedTubeMQ, topic: str = "demo") -> list[bytes]:
    return [message.body for message in tubemq.messages(topic)]


def watch(tubemq: EmbeddedTubeMQ, method: str, **conditions: Any) -> Fault:
    """Add a rule that has no effect but counts."""
    return tubemq.on(method, **conditions).count()


# Conditions


@pytest.mark.parametrize(
    ("conditions", "met"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"topic": "demo"}, [0, 1, 2, 3]),
        ({"topic": "other"}, [4]),
        ({"partition": 1}, [1, 2]),
        ({"client": "c1"}, [0, 1, 4]),
        ({"client": "c"}, [0, 1, 2, 3, 4]),
        ({"client": "2"}, [2, 3]),
        ({"broker": 1}, [0, 1, 2, 3, 4]),
        ({"broker": 2}, []),
        ({"master": 1}, []),
        ({"group": "g"}, []),
        ({"nth": 3}, [2, 3, 4]),
        ({"times": 2}, [0, 1]),
        ({"nth": 2, "times": 2}, [1, 2]),
        ({"partition": 1, "nth": 2}, [2]),
        ({"topic": "demo", "client": "c2", "partition": 2, "broker": 1, "nth": 1, "times": 1}, [3]),
        ({"nth": 6}, []),
    ],
    ids=str,
)
def test_a_rule_applies_to_calls_that_match_all_conditions(
    tubemq: EmbeddedTubeMQ, raw: Raw, conditions: dict[str, Any], met: list[int]
) -> None:
    fault = tubemq.on("send_message", **conditions).fail(500)
    calls = [(0, "c1"), (1, "c1"), (1, "c2"), (2, "c2")]
    requests = [send(b"x", partition=partition, client=client) for partition, client in calls]
    replies = [raw.call(message) for message in [*requests, send(b"x", topic="other")]]
    assert [number for number, reply in enumerate(replies) if reply.errCode == 500] == met
    assert fault.fired == len(met)
    assert len(bodies(tubemq)) + len(bodies(tubemq, "other")) == 5 - len(met)


def test_a_broker_and_a_master_are_conditions(tubemq: EmbeddedTubeMQ) -> None:
    first, second = watch(tubemq, "send_message", broker=2), watch(tubemq, "producer_close", master=2)
    for address, fired in [(tubemq.broker_address(1), 0), (tubemq.broker_address(2), 1)]:
        with Raw(address) as broker:
            broker.call(send(b"x"))
        assert first.fired == fired
    for fired, address in enumerate(tubemq.master.split(",")):
        with Raw(address) as master:
            master.reply(master.ask(close_producer())[0])
        assert second.fired == fired


def test_register_and_unregister_are_two_methods(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    come, go = watch(tubemq, "partition_register", group="g"), watch(tubemq, "partition_unregister")
    raw.call(register())
    assert (come.fired, go.fired) == (1, 0)
    raw.call(register(OpType.UNREGISTER))
    assert (come.fired, go.fired) == (1, 1)


@pytest.mark.parametrize("name", ["send", "SEND_MESSAGE", "", "get_messages"])
def test_an_unknown_method_is_refused(tubemq: EmbeddedTubeMQ, name: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no call '{name}'; the calls are ") as caught:
        tubemq.on(name)
    for known in ("send_message", "get_message", "partition_register", "partition_unregister", "consumer_register_v2"):
        assert known in str(caught.value)


@pytest.mark.parametrize("wrong", [{"nth": 0}, {"nth": -1}, {"times": 0}, {"times": -3}], ids=str)
def test_numbers_count_from_1(tubemq: EmbeddedTubeMQ, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="nth and times count from 1"):
        tubemq.on("send_message", **wrong)  # type: ignore[arg-type]


def test_the_first_matching_rule_wins(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """Later rules do not see the call: their `nth` counts only calls that reach them."""
    first = tubemq.on("send_message", nth=2, times=1).fail(500)
    second = tubemq.on("send_message", nth=2, times=1).fail(503)
    third = tubemq.on("send_message").fail(419)
    assert [raw.call(send(b"x")).errCode for _ in range(4)] == [419, 500, 503, 419]
    assert (first.fired, second.fired, third.fired) == (1, 1, 2)


def test_a_counting_rule_leaves_calls_to_later_rules(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """It sees the calls that earlier rules leave."""
    first = tubemq.on("send_message", nth=3, times=1).fail(500)
    some = tubemq.on("send_message", nth=2, times=1).count()
    every = tubemq.on("send_message").count()
    last = tubemq.on("send_message", nth=2, times=1).fail(503)
    assert [raw.call(send(b"x")).errCode for _ in range(4)] == [200, 503, 500, 200]
    assert (first.fired, some.fired, every.fired, last.fired) == (1, 1, 3, 1)


def test_a_rule_ends_with_its_block_or_by_remove(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    with tubemq.on("send_message").fail(500) as fault:
        assert raw.call(send(b"x")).errCode == 500
    assert raw.call(send(b"x")).errCode == 200
    removed = tubemq.on("send_message").fail(503)
    assert raw.call(send(b"x")).errCode == 503
    removed.remove()
    removed.remove()
    assert raw.call(send(b"x")).errCode == 200
    assert (fault.fired, removed.fired) == (1, 1)


def test_clear_faults_ends_all_rules(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    for code in (500, 503):
        tubemq.on("send_message").fail(code)
    tubemq.clear_faults()
    assert raw.call(send(b"x")).errCode == 200


def test_rules_do_not_apply_to_send_without_a_connection(tubemq: EmbeddedTubeMQ) -> None:
    fault = tubemq.on("send_message").fail(500)
    tubemq.send("demo", b"x")
    assert fault.fired == 0


# Effects


SAMPLES: list[Message] = [
    master_pb.RegisterRequestP2M(clientId="c1", hostName="127.0.0.1", brokerCheckSum=-1),
    master_pb.HeartRequestP2M(clientId="c1", hostName="127.0.0.1", brokerCheckSum=-1),
    close_producer(),
    master_pb.RegisterRequestC2M(clientId="c1", groupName="g", hostName="127.0.0.1", topicList=["demo"]),
    master_pb.HeartRequestC2M(clientId="c1", groupName="g", reportSubscribeInfo=False),
    master_pb.CloseRequestC2M(clientId="c1", groupName="g"),
    master_pb.RegisterRequestC2MV2(clientId="c1", groupName="g", hostName="127.0.0.1", sourceCount=-1, nodeId=0),
    master_pb.HeartRequestC2MV2(clientId="c1", groupName="g"),
    master_pb.GetPartMetaRequestC2M(clientId="c1", groupName="g", brokerConfigId=-2, topicMetaInfoId=-2),
    send(b"x"),
    register(),
    broker_pb.HeartBeatRequestC2B(clientId="c1", groupName="g", readStatus=0),
    broker_pb.GetMessageRequestC2B(clientId="c1", groupName="g", topicName="demo", partitionId=0),
    broker_pb.CommitOffsetRequestC2B(clientId="c1", groupName="g", topicName="demo", partitionId=0),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: METHODS[type(message)][0].name)
@pytest.mark.parametrize("code", [400, 503, 777])
def test_fail_answers_with_the_code_in_the_methods_reply(tubemq: EmbeddedTubeMQ, message: Message, code: int) -> None:
    method, service = METHODS[type(message)]
    address = tubemq.master.split(",")[0] if service is ServiceType.MASTER else tubemq.broker_address(1)
    with Raw(address) as connection, tubemq.on(method).fail(code, "because") as fault:
        reply = connection.call(message)
    assert (reply.errCode, reply.errMsg) == (code, "because")
    assert not getattr(reply, "success", False)
    assert getattr(reply, "currOffset", -1) == -1
    assert fault.fired == 1


def test_fail_without_a_text_uses_the_name_of_the_code(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    tubemq.on("send_message").fail(419)
    assert raw.call(send(b"x")).errMsg == "SERVER_RECEIVE_OVERFLOW"
    assert not bodies(tubemq)


def test_throw_answers_with_an_exception(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    fault = tubemq.on("send_message").throw("java.lang.IllegalStateException", "because")
    assert raw.reply(raw.ask(send(b"x"))[0]) == Failure("java.lang.IllegalStateException", "because", fatal=False)
    assert fault.fired == 1
    assert not bodies(tubemq)


@pytest.mark.parametrize(
    ("effect", "stored"), [(Calls.drop_request, [b"1", b"3"]), (Calls.drop_reply, [b"1", b"2", b"3"])]
)
def test_a_dropped_call_is_executed_if_only_its_reply_is_lost(
    tubemq: EmbeddedTubeMQ, raw: Raw, effect: Callable[[Calls], Fault], stored: list[bytes]
) -> None:
    fault = effect(tubemq.on("send_message", nth=2, times=1))
    first, _, third = raw.ask(send(b"1"), send(b"2"), send(b"3"))
    raw.reply(third)
    assert raw.order == [first, third]
    assert not raw.rest()
    assert bodies(tubemq) == stored
    assert fault.fired == 1


def test_a_delay_holds_later_requests_of_the_connection(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    fault = tubemq.on("send_message", nth=2, times=1).delay(60)
    first, second, third = raw.ask(send(b"1"), send(b"2"), send(b"3"))
    raw.reply(first)
    with Raw(tubemq.broker_address(1)) as other:
        other.call(send(b"4"))
        assert fault.fired == 1
        assert bodies(tubemq) == [b"1", b"4"]
        tubemq.clock.advance(59)
        other.call(send(b"5"))
    assert bodies(tubemq) == [b"1", b"4", b"5"]
    tubemq.clock.advance(1)
    raw.reply(third)
    assert raw.order == [first, second, third]
    assert bodies(tubemq) == [b"1", b"4", b"5", b"2", b"3"]


def test_a_delay_ends_without_advance(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    tubemq.on("send_message").delay(0.01)
    assert raw.call(send(b"x")).success


def test_a_request_delayed_beyond_its_timeout_is_dropped(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """A real server drops a request that waited for a worker longer than its timeout."""
    fault = tubemq.on("send_message", times=1).delay(11)
    raw.ask(send(b"1"), timeout_ms=10_000)
    (second,) = raw.ask(send(b"2"))
    wait_until(lambda: fault.fired)
    tubemq.clock.advance(11)
    raw.reply(second)
    assert raw.order == [second]
    assert bodies(tubemq) == [b"2"]


def test_a_peer_that_closes_during_a_delay(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    fault = tubemq.on("send_message", times=1).delay(60)
    raw.ask(send(b"1"))
    wait_until(lambda: fault.fired)
    assert not raw.rest()
    tubemq.clock.advance(60)
    with Raw(tubemq.broker_address(1)) as other:
        other.call(send(b"2"))
    assert bodies(tubemq) == [b"2"]


@pytest.mark.parametrize("framing", list(Framing), ids=lambda framing: framing.value)
def test_close_mid_frame(framing: Framing) -> None:
    """Earlier answers arrive whole; later requests are not executed."""
    with EmbeddedTubeMQ(topics={"demo": 1}, framing=framing) as tubemq:
        with Raw(tubemq.broker_address(1), framing) as raw:
            raw.ask(send(b"0"))
            length = len(raw.rest())
        fault = tubemq.on("send_message", nth=2, times=1).close_mid_frame()
        with Raw(tubemq.broker_address(1), framing) as raw:
            raw.ask(send(b"1"), send(b"2"), send(b"3"))
            data = raw.until_the_end()
        assert len(data) == length + length // 2
        (frame,) = FrameDecoder(framing).feed(data)
        assert frame.serial_no == 1
        assert fault.fired == 1
        assert bodies(tubemq) == [b"0", b"1", b"2"]


def test_close_connection(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """Earlier answers arrive; the request and later ones are not executed."""
    fault = tubemq.on("send_message", nth=2, times=1).close_connection()
    raw.ask(send(b"1"), send(b"2"), send(b"3"))
    (frame,) = FrameDecoder(Framing.STANDARD).feed(raw.until_the_end())
    assert frame.serial_no == 1
    assert fault.fired == 1
    assert bodies(tubemq) == [b"1"]


@pytest.mark.parametrize("at", [0, 1, 7, 30, -1, -2, 10_000, -10_000])
def test_corrupt_inverts_one_byte(tubemq: EmbeddedTubeMQ, at: int) -> None:
    """Only that byte of that answer. An index beyond the frame is its last byte, or its first."""

    def answers() -> bytes:
        with Raw(tubemq.broker_address(1)) as connection:
            connection.ask(*[register()] * 3)  # their answers are equal
            return connection.rest()

    whole = answers()
    with tubemq.on("partition_register", nth=2, times=1).corrupt(at) as fault:
        damaged = answers()
    assert fault.fired == 1
    assert len(whole) == len(damaged)
    length = len(whole) // 3
    place = min(at, length - 1) if at >= 0 else max(length + at, 0)
    wrong = [index for index in range(len(whole)) if whole[index] != damaged[index]]
    assert wrong == [length + place]
    assert whole[wrong[0]] ^ damaged[wrong[0]] == 0xFF


def test_corrupt_does_nothing_without_an_answer(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """A request without any time left gets no answer."""
    fault = tubemq.on("send_message", times=1).corrupt(0)
    raw.ask(send(b"1"), timeout_ms=0)
    assert raw.call(send(b"2")).success
    assert fault.fired == 1
    assert fault.error is None


def test_silence_ignores_all_later_requests(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """Only on that connection, and forever."""
    fault = tubemq.on("send_message", nth=2, times=1).silence()
    (first, *_) = raw.ask(send(b"1"), send(b"2"), send(b"3"))
    raw.reply(first)
    raw.ask(register(), send(b"4"))
    with Raw(tubemq.broker_address(1)) as other:
        assert other.call(send(b"5")).success
    assert not raw.rest()
    assert raw.order == [first]
    assert bodies(tubemq) == [b"1", b"5"]
    assert fault.fired == 1


@pytest.mark.parametrize(("after", "seen"), [(False, [b"1"]), (True, [b"1", b"2"])])
def test_a_function_runs_before_or_after_the_work(
    tubemq: EmbeddedTubeMQ, raw: Raw, after: bool, seen: list[bytes]
) -> None:
    states: list[list[bytes]] = []
    fault = tubemq.on("send_message", nth=2, times=1).run(lambda: states.append(bodies(tubemq)), after=after)
    for body in (b"1", b"2", b"3"):
        assert raw.call(send(body)).success
    assert states == [seen]
    assert fault.fired == 1


@pytest.mark.parametrize("end", [EmbeddedTubeMQ.stop_broker, EmbeddedTubeMQ.crash_broker])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_server_that_the_function_stops_does_not_answer(
    tubemq: EmbeddedTubeMQ, raw: Raw, end: Callable[[EmbeddedTubeMQ, int], None], after: bool
) -> None:
    """It executes nothing more from that connection, even if it restarts at once."""

    def restart() -> None:
        tubemq.flush("demo")
        end(tubemq, 1)
        tubemq.start_broker(1)

    fault = tubemq.on("send_message", nth=2, times=1).run(restart, after=after)
    raw.ask(send(b"1"), send(b"2"), send(b"3"))
    raw.until_the_end()
    assert fault.fired == 1
    with Raw(tubemq.broker_address(1)) as other:
        assert other.call(send(b"4")).success
    assert bodies(tubemq) == ([b"1", b"2", b"4"] if after else [b"1", b"4"])


def test_a_function_may_switch_the_master(tubemq: EmbeddedTubeMQ) -> None:
    fault = tubemq.on("producer_close", times=1).run(tubemq.switch_master)
    for address, kind in zip(tubemq.master.split(","), (Failure, Response), strict=True):
        with Raw(address) as master:
            assert isinstance(master.reply(master.ask(close_producer())[0]), kind)
    assert fault.fired == 1


# Functions that raise


class OwnError(Exception):
    """The error of a test's function."""


def fail() -> None:
    raise OwnError


def fail_as_pytest_does() -> None:
    pytest.fail("on purpose")


def ask_to_the_end(raw: Raw) -> bytes:
    raw.ask(send(b"1"), send(b"2"), send(b"3"))
    return raw.until_the_end()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("function", "error"), [(fail, OwnError), (fail_as_pytest_does, pytest.fail.Exception)])
def test_an_error_of_a_function_ends_the_connection_and_is_raised_by_the_block(
    tubemq: EmbeddedTubeMQ,
    raw: Raw,
    caplog: pytest.LogCaptureFixture,
    function: Callable[[], None],
    error: type[BaseException],
    after: bool,
) -> None:
    """Earlier answers arrive; later requests are not executed."""
    with pytest.raises(error) as caught, tubemq.on("send_message", nth=2).run(function, after=after) as fault:
        answers = ask_to_the_end(raw)
    (frame,) = FrameDecoder(Framing.STANDARD).feed(answers)
    assert frame.serial_no == 1
    assert caught.value is fault.error
    assert fault.fired == 1
    assert bodies(tubemq) == ([b"1", b"2"] if after else [b"1"])
    assert not [record for record in caplog.records if not record.name.startswith("tubemq_spark.client")]
    fault.remove()  # neither this nor the end of the cluster raises it again
    with Raw(tubemq.broker_address(1)) as other:
        assert other.call(send(b"4")).success


def test_a_function_raises_in_a_delayed_call(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """`advance`, which ran the call, does not raise."""
    delay = tubemq.on("send_message", times=1).delay(60)
    fault = tubemq.on("send_message").run(fail)
    raw.ask(send(b"1"), send(b"2"))
    wait_until(lambda: delay.fired)
    tubemq.clock.advance(60)
    (frame,) = FrameDecoder(Framing.STANDARD).feed(raw.until_the_end())
    assert frame.serial_no == 1
    with pytest.raises(OwnError):
        fault.remove()


def raise_within(tubemq: EmbeddedTubeMQ) -> Fault:
    fault = tubemq.on("send_message").run(fail)
    with Raw(tubemq.broker_address(1)) as raw:
        raw.ask(send(b"1"))
        assert not raw.until_the_end()
    return fault


def test_a_functions_error_does_not_replace_another_error(tubemq: EmbeddedTubeMQ) -> None:
    with pytest.raises(ZeroDivisionError), raise_within(tubemq) as fault:
        raise ZeroDivisionError
    with pytest.raises(OwnError):
        fault.remove()
    with pytest.raises(ZeroDivisionError), EmbeddedTubeMQ(topics={"demo": 1}) as cluster:  # noqa: PT012
        raise_within(cluster)
        raise ZeroDivisionError


def test_clear_faults_raises_a_pending_error(tubemq: EmbeddedTubeMQ) -> None:
    raise_within(tubemq)
    with pytest.raises(OwnError):
        tubemq.clear_faults()
    tubemq.clear_faults()


@pytest.mark.parametrize("removed", [False, True])
def test_close_raises_a_pending_error(removed: bool) -> None:
    with EmbeddedTubeMQ(topics={"demo": 1}) as tubemq:
        fault = raise_within(tubemq)
        if removed:
            with pytest.raises(ZeroDivisionError), fault:
                raise ZeroDivisionError
            tubemq.on("send_message").count()  # this replaces the list of rules
        with pytest.raises(OwnError):
            tubemq.close()
        tubemq.close()
    with pytest.raises(OwnError), EmbeddedTubeMQ(topics={"demo": 1}) as tubemq:
        raise_within(tubemq)


def test_a_function_cannot_close_the_cluster(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """The cluster still works, and the fixture closes it after the test."""
    fault = tubemq.on("send_message", times=1).run(tubemq.close)
    raw.ask(send(b"1"))
    assert not raw.until_the_end()
    with pytest.raises(RuntimeError, match="cannot close it"):
        fault.remove()
    with Raw(tubemq.broker_address(1)) as other:
        assert other.call(send(b"2")).success
    address = tubemq.broker_address(1)
    tubemq.close()
    with pytest.raises(ConnectionRefusedError):
        Raw(address)


def test_rules_do_not_apply_to_malformed_requests(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    fault = tubemq.on("send_message").fail(500)
    nonsense = Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, 1000, b"\xff\xff\xff")
    raw.write(encode_frame(99, encode_request(nonsense), Framing.STANDARD))
    assert isinstance(raw.reply(99), Failure)
    assert fault.fired == 0


def test_end_late_moves_the_cursor_of_the_current_reader(tubemq: EmbeddedTubeMQ, raw: Raw) -> None:
    """A slow thread of a broker finishes the fetch of a client that lost its claim."""
    for number in range(9):
        raw.call(send(b"%d" % number, partition=number % 3))
    raw.call(register(client="killed"))
    with tubemq.on("get_message").end_late(2) as fault, Raw(tubemq.broker_address(1)) as other:
        other.ask(fetch("killed"))
        assert other.until_the_end() == b""
    assert fault.fired == 1
    raw.call(register(OpType.UNREGISTER, client="killed"))
    raw.call(register(client="next"))
    first = raw.call(fetch("next"))
    assert (first.currOffset, len(first.messages)) == (0, 3)
    raw.call(register(client="next"))  # at the group's position
    assert raw.call(fetch("next")).errCode == 404


@pytest.mark.parametrize(("method", "fetches"), [("send_message", 1), ("get_message", 0)])
def test_end_late_needs_get_message(tubemq: EmbeddedTubeMQ, method: str, fetches: int) -> None:
    with pytest.raises(ConfigError, match="only get_message can end late"):
        tubemq.on(method).end_late(fetches)
