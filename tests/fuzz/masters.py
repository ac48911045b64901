# SPDX-License-Identifier: Apache-2.0
"""Replies of masters, and the texts in them: brokers, topics, partitions, flow rules."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from tests.fuzz import corpus
from tests.fuzz.mutations import damaged, damaged_text
from tubemq_spark.client.cluster.cluster_metadata import TopicRegistry
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.flow_rules import LONGEST_WAIT, FlowRules, Limits
from tubemq_spark.protocol.metadata import (
    MAX_BROKERS,
    MAX_PARTITIONS,
    MAX_PARTITIONS_ON_BROKER,
    Address,
    Broker,
    TopicOnBroker,
    parse_broker,
    parse_consumer_topic,
    parse_failure_info,
    parse_producer_topic,
)
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

MASTER = Address("127.0.0.1", 8715)
SETTINGS = ClientSettings(masters=(MASTER,))

KINDS: dict[Method, type[Message]] = {
    Method.PRODUCER_REGISTER: pb.RegisterResponseM2P,
    Method.PRODUCER_HEARTBEAT: pb.HeartResponseM2P,
    Method.CONSUMER_REGISTER_V2: pb.RegisterResponseM2CV2,
    Method.CONSUMER_HEARTBEAT_V2: pb.HeartResponseM2CV2,
    Method.GET_PARTITION_META: pb.GetPartMetaResponseM2C,
    Method.CONSUMER_CLOSE: pb.CloseResponseM2C,
}

RULE = (
    '[{"type":0,"rule":[{"start":"08:00","end":"17:59","dltInM":1024,"limitInM":20,"freqInMs":1000}]},'
    '{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]},'
    '{"type":3,"rule":[{"normFreqInMs":0,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
)
BROKERS = ["1:127.0.0.1:8123", "2:10.0.0.7: ", "3:broker-3.example.com:8200", "1::-2", "7:a:1:extra"]
TOPICS = ["demo#1:3:1", "demo#1:3:1,2:3:2#1048576", "demo#1:3:1#", "demo#7:1:10:1,8:2:1:0", "t#", "t#1:0:0:1"]
FAILURES = ["411:1:127.0.0.1:8123#demo:0", "412:2:10.0.0.7:8123#demo:10001"]


class Answer(NamedTuple):
    method: Method
    data: bytes


def make_answer(chance: random.Random) -> Answer:
    method = chance.choice(list(KINDS))
    known = corpus.answers(method)
    data = chance.choice(known)
    if chance.random() < 0.5:
        data = _crafted(chance, method).SerializePartialToString()
    return Answer(method, damaged(chance, data, known))


def _crafted(chance: random.Random, method: Method) -> Message:
    """Return an answer whose texts are damaged, and not its bytes."""
    message = KINDS[method]()
    for field in message.DESCRIPTOR.fields:
        texts = {"brokerInfos": BROKERS, "brokerConfigList": BROKERS, "topicInfos": TOPICS, "topicMetaInfoList": TOPICS}
        if field.name in texts:
            several = chance.randint(0, 4)
            getattr(message, field.name).extend(
                _encodable(damaged_text(chance, chance.choice(texts[field.name]), TOPICS)) for _ in range(several)
            )
        elif field.name == "opsTaskInfo":
            message.opsTaskInfo.groupFlowCheckId = chance.choice((-2, 0, 5))  # type: ignore[attr-defined]
            message.opsTaskInfo.groupFlowControlInfo = damaged_text(chance, RULE)  # type: ignore[attr-defined]
        elif field.type in (field.TYPE_INT32, field.TYPE_INT64):
            setattr(message, field.name, chance.choice((200, -1, 0, 2**31 - 1)))
        elif field.type == field.TYPE_BOOL:
            setattr(message, field.name, chance.random() < 0.8)
        elif field.name == "errMsg":
            message.errMsg = damaged_text(chance, "OK!")  # type: ignore[attr-defined]
    return message


def _encodable(text: str) -> str:
    return text[:2000]


def accepts_answer(given: Answer) -> bool:
    """Read it as the sessions do; compare the message with protobuf's, and the lists with their limits."""
    kind = KINDS[given.method]
    try:
        reply: Any = unwrap_reply(Response(given.method, given.data), kind, "asking")
    except ProtocolError:
        assert not is_readable(kind, given.data)
        return False
    assert same_but_text(reply, kind.FromString(given.data))
    registry = TopicRegistry(SETTINGS)
    names = {field.name for field in kind.DESCRIPTOR.fields}
    if "opsTaskInfo" in names:
        for rule in FlowRules().updated(reply.opsTaskInfo):
            _check_limits(rule.limits)
    try:
        if "brokerInfos" in names or "brokerConfigList" in names:
            registry.add_brokers(MASTER, reply.brokerInfos if "brokerInfos" in names else reply.brokerConfigList)
        if "topicInfos" in names:
            registry.set_topics(MASTER, reply.topicInfos, parse_producer_topic)
        if "topicMetaInfoList" in names:
            registry.set_topics(MASTER, reply.topicMetaInfoList, parse_consumer_topic)
    except ProtocolError:
        return False
    cluster = registry.cluster
    assert len(cluster.brokers) <= MAX_BROKERS
    assert sum(len(cluster.partitions(topic)) for topic, _ in cluster.layouts) <= MAX_PARTITIONS
    return True


