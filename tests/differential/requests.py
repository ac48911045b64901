# SPDX-License-Identifier: Apache-2.0
"""Turns the steps of scripts into requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from tests.differential.script import Step
from tubemq_spark.protocol.constants import (
    NO_CHECK_SUM,
    STORE_PARTITION_BASE,
    UNKNOWN_ID,
    Method,
    OpType,
    ServiceType,
)
from tubemq_spark.protocol.envelope import Request
from tubemq_spark.protocol.message import check_sum, encode_payload
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.dispatch import REPLIES, REQUESTS

TIMEOUT_MS = 10_000
_HOST = "127.0.0.1"
_SENT_ADDR = 0x7F000001

READ, WRITE, MASTER = ServiceType.BROKER_READ, ServiceType.BROKER_WRITE, ServiceType.MASTER


@dataclass
class Names:
    """The meaning of a script's symbols in one play on one server."""

    play: str
    """Unique for each play, and the same on both servers."""
    topic: str
    store: int
    broker: str
    """`host:port`"""
    base: int = 0
    """The end of the store at the begin of the play."""

    def client(self, symbol: str) -> str:
        return f"{symbol}_{self.play}" if symbol.strip() else symbol

    group = client

    def partition(self, number: int) -> int:
        return self.store * STORE_PARTITION_BASE + number

    def topics(self, given: str | None) -> str:
        return self.topic if given is None else given

    def position(self, given: tuple[str, int]) -> int:
        kind, number = given
        return number + (self.base if kind == "base" else 0)


@dataclass(frozen=True)
class Plan:
    """A request, the type of its reply, and its server."""

    request: Request
    reply: type[Message]
    to_master: bool


def plan(step: Step, names: Names, last: Mapping[str, int], number: int) -> Plan:
    """Return the request of step `number`. `last` has the last ids of this play's replies, by field."""
    return _PLANS[step["call"]](_Arguments(step, names, last, number))


def payload(step: Step, number: int) -> tuple[bytes, int]:
    """Return data and flag of a message, different for each step."""
    body = f"{number}:".encode().ljust(step["size"], b".")[: step["size"]]
    flag = step.get("flag", 0)
    if flag != "attributes":
        return body, flag
    return encode_payload(body, b"key=value")


@dataclass(frozen=True)
class _Arguments:
    step: Step
    names: Names
    last: Mapping[str, int]
    number: int

    def get(self, key: str, default: Any = None) -> Any:
        return self.step.get(key, default)

    @property
    def client(self) -> str:
        return self.names.client(self.step["client"])

    @property
    def group(self) -> str:
        return self.names.group(self.step["group"])

    @property
    def topic(self) -> str:
        return self.names.topics(self.get("topic"))

    @property
    def partition(self) -> int:
        return self.names.partition(self.step["partition"])

    def known(self, key: str, field: str) -> int | None:
        """Return an id: None, a number, or the last id in `field` of a reply."""
        given = self.get(key)
        return self.last.get(field, UNKNOWN_ID) if given == "last" else given

    def optional(self, **fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}


def _call(service: int, method: Method, message: Message) -> Plan:
    request = Request(service, method, TIMEOUT_MS, message.SerializePartialToString())
    return Plan(request, REPLIES[method], service == MASTER)


def _send(a: _Arguments) -> Plan:
    data, flag = payload(a.step, a.number)
    sums = {"right": check_sum(data), "none": NO_CHECK_SUM, "wrong": check_sum(data) ^ 1}
    message = broker_pb.SendMessageRequestP2B(
        clientId=a.client,
        topicName=a.topic,
        partitionId=a.partition,
        data=data,
        flag=flag,
        checkSum=sums[a.get("sum", "right")],
        sentAddr=_SENT_ADDR,
        **a.optional(msgType=a.get("type"), msgTime=a.get("time")),
    )
    return _call(a.get("service", WRITE), Method.SEND_MESSAGE, message)


def _register(a: _Arguments) -> Plan:
    at = a.get("at")
    message = broker_pb.RegisterRequestC2B(
        opType=a.get("op", OpType.UNREGISTER if a.step["call"] == "unregister" else OpType.REGISTER),
        clientId=a.client,
        groupName=a.group,
        topicName=a.topic,
        partitionId=a.partition,
        readStatus=a.get("status", 0),
        filterCondStr=a.get("filters", ()),
        **a.optional(currOffset=None if at is None else a.names.position(at), qryPriorityId=a.get("priority")),
    )
    return _call(READ, Method.PARTITION_REGISTER, message)


def _get(a: _Arguments) -> Plan:
    message = broker_pb.GetMessageRequestC2B(
        clientId=a.client,
        partitionId=a.partition,
        groupName=a.group,
        topicName=a.topic,
        **a.optional(lastPackConsumed=a.get("last"), manualCommitOffset=a.get("manual"), escFlowCtrl=a.get("escape")),
    )
    return _call(READ, Method.GET_MESSAGE, message)


def _commit(a: _Arguments) -> Plan:
    message = broker_pb.CommitOffsetRequestC2B(
        clientId=a.client,
        topicName=a.topic,
        partitionId=a.partition,
        groupName=a.group,
        **a.optional(lastPackConsumed=a.get("last")),
    )
    return _call(READ, Method.COMMIT_OFFSET, message)


def _heartbeat(a: _Arguments) -> Plan:
    shapes = {
        "right": "1:{broker}#{topic}:{partition}",
        "colons": "1:{broker}:{topic}:{partition}",
        "short": "1:{broker}#{topic}",
        "word": "1:{broker}#{topic}:first",
    }
    shape = shapes[a.get("shape", "right")]
    infos = [
        shape.format(broker=a.names.broker, topic=a.topic, partition=a.names.partition(number))
        for number in a.step["partitions"]
    ]
    message = broker_pb.HeartBeatRequestC2B(
        clientId=a.client,
        groupName=a.group,
        readStatus=0,
        partitionInfo=infos,
        **a.optional(qryPriorityId=a.get("priority")),
    )
    return _call(READ, Method.PARTITION_HEARTBEAT, message)


