# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the RPC envelope, the body of a frame.

    request:          RpcConnHeader, RequestHeader, RequestBody
    reply, SUCCESS:   RpcConnHeader, ResponseHeader, RspResponseBody
    reply, otherwise: RpcConnHeader, ResponseHeader, RspExceptionBody

Each part is a varint length and a protobuf message (wire: NettyClient, PbEnDecoder).

The fields of a message are counted before it is parsed, to limit the memory that a reply takes. An empty string takes
two bytes on the wire and about thirty in memory, an empty message a hundred. So a valid frame can take half a gigabyte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from tubemq_spark.errors import ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import PROTOCOL_VERSION
from tubemq_spark.protocol.pb import RPC_pb2 as rpc_pb
from tubemq_spark.protocol.varint import read_varint, varint

MAX_FIELDS = 100_000
"""The maximum of top-level fields in a message. The largest reply of a broker has 12 000 messages."""
COUNTED_FROM = 2 << 20
"""Bytes. Shorter messages are not counted: their fields take less than 100 MB at worst."""


def check_fields(kind: str, data: bytes) -> None:
    """Raise `ProtocolError` for more than `MAX_FIELDS` fields. The parser refuses bytes that are not a message."""
    if len(data) < COUNTED_FROM:
        return
    at = count = 0
    try:
        while at < len(data):
            count += 1
            if count > MAX_FIELDS:
                raise ProtocolError(f"a {kind} of {len(data)} bytes has more than {MAX_FIELDS} fields")
            tag, at = read_varint(data, at)
            match tag & 7:  # the wire type; 3 and 4 begin and end a group and have no value
                case 0:
                    _, at = read_varint(data, at)
                case 1:
                    at += 8
                case 2:
                    size, at = read_varint(data, at)
                    at += size
                case 5:
                    at += 4
    except IndexError:
        return  # it ends within a field, which the parser reports


