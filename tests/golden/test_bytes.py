# SPDX-License-Identifier: Apache-2.0
"""Tests that captured bytes of real servers (tests/golden) decode to what was sent."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from tests.golden import capture
from tubemq_spark.protocol import envelope
from tubemq_spark.protocol.claim_id import holder_in
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import (
    Failure,
    Request,
    Response,
    decode_reply,
    decode_request,
    parse,
)
from tubemq_spark.protocol.errcode import ErrCode, NotFound, not_found_kind
from tubemq_spark.protocol.frame import Frame, FrameDecoder
from tubemq_spark.protocol.message import Attributes, check_sum, decode_attributes, parse_msg_time, split_payload
from tubemq_spark.protocol.message_columns import split_reply
from tubemq_spark.protocol.metadata import (
    Broker,
    TopicOnBroker,
    parse_brokers,
    parse_consumer_topic,
    parse_failure_info,
    parse_producer_topic,
)
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.protocol.rpc import RpcProtocol

GOLDEN = Path(capture.__file__).parent
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Exchange:
    request: bytes
    reply: bytes


@dataclass(frozen=True)
class Conversation:
    framing: Framing
    exchanges: dict[str, Exchange]

    def frame(self, data: bytes) -> Frame:
        (frame,) = FrameDecoder(self.framing).feed(data)
        return frame

    def request(self, name: str) -> Request:
        return decode_request(self.frame(self.exchanges[name].request).body)

    def outcome(self, name: str) -> Response | Failure:
        return decode_reply(self.frame(self.exchanges[name].reply).body)

    def reply(self, name: str, kind: type[M]) -> M:
        outcome = self.outcome(name)
        assert isinstance(outcome, Response)
        return parse(kind, outcome.data)


FILES = {path.stem: path for path in sorted(GOLDEN.glob("*.zip"))}
NAMES = sorted({name.partition(".")[0] for path in FILES.values() for name in zipfile.ZipFile(path).namelist()})


@cache
def conversation(stem: str) -> Conversation:
    with zipfile.ZipFile(FILES[stem]) as files:
        exchanges = {n: Exchange(files.read(f"{n}.request"), files.read(f"{n}.reply")) for n in NAMES}
    return Conversation(Framing(stem.rpartition("-")[2]), exchanges)


@pytest.fixture(params=FILES)
def talk(request: pytest.FixtureRequest) -> Conversation:
    return conversation(request.param)


# Frames


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_method_never_changes_a_captured_reply(talk: Conversation, name: str) -> None:
    body = talk.frame(talk.exchanges[name].reply).body
    assert decode_reply(body, talk.request(name).method) == talk.outcome(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("send_")])
def test_decodes_the_reply_to_a_send_without_protobuf(
    talk: Conversation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens for every message, and servers encode these replies in only one way."""
    body, method, outcome = talk.frame(talk.exchanges[name].reply).body, talk.request(name).method, talk.outcome(name)
    monkeypatch.delattr(envelope, "parse")
    assert decode_reply(body, method) == outcome
    with pytest.raises(NameError, match="parse"):
        decode_reply(body)


def test_a_prefixed_server_pads_its_blocks_with_zeros() -> None:
    data = conversation("tubemq-1.2.0-prefixed").exchanges["send_plain"].reply
    assert len(data) == 4 + 8208
    assert data[:4] == (8208).to_bytes(4, "big")
    size = int.from_bytes(data[16:20], "big")
    assert not any(data[20 + size :])


def test_a_conversation_through_one_connection(talk: Conversation) -> None:
    """The captured requests have the serial numbers 1, 2, 3 …, as a new RpcProtocol assigns them."""
    rpc = RpcProtocol(talk.framing)
    by_number = sorted(talk.exchanges.values(), key=lambda exchange: talk.frame(exchange.request).serial_no)
    for exchange in by_number:
        number, data = rpc.request(decode_request(talk.frame(exchange.request).body))
        assert data == exchange.request
        assert [found for found, _ in rpc.receive(exchange.reply)] == [number]


# The master