def _sub_rep_info(a: _Arguments) -> master_pb.ClientSubRepInfo | None:
    if a.get("brokers") is None:
        return None
    reported = a.get("reported")
    return master_pb.ClientSubRepInfo(
        brokerConfigId=a.known("brokers", "brokerConfigId"),
        topicMetaInfoId=a.known("metas", "topicMetaInfoId"),
        partSubInfo=reported or (),
        **a.optional(reportSubInfo=None if reported is None else True, lstAssignedTime=a.get("assigned")),
    )


def _ops_task_info(a: _Arguments) -> master_pb.OpsTaskInfo | None:
    given = a.get("ops")
    return None if given is None else master_pb.OpsTaskInfo(**given)


def _member_register(a: _Arguments) -> Plan:
    message = master_pb.RegisterRequestC2MV2(
        clientId=a.client,
        groupName=a.group,
        hostName=a.get("host", _HOST),
        sourceCount=a.step["sources"],
        nodeId=a.step["node"],
        topicList=a.step["topics"],
        topicCondition=a.get("conditions", ()),
        subRepInfo=_sub_rep_info(a),
        opsTaskInfo=_ops_task_info(a),
    )
    return _call(MASTER, Method.CONSUMER_REGISTER_V2, message)


def _member_heartbeat(a: _Arguments) -> Plan:
    message = master_pb.HeartRequestC2MV2(
        clientId=a.client, groupName=a.group, subRepInfo=_sub_rep_info(a), opsTaskInfo=_ops_task_info(a)
    )
    return _call(MASTER, Method.CONSUMER_HEARTBEAT_V2, message)


def _member_meta(a: _Arguments) -> Plan:
    message = master_pb.GetPartMetaRequestC2M(
        clientId=a.client,
        groupName=a.group,
        brokerConfigId=a.known("brokers", "brokerConfigId"),
        topicMetaInfoId=a.known("metas", "topicMetaInfoId"),
    )
    return _call(MASTER, Method.GET_PARTITION_META, message)


def _member_close(a: _Arguments) -> Plan:
    message = master_pb.CloseRequestC2M(clientId=a.client, groupName=a.group)
    return _call(MASTER, Method.CONSUMER_CLOSE, message)


def _balanced_register(a: _Arguments) -> Plan:
    message = master_pb.RegisterRequestC2M(
        clientId=a.client,
        groupName=a.group,
        hostName=a.get("host", _HOST),
        topicList=a.step["topics"],
        topicCondition=a.get("conditions", ()),
        **a.optional(
            requireBound=a.get("bound"),
            sessionKey=a.get("session"),
            sessionTime=a.get("session_time"),
            totalCount=a.get("total"),
            requiredPartition=a.get("required"),
            notAllocated=a.get("not_allocated"),
            selectBig=a.get("select_big"),
            defFlowCheckId=a.get("def_flow"),
            groupFlowCheckId=a.get("group_flow"),
            qryPriorityId=a.get("priority"),
        ),
    )
    return _call(MASTER, Method.CONSUMER_REGISTER, message)


def _balanced_heartbeat(a: _Arguments) -> Plan:
    message = master_pb.HeartRequestC2M(
        clientId=a.client,
        groupName=a.group,
        reportSubscribeInfo=False,
        **a.optional(defFlowCheckId=a.get("def_flow"), groupFlowCheckId=a.get("group_flow")),
    )
    return _call(MASTER, Method.CONSUMER_HEARTBEAT, message)


def _appd_config(a: _Arguments) -> master_pb.ApprovedClientConfig | None:
    known = a.known("config", "configId")
    return None if known is None else master_pb.ApprovedClientConfig(configId=known)


def _producer_register(a: _Arguments, method: Method = Method.PRODUCER_REGISTER) -> Plan:
    message = REQUESTS[method](
        clientId=a.client,
        topicList=a.step["topics"],
        brokerCheckSum=a.known("sum", "brokerCheckSum"),
        hostName=a.get("host", _HOST),
        appdConfig=_appd_config(a),
    )
    return _call(MASTER, method, message)


def _producer_heartbeat(a: _Arguments) -> Plan:
    return _producer_register(a, Method.PRODUCER_HEARTBEAT)


def _producer_close(a: _Arguments) -> Plan:
    message = master_pb.CloseRequestP2M(clientId=a.client)
    return _call(MASTER, Method.PRODUCER_CLOSE, message)


def _raw(a: _Arguments) -> Plan:
    """Return a request with any bytes as the message of any method."""
    request = Request(a.step["service"], a.step["method"], a.get("timeout", TIMEOUT_MS), bytes.fromhex(a.step["data"]))
    reply = REPLIES.get(a.step["method"], broker_pb.HeartBeatResponseB2C)
    return Plan(request, reply, a.step["server"] == "master")


_PLANS: dict[str, Callable[[_Arguments], Plan]] = {
    "send": _send,
    "register": _register,
    "unregister": _register,
    "get": _get,
    "commit": _commit,
    "heartbeat": _heartbeat,
    "member_register": _member_register,
    "member_heartbeat": _member_heartbeat,
    "member_meta": _member_meta,
    "member_close": _member_close,
    "balanced_register": _balanced_register,
    "balanced_heartbeat": _balanced_heartbeat,
    "producer_register": _producer_register,
    "producer_heartbeat": _producer_heartbeat,
    "producer_close": _producer_close,
    "raw": _raw,
}