def missing_in(message: Message) -> list[str]:
    """Return the missing required fields of the first incomplete message in `message`, which may be itself.

    protobuf's own search looks at all messages inside. With millions of empty ones it takes gigabytes of memory, or
    ends the process (seen with protobuf 7.36).
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in [value] if isinstance(value, Message) else value:
            if not one.IsInitialized():
                return [f"{field.name}.{name}" for name in missing_in(one)]
    missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]  # unknown to its stubs
    return missing


M = TypeVar("M", bound=Message)

_REQUEST_FLAG, _RESPONSE_FLAG = 0, 1


class Request(NamedTuple):
    """A request. The server drops its reply if handling takes longer than `timeout_ms`."""

    service_type: int
    method: int
    timeout_ms: int
    data: bytes


class Response(NamedTuple):
    """The reply of a handler. `body[begin:]` is the reply message, which may contain an error code.

    A long one stays where it is in the body of its frame, because a copy costs as much as receiving it. Replies are
    equal if their messages are.
    """

    method: int
    body: bytes
    begin: int = 0

    @property
    def data(self) -> bytes:
        """A copy of the reply message, unless it is the whole body."""
        return self.body[self.begin :] if self.begin else self.body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Response) and (self.method, self.data) == (other.method, other.data)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.method, self.data))


@dataclass(frozen=True)
class Failure:
    """The reply to a request that no handler answered: class name and text of a Java exception.

    `fatal` is True if the server could not read the request.
    """

    exception_name: str
    text: str
    fatal: bool = False

    @property
    def simple_name(self) -> str:
        """The class name without its package. Packages differ by release: com.tencent, com.apache, org.apache."""
        return self.exception_name.rsplit(".", 1)[-1].rsplit("$", 1)[-1]


def parse(kind: type[M], data: bytes) -> M:
    """Return the message in `data`. Raise `ProtocolError` for other bytes, a missing field, or too many fields."""
    check_fields(kind.__name__, data)
    try:
        message = kind.FromString(data)
    except (DecodeError, RuntimeError, ValueError) as cause:
        raise ProtocolError(f"{len(data)} bytes are not a {kind.__name__}: {shown(cause)}") from None
    if not message.IsInitialized():
        raise ProtocolError(f"a {kind.__name__} came without {', '.join(missing_in(message))}")
    return message


def encode_request(request: Request) -> bytes:
    service_type, method, timeout_ms, data = request
    return _request_head(service_type, method, timeout_ms, len(data)) + data


@lru_cache(maxsize=4096)
def _request_head(service_type: int, method: int, timeout_ms: int, size: int) -> bytes:
    """Return the request without its `size` bytes of data, its last field. Cached because every message needs it."""
    call = _call_head(method, timeout_ms) + varint(size)
    return b"".join((_service_head(service_type), varint(len(call) + size), call))


@lru_cache
def _call_head(method: int, timeout_ms: int) -> bytes:
    return rpc_pb.RequestBody(method=method, timeout=timeout_ms, request=b"").SerializeToString()[:-1]


@lru_cache
def _service_head(service_type: int) -> bytes:
    return _delimited(rpc_pb.RpcConnHeader(flag=_REQUEST_FLAG)) + _delimited(
        rpc_pb.RequestHeader(serviceType=service_type, protocolVer=PROTOCOL_VERSION)
    )


def decode_request(body: bytes) -> Request:
    """Return the request in `body`. Raise `ProtocolError` if there is none, from an `EOFError` if it ends too early."""
    parts = _Parts(body)
    parts.next(rpc_pb.RpcConnHeader)
    header = parts.next(rpc_pb.RequestHeader)
    call = parts.next(rpc_pb.RequestBody)
    return Request(header.serviceType, call.method, call.timeout, call.request)


def encode_reply(reply: Response | Failure) -> bytes:
    if isinstance(reply, Response):
        # Built by hand because the servers of `testing` do this for every message. The data is the body's last field.
        head = _answer_head(reply.method)
        size = varint(len(reply.data))
        return b"".join((_SUCCESS, varint(len(head) + len(size) + len(reply.data)), head, size, reply.data))
    status = rpc_pb.ResponseHeader.FATAL if reply.fatal else rpc_pb.ResponseHeader.ERROR
    head = _reply_head(status)
    return head + _delimited(rpc_pb.RspExceptionBody(exceptionName=reply.exception_name, stackTrace=reply.text))


@lru_cache
def _answer_head(method: int) -> bytes:
    return rpc_pb.RspResponseBody(method=method, data=b"").SerializeToString()[:-1]


def decode_reply(body: bytes, method: int | None = None) -> Response | Failure:
    """Return the reply in `body`, or raise `ProtocolError`. With the requested `method`, short ones decode faster."""
    if method is not None and len(body) <= _MAX_SHORT:
        head = _short_answer_head(method, len(body))
        if body.startswith(head):
            return Response(method, body[len(head) :])
    if method is not None and (begin := _long_answer(body, method)) is not None:
        return Response(method, body, begin)
    if body.startswith(_SUCCESS):
        done = _Parts(body, len(_SUCCESS)).next(rpc_pb.RspResponseBody)
        return Response(done.method, done.data)
    parts = _Parts(body)
    parts.next(rpc_pb.RpcConnHeader)
    header = parts.next(rpc_pb.ResponseHeader)
    if header.status == rpc_pb.ResponseHeader.SUCCESS:
        done = parts.next(rpc_pb.RspResponseBody)
        return Response(done.method, done.data)
    failed = parts.next(rpc_pb.RspExceptionBody)
    fatal = header.status == rpc_pb.ResponseHeader.FATAL
    return Failure(_text(failed.exceptionName), _text(failed.stackTrace), fatal)


@lru_cache(maxsize=1024)
def _short_answer_head(method: int, size: int) -> bytes:
    """Return a successful reply of `size` bytes, at most `_MAX_SHORT`, without its data, as servers write it.

    All lengths in it follow from `size` and take one byte each. So all bytes that begin with it are such a reply. If
    `size` is too small for a reply, the result is longer than `size`.
    """
    head = _answer_head(method)
    left = size - len(_SUCCESS) - 1  # bytes of the RspResponseBody
    return b"".join((_SUCCESS, varint(max(left, 0)), head, varint(max(left - len(head) - 1, 0))))


def _long_answer(body: bytes, method: int) -> int | None:
    """Return where the data of a successful reply begins, as servers write it, None for any other, which has to be
    parsed. The parser would copy the data three times."""
    if not body.startswith(_SUCCESS):
        return None
    head = _answer_head(method)
    try:
        size, at = read_varint(body, len(_SUCCESS))
        if at + size != len(body) or not body.startswith(head, at):
            return None
        size, at = read_varint(body, at + len(head))
    except IndexError:
        return None
    return at if at + size == len(body) else None


def _text(value: str | bytes) -> str:
    """Return `value` as text: protobuf returns bytes if a text is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _delimited(message: Message) -> bytes:
    data = message.SerializeToString()
    return varint(len(data)) + data


@lru_cache(maxsize=1024)
def _reply_head(status: rpc_pb.ResponseHeader.Status) -> bytes:
    return _delimited(rpc_pb.RpcConnHeader(flag=_RESPONSE_FLAG)) + _delimited(
        rpc_pb.ResponseHeader(status=status, protocolVer=PROTOCOL_VERSION)
    )


_SUCCESS = _reply_head(rpc_pb.ResponseHeader.SUCCESS)  # nearly all replies begin with it
_MAX_SHORT = len(_SUCCESS) + 1 + 0x7F  # bytes of a successful reply whose lengths are one byte each

_MAX_INT32 = 0x7FFFFFFF


class _Parts:
    """Iterates over delimited messages."""

    def __init__(self, body: bytes, start: int = 0) -> None:
        self._body = body
        self._at = start

    def next(self, kind: type[M]) -> M:
        try:
            size, self._at = read_varint(self._body, self._at)
        except IndexError:
            raise ProtocolError(f"an envelope ends before the length of its {kind.__name__}") from EOFError()
        end = self._at + size
        if end > len(self._body):
            cause = EOFError() if size <= _MAX_INT32 else None  # Java reads a larger length as a negative one
            raise ProtocolError(f"a {kind.__name__} of {size} bytes is longer than the rest of the envelope") from cause
        data = self._body[self._at : end]
        self._at = end
        return parse(kind, data)
