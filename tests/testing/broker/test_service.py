# SPDX-License-Identifier: Apache-2.0
"""A broker's answers to all requests: codes, texts and fields."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.testing.broker.calls import BrokerBench, heartbeat, registration
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK, OpType, ReadStatus
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, check_sum
from tubemq_spark.testing.catalog import FlowRule
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.reply_status import DeclinedError

UNIT = 28
RECORD = 53  # bytes that a message of one byte takes in the data file
REG_TIMEOUT = 35.0
INFO = "1:10.0.0.1:8123#demo:0"
LIMIT = 1024 * 1024 + MESSAGE_SIZE_SLACK  # bytes of a payload
WIDE_LIMIT = 2000 + MESSAGE_SIZE_SLACK

Fields = dict[str, Any]


def outcome(reply: Any) -> tuple[int, str]:
    assert reply.success == (reply.errCode == 200)
    return reply.errCode, reply.errMsg


def present(reply: Any) -> set[str]:
    return {field.name for field, _ in reply.ListFields()}


def payloads(reply: Any) -> list[bytes]:
    return [message.payLoadData for message in reply.messages]


# -- sends


def test_a_send() -> None:
    bench = BrokerBench()
    first, second = bench.send(), bench.send(checkSum=check_sum(b"two"), data=b"two", partitionId=1)
    assert (first.success, first.errCode, first.errMsg) == (True, 200, str(first.messageId))
    assert first.HasField("requireAuth")
    assert not first.requireAuth
    assert first.appendTime == bench.clock.wall_ms()
    assert [first.appendOffset, second.appendOffset] == [0, UNIT]
    assert second.messageId > first.messageId > 0


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": " "}, 400, "Request miss necessary clientId data!"),
        ({"clientId": "x" * 1025}, 400, "clientId's length over max value, allowed max length is 1024"),
        ({"topicName": ""}, 400, "Request miss necessary topicName data!"),
        ({"topicName": "x" * 65}, 400, "topicName's length over max value, allowed max length is 64"),
        ({"data": b""}, 400, "data length is zero!"),
        (
            {"data": bytes(LIMIT + 1)},
            400,
            f"data length over max length, allowed max length is {LIMIT}, data length is {LIMIT + 1}",
        ),
        (
            {"topicName": "wide", "data": bytes(WIDE_LIMIT + 1)},
            400,
            f"data length over max length, allowed max length is {WIDE_LIMIT}, data length is {WIDE_LIMIT + 1}",
        ),
        ({"topicName": "nowhere"}, 403, "topicName nowhere not existed, please check your configure"),
        ({"topicName": "other"}, 403, "topicName other not existed, please check your configure"),
        (
            {"topicName": "__offset_history__"},
            403,
            "topicName __offset_history__ does not allow producers to send data!",
        ),
        ({"partitionId": 3}, 403, "partitionId demo-3 not existed, please check your configure"),
        ({"partitionId": -1}, 403, "partitionId demo--1 not existed, please check your configure"),
        ({"topicName": "wide", "partitionId": 10_002}, 403, "partitionId wide-10002 not existed, please check your "),
        (
            {"checkSum": 5},
            403,
            f"Checksum msg data failure: 5 of demo not equal to the data's checksum of {check_sum(b'x')}",
        ),
    ],
)
def test_refused_sends(fields: Fields, code: int, text: str) -> None:
    bench = BrokerBench()
    reply = bench.send(**fields)
    assert (reply.success, reply.errCode) == (False, code)
    assert reply.errMsg.startswith(text)
    assert present(reply) == {"success", "errCode", "errMsg"}
    assert not bench.broker.stores.of_topic("demo")


@pytest.mark.parametrize(
    "fields",
    [
        {"clientId": " p "},
        {"topicName": " demo "},
        {"data": bytes(LIMIT)},
        {"topicName": "wide", "data": bytes(WIDE_LIMIT)},
        {"topicName": "wide", "partitionId": 10_001},
        {"topicName": "wide", "partitionId": 20_000},  # a store that is in no list
    ],
)
def test_sends_at_the_limits_are_accepted(fields: Fields) -> None:
    assert BrokerBench().send(**fields).errCode == 200


def test_release_1_2_has_other_error_texts() -> None:
    text = "topicName's length over max value, required max length is 64"
    assert BrokerBench(Release.V1_2).send(topicName="x" * 65).errMsg == text


@pytest.mark.parametrize(
    ("payload", "readable"),
    [
        (b"", None),
        (b"abc", False),
        (struct.pack(">i", 9) + b"four", False),
        (struct.pack(">i", 4) + b"four", True),
    ],
)
def test_messages_with_impossible_attributes_are_stored_but_never_returned(
    payload: bytes, readable: bool | None
) -> None:
    bench = BrokerBench()
    assert bench.send(data=payload, flag=ATTRIBUTES_FLAG).errCode == (400 if readable is None else 200)
    bench.send(data=b"last")
    bench.register()
    reply = bench.get(manualCommitOffset=True)
    assert outcome(reply) == (200, "OK!")
    assert payloads(reply) == ([payload] if readable else []) + [b"last"]


def test_a_read_of_unreadable_messages_is_an_empty_success() -> None:
    bench = BrokerBench()
    bench.send(data=b"abc", flag=ATTRIBUTES_FLAG)
    bench.register()
    reply = bench.get(manualCommitOffset=True)
    assert (*outcome(reply), payloads(reply)) == (200, "OK!", [])
    assert bench.get(manualCommitOffset=True).errCode == 404


# -- credentials


def test_requests_whose_credentials_are_checked() -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    bench.heartbeat(INFO)
    bench.get()
    bench.commit()
    bench.unregister()
    assert bench.asked == [True, False, False, False]


def test_requests_with_wrong_credentials_change_nothing() -> None:
    bench = BrokerBench()
    bench.refusal = DeclinedError(ErrCode.CERTIFICATE_FAILURE, "who are you?")
    for reply in (bench.send(clientId=""), bench.register(clientId=""), bench.heartbeat("nonsense", clientId="")):
        assert outcome(reply) == (415, "who are you?")
    assert not bench.broker.claims
    assert not bench.broker.stores.of_topic("demo")


# -- claims


def test_a_register() -> None:
    bench = BrokerBench()
    for _ in range(3):
        bench.send()
    reply = bench.register()
    assert (*outcome(reply), reply.currOffset, reply.maxOffset) == (200, "OK!", 0, 3 * UNIT)
    asked = bench.register(currOffset=UNIT, filterCondStr=["a", " "], qryPriorityId=301)
    assert (asked.currOffset, asked.maxOffset) == (UNIT, 3 * UNIT)
    assert bench.register(groupName="new", readStatus=ReadStatus.FROM_MAX).currOffset == 3 * UNIT


def test_a_reader_of_files_gets_their_end_as_the_maximum() -> None:
    bench = BrokerBench()
    bench.send()
    assert bench.register(qryPriorityId=1).maxOffset == 0
    assert bench.commit().maxOffset == 0
    assert bench.register(qryPriorityId=-2).maxOffset == UNIT
    bench.catalog.default_flow = FlowRule(1, "[]", 1)
    assert bench.register().maxOffset == 0
    bench.catalog.default_flow = FlowRule(2, "[]", 0)
    assert bench.register().maxOffset == UNIT


@pytest.mark.parametrize("op_type", [OpType.REGISTER, OpType.UNREGISTER, 7])
@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": ""}, 400, "Request miss necessary clientId data!"),
        ({"groupName": " ", "topicName": "demo"}, 400, "Request miss necessary groupName data!"),
        ({"groupName": "x" * 1025}, 400, "groupName's length over max value, allowed max length is 1024"),
        ({"groupName": "", "topicName": ""}, 400, "Request miss necessary topicName data!"),
        ({"topicName": "nowhere"}, 403, "topicName nowhere not existed, please check your configure"),
    ],
)
def test_refused_registers_and_unregisters(op_type: int, fields: Fields, code: int, text: str) -> None:
    bench = BrokerBench()
    reply = bench.call(registration(**{"op_type": op_type, **fields, "client_id": fields.get("clientId", "c1")}))
    assert (*outcome(reply), reply.currOffset) == (code, text, -1)
    assert not bench.broker.claims


@pytest.mark.parametrize("op_type", [0, 30, 33, -1])
def test_other_op_types(op_type: int) -> None:
    reply = BrokerBench().call(registration("c1", op_type))
    assert (*outcome(reply), reply.currOffset) == (400, f"Invalid request:{op_type}", -1)


@pytest.mark.parametrize("partition", [3, -1, 10_003])
def test_a_register_of_a_wrong_partition_fails_but_leaves_its_claim(partition: int) -> None:
    bench = BrokerBench()
    wrong = f"Wrong partition value {partition},valid partitions in (0,2)"
    failed = bench.register(partitionId=partition)
    assert outcome(failed) == (500, f"Register broker failure!, exception is {wrong}")
    other = bench.register("c2", partitionId=partition)
    held = f"[Duplicated Register] Partition 1#g:demo:{partition} has been registered by c1"
    assert (*outcome(other), other.currOffset) == (410, held, -1)
    read = bench.get(partitionId=partition)
    assert outcome(read) == (500, f"Get the store of topic demo in partition {partition} failure!")
    assert bench.register("c1", partitionId=partition).errCode == 500
    bench.wait(REG_TIMEOUT + 1)
    assert not bench.broker.claims
    assert bench.register("c2", partitionId=partition).errCode == 500


def test_a_partition_has_one_reader_in_a_group() -> None:
    bench = BrokerBench()
    bench.register("c1")
    refused = bench.register("c2")
    assert outcome(refused) == (410, "[Duplicated Register] Partition 1#g:demo:0 has been registered by c1")
    assert bench.register("c1").errCode == 200
    assert bench.register("c2", groupName="g2").errCode == 200
    assert bench.register("c2", partitionId=1).errCode == 200
    assert bench.unregister("c1").errCode == 200
    assert bench.register("c2").errCode == 200


def test_the_first_register_after_an_expired_claim_only_removes_it() -> None:
    bench = BrokerBench()
    bench.register("c1")
    bench.clock.advance(REG_TIMEOUT)  # without a scan
    refused = bench.register("c2")
    assert outcome(refused) == (410, "[Duplicated Register] Remove Invalid Consumer Register c1#g:demo:0")
    assert bench.register("c2").errCode == 200
    assert bench.get("c1").errCode == 412


@pytest.mark.parametrize("sign", ["get", "heartbeat", "register", None])
def test_heartbeats_and_gets_keep_a_claim(sign: str | None) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    for _ in range(3):
        bench.wait(REG_TIMEOUT - 2)
        if sign == "heartbeat":
            bench.heartbeat(INFO)
        elif sign is not None:
            getattr(bench, sign)()
    assert bench.commit().errCode == (ErrCode.UNAUTHORIZED if sign is None else 200)


def test_unregisters() -> None:
    bench = BrokerBench()
    unknown = bench.unregister()
    assert outcome(unknown) == (411, "UnRegistered Consumer c1, you have to register firstly!")
    bench.register("c1")
    text = "[Duplicated Request]Partition g:demo:0 has been consumed by c1;Current consumer c2, broker=10.0.0.1"
    assert outcome(bench.unregister("c2")) == (412, text)
    done = bench.unregister("c1")
    assert (*outcome(done), done.currOffset) == (200, "OK!", -1)
    assert not done.HasField("maxOffset")
    assert bench.unregister("c1").errCode == 411


@pytest.mark.parametrize(("status", "position"), [(ReadStatus.NORMAL, UNIT), (ReadStatus.FROM_MAX, 0)])
def test_an_unregister_confirms_or_drops_what_is_in_flight(status: int, position: int) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    bench.get(manualCommitOffset=True)
    bench.unregister(readStatus=status)
    assert bench.register().currOffset == position


# -- heartbeats


def test_a_heartbeat_lists_lost_partitions() -> None:
    bench = BrokerBench()
    bench.register("c1", partitionId=0)
    bench.register("c2", partitionId=1)
    mine, others, nobodys = (f"1:10.0.0.1:8123#demo:{n}" for n in range(3))
    reply = bench.heartbeat(mine, others, nobodys)
    assert outcome(reply) == (200, "OK!")
    assert reply.hasPartFailure
    assert list(reply.failureInfo) == [f"412:{others}", f"411:{nobodys}"]
    fine = bench.heartbeat(mine)
    assert fine.HasField("hasPartFailure")
    assert not fine.hasPartFailure
    assert not fine.failureInfo
    assert not bench.heartbeat().hasPartFailure


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ("01:host:+08123#demo:02:more#even more", "411:1:host:8123#demo:2"),
        ("7:elsewhere:1#nowhere:0", "411:7:elsewhere:1#nowhere:0"),
    ],
)
def test_a_heartbeat_repeats_a_partition_in_the_brokers_format(info: str, told: str) -> None:
    assert list(BrokerBench().heartbeat(info).failureInfo) == [told]


@pytest.mark.parametrize(
    "info", ["1:h:8123", "1:h#demo:0", "1:h:8123#demo", "1:h:8123#demo:first", "x:h:1#demo:0", "#"]
)
def test_a_malformed_partition_fails_the_heartbeat_without_effect(info: str) -> None:
    bench = BrokerBench()
    bench.register()
    bench.clock.advance(REG_TIMEOUT - 1)
    failure = bench.failure(heartbeat(INFO, info))
    assert failure.exception_name == "java.lang.reflect.InvocationTargetException"
    bench.wait(2)
    assert not bench.broker.claims


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"clientId": ""}, "Request miss necessary clientId data!"),
        ({"groupName": ""}, "Request miss necessary groupName data!"),
    ],
)
def test_refused_heartbeats(fields: Fields, text: str) -> None:
    reply = BrokerBench().heartbeat(INFO, **fields)
    assert outcome(reply) == (400, text)
    assert not reply.HasField("hasPartFailure")


def test_a_heartbeat_replaces_the_read_policy_of_its_claims() -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    bench.register(partitionId=1)
    assert bench.commit().maxOffset == UNIT
    bench.heartbeat(INFO, qryPriorityId=1)
    assert bench.commit().maxOffset == 0
    assert bench.commit(partitionId=1).maxOffset == UNIT
    assert outcome(bench.get()) == (404, "current offset is exceed max file offset")
    bench.heartbeat(INFO)  # a heartbeat without a policy resets it
    assert bench.commit().maxOffset == UNIT


# -- reads


def test_a_get() -> None:
    bench = BrokerBench()
    for n in range(3):
        bench.send(data=b"%d" % n)
    bench.register()
    reply = bench.get(manualCommitOffset=True)
    assert (*outcome(reply), payloads(reply)) == (200, "OK!", [b"0", b"1", b"2"])
    assert (reply.currOffset, reply.maxOffset, reply.currDataDlt, reply.minLimitTime) == (0, 3 * UNIT, 0, 0)
    assert reply.HasField("escFlowCtrl")
    assert reply.HasField("requireSlow")
    assert not reply.escFlowCtrl
    assert not reply.requireSlow


def test_a_get_reports_the_lag() -> None:
    bench = BrokerBench(transfer_size=1)
    for _ in range(3):
        bench.send()
    bench.register()
    behind = [bench.get(manualCommitOffset=True).currDataDlt for _ in range(3)]
    assert behind == [2 * RECORD, RECORD, 0]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": ""}, 400, "Request miss necessary clientId data!"),
        ({"groupName": ""}, 400, "Request miss necessary groupName data!"),
        ({"topicName": ""}, 400, "Request miss necessary topicName data!"),
        ({"topicName": "nowhere"}, 403, "topicName nowhere not existed, please check your configure"),
        ({"partitionId": 1}, 411, "UnRegistered Consumer:c1, you have to register firstly!"),
        ({"partitionId": 99}, 411, "UnRegistered Consumer:c1, you have to register firstly!"),
        ({"groupName": "h"}, 411, "UnRegistered Consumer:c1, you have to register firstly!"),
        (
            {"clientId": "c2"},
            412,
            "[Duplicated Request] Partition=g:demo:0 of Broker=1 has been consumed by c1;Current consumer c2",
        ),
    ],
)
def test_refused_gets(fields: Fields, code: int, text: str) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    reply = bench.get(**fields)
    assert (*outcome(reply), reply.minLimitTime, reply.currOffset, reply.currDataDlt) == (code, text, 0, -1, -1)
    assert not reply.messages
    assert not reply.HasField("maxOffset")


def test_gets_that_find_nothing() -> None:
    bench = BrokerBench()
    bench.register()
    empty = bench.get()
    assert (*outcome(empty), empty.minLimitTime) == (404, "Request offset reached cache maxOffset", 0)
    bench.send(partitionId=1)
    others = bench.get(manualCommitOffset=True)
    assert (*outcome(others), others.minLimitTime) == (404, "Can't found Message by index!", RECORD)
    at_end = bench.get(manualCommitOffset=True)
    assert (*outcome(at_end), at_end.minLimitTime) == (404, "The request offset reached maxOffset!", -1)


@pytest.mark.parametrize(
    ("policy", "text"),
    [(101, "current offset is exceed max file offset"), (201, "Can't found Message by index in cache")],
)
def test_a_reader_of_files_does_not_see_memory(policy: int, text: str) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register(qryPriorityId=policy)
    for _ in range(2):
        assert outcome(bench.get(manualCommitOffset=True)) == (404, text)
    bench.broker.stores.of_topic("demo")[0].flush()
    assert payloads(bench.get(manualCommitOffset=True)) == [b"x"]


def test_filtered_readers_use_the_other_half_of_the_policy() -> None:
    bench = BrokerBench()
    bench.send(msgType=" a ")
    bench.register(filterCondStr=["a"], qryPriorityId=103)
    assert payloads(bench.get(manualCommitOffset=True)) == [b"x"]
    bench.register(filterCondStr=["a"], qryPriorityId=301)
    assert outcome(bench.get(manualCommitOffset=True)) == (404, "current offset is exceed max file offset")


SLOW = '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":1,"freqInMs":400}]}]'
TWELFTH = 1024 * 1024 // 12


def test_a_flow_rule_limits_a_reader_until_it_escapes_or_waits() -> None:
    bench = BrokerBench(transfer_size=1000)
    bench.catalog.default_flow = FlowRule(1, SLOW, 301)
    for _ in range(20):
        bench.send(data=bytes(TWELFTH))
    bench.register()
    got = [bench.get(manualCommitOffset=True) for _ in range(3)]
    assert [reply.errCode for reply in got] == [200, 200, 452]  # the first read does not count
    assert (got[2].errMsg, got[2].minLimitTime) == ("RpcServer consume speed limit!", 400)
    escaped = bench.get(manualCommitOffset=True, escFlowCtrl=True)
    assert escaped.errCode == 200
    assert bench.get(manualCommitOffset=True).errCode == 452
    bench.clock.advance(5.5)
    assert bench.get(manualCommitOffset=True).errCode == 200
    bench.register()  # a new claim has a new quota
    assert [bench.get(manualCommitOffset=True).errCode for _ in range(3)] == [200, 200, 452]


def test_a_removed_flow_rule_applies_until_its_minute_ends() -> None:
    bench = BrokerBench(transfer_size=1000)
    bench.catalog.default_flow = FlowRule(1, SLOW, 301)
    for _ in range(20):
        bench.send(data=bytes(TWELFTH))
    bench.register()
    assert [bench.get().errCode for _ in range(3)] == [200, 200, 452]
    bench.catalog.default_flow = None
    assert bench.get().errCode == 452
    bench.clock.advance(60.5)
    assert [bench.get().errCode for _ in range(5)] == [200] * 5


# -- commits


@pytest.mark.parametrize(
    ("fields", "position"), [({}, UNIT), ({"lastPackConsumed": True}, UNIT), ({"lastPackConsumed": False}, 0)]
)
def test_a_commit(fields: Fields, position: int) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    bench.get(manualCommitOffset=True)
    reply = bench.commit(**fields)
    assert (*outcome(reply), reply.currOffset, reply.maxOffset) == (200, "OK!", position, UNIT)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": ""}, 400, "Request miss necessary clientId data!"),
        ({"groupName": ""}, 400, "Request miss necessary groupName data!"),
        ({"topicName": ""}, 400, "Request miss necessary topicName data!"),
        ({"topicName": "nowhere"}, 403, "topicName nowhere not existed, please check your configure"),
        ({"partitionId": 3}, 403, "partitionId demo-3 not existed, please check your configure"),
        ({"partitionId": 1}, 401, "The partition not registered by consumers"),
        ({"groupName": "h"}, 401, "The partition not registered by consumers"),
        ({"clientId": "c2"}, 401, "The partition has been registered by other consumer: c1"),
    ],
)
def test_refused_commits(fields: Fields, code: int, text: str) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    bench.get(manualCommitOffset=True)
    reply = bench.commit(**fields)
    assert (*outcome(reply), reply.currOffset) == (code, text, -1)
    assert not reply.HasField("maxOffset")
    assert bench.commit().currOffset == UNIT


# -- stop and crash


@pytest.mark.parametrize(("orderly", "left"), [(True, [b"0", b"1"]), (False, [b"0"])])
def test_effects_of_a_stop_and_a_crash(orderly: bool, left: list[bytes]) -> None:
    bench = BrokerBench()
    bench.send(data=b"0")
    bench.broker.stores.of_topic("demo")[0].flush()
    last = bench.send(data=b"1").messageId
    bench.register()
    if orderly:
        bench.broker.stop()
    else:
        bench.broker.crash()
    assert bench.get().errCode == 411
    assert bench.register("c2").currOffset == 0
    bench.broker.stores.of_topic("demo")[0].flush()
    seen = [one for _ in range(3) for one in payloads(bench.get("c2", manualCommitOffset=True))]
    assert seen == left
    assert bench.send().messageId != last