def is_readable(kind: type[Message], data: bytes) -> bool:
    """Return True if protobuf's parser finds a complete message whose own texts are UTF-8."""
    try:
        message = kind.FromString(data)
    except (DecodeError, ValueError):
        return False
    texts = [getattr(message, field.name) for field in kind.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
    flat = [one for text in texts for one in ([text] if isinstance(text, str | bytes) else text)]
    return message.IsInitialized() and not any(isinstance(one, bytes) for one in flat)


def same_but_text(found: Message, wanted: Message) -> bool:
    """Compare two messages without `errMsg`, of which only a part may be kept."""
    for one in (found, wanted):
        if "errMsg" in {field.name for field in one.DESCRIPTOR.fields}:
            one.ClearField("errMsg")
    return found.SerializePartialToString(deterministic=True) == wanted.SerializePartialToString(deterministic=True)


class Text(NamedTuple):
    kind: str
    text: str


_LISTS: dict[str, list[str]] = {
    "broker": BROKERS,
    "producer topic": TOPICS,
    "consumer topic": TOPICS,
    "failure": FAILURES,
}


def make_text(chance: random.Random) -> Text:
    kind = chance.choice(list(_LISTS))
    return Text(kind, damaged_text(chance, chance.choice(_LISTS[kind]), [*BROKERS, *TOPICS]))


def accepts_text(given: Text) -> bool:
    """What is read gives the same value when it is written in the usual form and read again."""
    try:
        if given.kind == "broker":
            _check_broker(parse_broker(given.text))
        elif given.kind == "failure":
            code, topic, partition = parse_failure_info(given.text)
            assert parse_failure_info(f"{code}:1:host:1#{topic}:{partition}") == (code, topic, partition)
        elif given.kind == "producer topic":
            _check_topics(
                parse_producer_topic(given.text), parse_producer_topic, "{0.broker_id}:{0.partitions}:{0.stores}"
            )
        else:
            form = "{0.broker_id}:{0.stores}:{0.partitions}:{0.available:d}"
            _check_topics(parse_consumer_topic(given.text), parse_consumer_topic, form)
    except ProtocolError:
        return False
    return True


def _check_broker(found: Broker | None) -> None:
    if found is not None:
        host, port = found.address
        assert 0 < port < 65536
        assert 0 < len(host) <= 255
        assert not any(c.isspace() for c in host)
        assert parse_broker(f"{found.broker_id}:{host}:{port}") == found


def _check_topics(found: list[TopicOnBroker], parse: Callable[[str], list[TopicOnBroker]], form: str) -> None:
    for one in found:
        assert 0 <= one.stores * one.partitions <= MAX_PARTITIONS_ON_BROKER
        assert len(one.all_partitions()) == one.stores * one.partitions
    if found:
        size = found[0].max_message_size
        text = f"{found[0].topic}#{','.join(map(form.format, found))}" + ("" if size is None else f"#{size}")
        assert parse(text) == found


def make_rule(chance: random.Random) -> str:
    return damaged_text(chance, RULE, [RULE])


def accepts_rule(given: str) -> bool:
    """Limits are in TubeMQ's ranges, and JSON that is not a list of records is refused."""
    try:
        found = Limits.parse(given)
    except ProtocolError:
        return False
    assert not given.strip() or isinstance(json.loads(given), list)
    _check_limits(found)
    return True


def _check_limits(found: Limits) -> None:
    for limit in found.data:
        assert 0 <= limit.start < limit.end <= 2459
        assert limit.wait_ms >= 200
    for wait in found.empty:
        assert wait.answers >= 1
        assert 0 <= wait.wait_ms < 2**31
    if found.pause is not None:
        assert 0 <= max(found.pause) <= LONGEST_WAIT