def test_a_producer_registers_and_gets_topics(talk: Conversation) -> None:
    registered = talk.reply("producer_register", master_pb.RegisterResponseM2P)
    assert (registered.success, registered.errCode, registered.errMsg) == (True, ErrCode.SUCCESS, "OK!")
    (broker,) = parse_brokers(registered.brokerInfos).values()
    assert (broker.broker_id, broker.address.host) == (1, "127.0.0.1")
    assert registered.authorizedInfo.visitAuthorizedToken > 0

    reply = talk.reply("producer_heartbeat", master_pb.HeartResponseM2P)
    assert list(reply.brokerInfos) == []
    assert reply.brokerCheckSum == registered.brokerCheckSum
    assert reply.appdConfig.maxMsgSize == 1024 * 1024
    (text,) = reply.topicInfos
    assert parse_producer_topic(text) == [TopicOnBroker("demo", 1, stores=1, partitions=3)]


def test_only_the_later_release_sends_message_sizes() -> None:
    texts = {
        stem: conversation(stem).reply("producer_heartbeat", master_pb.HeartResponseM2P).topicInfos for stem in FILES
    }
    assert {stem: list(text) for stem, text in texts.items()} == {
        "tubemq-1.2.0-prefixed": ["demo#1:3:1"],
        "tubemq-1.2.0-standard": ["demo#1:3:1"],
        "tubemq-2.5-standard": ["demo#1:3:1#"],
    }


def test_a_master_forgets_a_producer_that_closes(talk: Conversation) -> None:
    assert talk.reply("producer_close", master_pb.CloseResponseM2P).errCode == ErrCode.SUCCESS
    assert talk.reply("producer_unknown", master_pb.HeartResponseM2P).errCode == ErrCode.HB_NO_NODE


def test_a_consumer_registers_and_gets_partitions(talk: Conversation) -> None:
    registered = talk.reply("consumer_register", master_pb.RegisterResponseM2CV2)
    assert registered.errCode == ErrCode.SUCCESS

    meta = talk.reply("partition_meta", master_pb.GetPartMetaResponseM2C)
    assert meta.errCode == ErrCode.SUCCESS
    assert parse_brokers(meta.brokerConfigList) == parse_brokers(registered.brokerConfigList) == {1: the_broker(talk)}
    (text,) = meta.topicMetaInfoList
    assert parse_consumer_topic(text) == [TopicOnBroker("demo", 1, stores=1, partitions=3)]

    assert talk.reply("consumer_heartbeat", master_pb.HeartResponseM2CV2).errCode == ErrCode.SUCCESS
    assert talk.reply("consumer_close", master_pb.CloseResponseM2C).errCode == ErrCode.SUCCESS


def the_broker(talk: Conversation) -> Broker:
    return parse_brokers(talk.reply("producer_register", master_pb.RegisterResponseM2P).brokerInfos)[1]


# The broker


def sent(talk: Conversation, name: str) -> broker_pb.SendMessageResponseB2P:
    return talk.reply(name, broker_pb.SendMessageResponseB2P)


def test_sends_are_acknowledged_with_id_and_position(talk: Conversation) -> None:
    acknowledged = [sent(talk, name) for name in ("send_plain", "send_attributes", "send_long")]
    assert [(reply.success, reply.errCode, reply.errMsg) for reply in acknowledged] == [
        (True, ErrCode.SUCCESS, str(reply.messageId)) for reply in acknowledged
    ]
    assert [reply.appendOffset for reply in acknowledged] == [0, 28, 56]
    refused = sent(talk, "send_empty")
    assert (refused.success, refused.errCode) == (False, ErrCode.BAD_REQUEST)


def test_messages_round_trip_through_the_broker(talk: Conversation) -> None:
    got = talk.reply("get", broker_pb.GetMessageResponseB2C)
    assert (got.success, got.errCode, got.currOffset, got.maxOffset) == (True, ErrCode.SUCCESS, 0, 84)
    names = ("send_plain", "send_attributes", "send_long")
    assert [message.messageId for message in got.messages] == [sent(talk, name).messageId for name in names]
    assert [message.checkSum for message in got.messages] == [check_sum(m.payLoadData) for m in got.messages]
    assert [message.flag for message in got.messages] == [0, 1, 0]

    split = [split_payload(message.payLoadData, message.flag) for message in got.messages]
    assert [body for _, body in split] == [capture.PLAIN, capture.ATTRIBUTED, capture.LONG]
    assert [decode_attributes(attributes) for attributes, _ in split] == [
        Attributes(),
        Attributes({"colour": "grün", "size": ""}, "blue", parse_msg_time("202402291530")),
        Attributes(),
    ]


