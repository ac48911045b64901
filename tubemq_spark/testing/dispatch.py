# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to the handlers of their methods, the message types of each method, and the answers to requests
without a handler.

wire: NettyRpcServer, NettyRequestContext, PbEnDecoder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import UNKNOWN_ID, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, parse
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_log = logging.getLogger(__name__)

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


Handler = Callable[[Any, Any], "Sequence[bytes] | None"]
"""Fills the reply to a request; what it returns is sent behind the encoded reply. May raise `DeclinedError` and
`RefusalError`."""


class DeclinedError(Exception):
    """A call that the server answers with an error code in the reply message."""

    def __init__(self, code: ErrCode, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def bad_request(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.BAD_REQUEST, text)


class RefusalError(Exception):
    """A call that the server answers with a Java exception instead of a reply message."""

    def __init__(self, exception_name: str, text: str = "") -> None:
        super().__init__(f"{exception_name}: {text}")
        self.failure = Failure(exception_name, text)


def bad_shape() -> RefusalError:
    """Return the answer of a handler that threw, for example because a text had too few fields.

    The answer does not carry the cause.
    """
    return RefusalError("java.lang.reflect.InvocationTargetException")


class Service:
    """A server without its ports. `name` is the one that conditions of faults use.

    It reaches all its handlers under each of its service types. `tls_handlers` answer requests over TLS.
    """

    def __init__(
        self,
        name: str,
        service_types: Collection[ServiceType],
        handlers: Mapping[Method, Handler],
        tls_handlers: Mapping[Method, Handler],
    ) -> None:
        self.name = name
        self.calls: Counter[int] = Counter()  # by method, since the start
        self._service_types = service_types
        self._handlers = handlers, tls_handlers

    def tick(self) -> None:
        """Run the timers that are due by the clock."""

    def delay_next_get(self, gets: int) -> None:
        """Let the next get take effect when `gets` more gets have begun; only brokers support it."""

    def answer(self, request: Request, *, tls: bool = False) -> Response | Failure | None:
        """Return the reply; None when the server does not answer, as for a request without any time left."""
        self.calls[request.method] += 1
        try:
            return self._answer(request, tls)
        except ProtocolError as error:
            return unreadable(str(error))
        except RefusalError as refusal:
            return refusal.failure
        except Exception:
            _log.exception(
                "[embedded-handler-failed] the handler of method %d of service %d", request.method, request.service_type
            )
            return bad_shape().failure

    def _answer(self, request: Request, tls: bool) -> Response | Failure | None:
        """Answer as the server does: it parses the message by its method, then checks the time and the service."""
        try:
            method = Method(request.method)
        except ValueError:
            return Failure("java.lang.Exception", f"there is no method {request.method}", fatal=True)
        message = parse(REQUESTS[method], request.data)
        if request.timeout_ms <= 0:
            return None
        handle = self._handlers[tls].get(method) if request.service_type in self._service_types else None
        if handle is None:
            return Failure("java.lang.Exception", f"service {request.service_type} has no method {request.method}")
        reply = new_reply(method)
        rest: Sequence[bytes] = ()
        try:
            rest = handle(message, reply) or ()
        except DeclinedError as declined:
            set_status(reply, declined.code, declined.text)
        return Response(request.method, b"".join((reply.SerializeToString(), *rest)))


def unreadable(text: str, *, ended: bool = False) -> Failure:
    """Return the answer to bytes that are not a request; `ended` if they end where a length should stand."""
    name = "java.io.EOFException" if ended else "com.google.protobuf.InvalidProtocolBufferException"
    return Failure(name, text, fatal=True)
