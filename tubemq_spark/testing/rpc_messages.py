# SPDX-License-Identifier: Apache-2.0
"""The request and reply message of each RPC method (wire: PbEnDecoder)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import UNKNOWN_ID, Method
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_OF_CLIENTS: Mapping[Method, tuple[type[Message], type[Message]]] = {
    Method.PRODUCER_REGISTER: (master_pb.RegisterRequestP2M, master_pb.RegisterResponseM2P),
    Method.PRODUCER_HEARTBEAT: (master_pb.HeartRequestP2M, master_pb.HeartResponseM2P),
    Method.PRODUCER_CLOSE: (master_pb.CloseRequestP2M, master_pb.CloseResponseM2P),
    Method.CONSUMER_REGISTER: (master_pb.RegisterRequestC2M, master_pb.RegisterResponseM2C),
    Method.CONSUMER_HEARTBEAT: (master_pb.HeartRequestC2M, master_pb.HeartResponseM2C),
    Method.CONSUMER_CLOSE: (master_pb.CloseRequestC2M, master_pb.CloseResponseM2C),
    Method.CONSUMER_REGISTER_V2: (master_pb.RegisterRequestC2MV2, master_pb.RegisterResponseM2CV2),
    Method.CONSUMER_HEARTBEAT_V2: (master_pb.HeartRequestC2MV2, master_pb.HeartResponseM2CV2),
    Method.GET_PARTITION_META: (master_pb.GetPartMetaRequestC2M, master_pb.GetPartMetaResponseM2C),
    Method.SEND_MESSAGE: (broker_pb.SendMessageRequestP2B, broker_pb.SendMessageResponseB2P),
    Method.PARTITION_REGISTER: (broker_pb.RegisterRequestC2B, broker_pb.RegisterResponseB2C),
    Method.PARTITION_HEARTBEAT: (broker_pb.HeartBeatRequestC2B, broker_pb.HeartBeatResponseB2C),
    Method.GET_MESSAGE: (broker_pb.GetMessageRequestC2B, broker_pb.GetMessageResponseB2C),
    Method.COMMIT_OFFSET: (broker_pb.CommitOffsetRequestC2B, broker_pb.CommitOffsetResponseB2C),
}

REQUESTS: Mapping[Method, type[Message]] = {method: request for method, (request, _) in _OF_CLIENTS.items()} | {
    Method.BROKER_REGISTER: master_pb.RegisterRequestB2M,
    Method.BROKER_HEARTBEAT: master_pb.HeartRequestB2M,
    Method.BROKER_CLOSE: master_pb.CloseRequestB2M,
}

REPLIES: Mapping[Method, type[Message]] = {method: reply for method, (_, reply) in _OF_CLIENTS.items()}
"""Of the methods that clients call."""


def set_status(reply: Any, code: int, text: str) -> None:
    """Set `errCode`, `errMsg`, and `success` if the reply has it."""
    reply.errCode, reply.errMsg = code, text
    if "success" in reply.DESCRIPTOR.fields_by_name:
        reply.success = code == ErrCode.SUCCESS


def _success(kind: type[Message]) -> Message:
    reply: Any = kind()
    for name in ("currOffset", "brokerCheckSum"):
        if name in kind.DESCRIPTOR.fields_by_name:
            setattr(reply, name, -1)
    set_status(reply, ErrCode.SUCCESS, "OK!")
    return reply  # type: ignore[no-any-return]


_SUCCESSES = {method: _success(kind) for method, kind in REPLIES.items()}


def new_reply(method: Method) -> Any:
    """Return a reply that says that the call succeeded, with -1 in the fields of positions and check sums."""
    reply = REPLIES[method]()
    reply.CopyFrom(_SUCCESSES[method])
    return reply


def optional(message: Message, name: str, default: int = UNKNOWN_ID) -> Any:
    """Return a field's value, `default` if the sender left it out."""
    return getattr(message, name) if message.HasField(name) else default