@pytest.mark.usefixtures("decoders")
def test_messages_of_a_broker_have_the_shape_that_is_read_by_columns(talk: Conversation) -> None:
    outcome = talk.outcome("get")
    assert isinstance(outcome, Response)
    split = split_reply(outcome.body, outcome.begin)
    assert split is not None
    rest, columns = split
    got = talk.reply("get", broker_pb.GetMessageResponseB2C)
    plain = [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in got.messages]
    assert list(columns) == plain
    del got.messages[:]
    assert parse(broker_pb.GetMessageResponseB2C, rest) == got


def test_only_the_text_reports_the_end_of_the_store(talk: Conversation) -> None:
    end = talk.reply("get_at_end", broker_pb.GetMessageResponseB2C)
    assert (end.success, end.errCode, end.currOffset) == (False, ErrCode.NOT_FOUND, -1)
    assert not_found_kind(end.errMsg) is NotFound.END


def test_a_claim_is_registered_kept_alive_and_released(talk: Conversation) -> None:
    claimed = talk.reply("claim", broker_pb.RegisterResponseB2C)
    assert (claimed.errCode, claimed.currOffset, claimed.maxOffset) == (ErrCode.SUCCESS, 0, 84)
    rolled_back = talk.reply("roll_back", broker_pb.CommitOffsetResponseB2C)
    assert (rolled_back.errCode, rolled_back.currOffset, rolled_back.maxOffset) == (ErrCode.SUCCESS, 0, 84)
    beaten = talk.reply("claim_heartbeat", broker_pb.HeartBeatResponseB2C)
    assert (beaten.errCode, beaten.hasPartFailure) == (ErrCode.SUCCESS, False)
    released = talk.reply("release", broker_pb.RegisterResponseB2C)
    assert (released.errCode, released.currOffset) == (ErrCode.SUCCESS, -1)
    late = talk.reply("get_unclaimed", broker_pb.GetMessageResponseB2C)
    assert (late.errCode, holder_in(late.errMsg)) == (ErrCode.HB_NO_NODE, "")


def test_the_refusal_of_a_claim_names_the_holder(talk: Conversation) -> None:
    refused = talk.reply("claim_occupied", broker_pb.RegisterResponseB2C)
    assert (refused.success, refused.errCode, refused.currOffset) == (False, ErrCode.PARTITION_OCCUPIED, -1)
    assert holder_in(refused.errMsg) == capture.CONSUMER


def test_a_heartbeat_succeeds_and_lists_failed_claims(talk: Conversation) -> None:
    beaten = talk.reply("claim_heartbeat_failed", broker_pb.HeartBeatResponseB2C)
    assert (beaten.success, beaten.hasPartFailure) == (True, True)
    assert [parse_failure_info(text) for text in beaten.failureInfo] == [(ErrCode.HB_NO_NODE, "demo", 2)]


@pytest.mark.parametrize(
    ("name", "simple_name"), [("error", "InvocationTargetException"), ("fatal", "InvalidProtocolBufferException")]
)
def test_failures_have_the_exceptions_name(talk: Conversation, name: str, simple_name: str) -> None:
    failure = talk.outcome(name)
    assert isinstance(failure, Failure)
    assert failure.simple_name == simple_name


def test_requests_name_their_service(talk: Conversation) -> None:
    assert talk.request("partition_meta").service_type == ServiceType.MASTER
    assert talk.request("send_plain").service_type == ServiceType.BROKER_WRITE
    asked = talk.request("get")
    assert (asked.service_type, asked.method) == (ServiceType.BROKER_READ, Method.GET_MESSAGE)
    assert parse(broker_pb.GetMessageRequestC2B, asked.data).manualCommitOffset
