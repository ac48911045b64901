# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to the handlers of their methods, and the answers to requests without a handler.

wire: NettyRpcServer, NettyRequestContext, PbEnDecoder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, parse
from tubemq_spark.testing.rpc_messages import REQUESTS

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

Handler = Callable[[bytes], bytes]
"""Turns the bytes of a request message into those of the reply message. May raise `RefusalError`; a `ProtocolError`
means that the bytes are no such message."""


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


def on_message(kind: type[M], answer: Callable[[M], Message]) -> Handler:
    """Return a handler that parses the request, calls `answer` and encodes the reply."""

    def handle(data: bytes) -> bytes:
        return answer(parse(kind, data)).SerializeToString()

    return handle


class Service:
    """The handlers of one server by service type and method.

    `delay_next_get(n)` lets the next get take effect when n more gets have begun; only brokers support it.
    """

    def __init__(
        self,
        handlers: Mapping[ServiceType, Mapping[Method, Handler]],
        delay_next_get: Callable[[int], None] = lambda gets: None,
    ) -> None:
        self.delay_next_get = delay_next_get
        self.calls: Counter[int] = Counter()  # by method, since the start
        self._handlers: dict[tuple[int, int], Handler] = {
            (service_type, method): handle
            for service_type, table in handlers.items()
            for method, handle in table.items()
        }

    def answer(self, request: Request) -> Response | Failure | None:
        """Return the reply; None when the server does not answer, as for a request without any time left."""
        self.calls[request.method] += 1
        handle = self._handlers.get((request.service_type, request.method))
        try:
            if handle is None or request.timeout_ms <= 0:
                return self._unhandled(request)
            return Response(request.method, handle(request.data))
        except ProtocolError as error:
            return unreadable(str(error))
        except RefusalError as refusal:
            return refusal.failure
        except Exception:
            _log.exception(
                "[embedded-handler-failed] the handler of method %d of service %d", request.method, request.service_type
            )
            return bad_shape().failure

    def _unhandled(self, request: Request) -> Failure | None:
        """Answer as the server does: it parses the message by its method, then checks the time and the service."""
        if request.method not in REQUESTS:
            return Failure("java.lang.Exception", f"there is no method {request.method}", fatal=True)
        parse(REQUESTS[Method(request.method)], request.data)
        if request.timeout_ms <= 0:
            return None
        return Failure("java.lang.Exception", f"service {request.service_type} has no method {request.method}")


def unreadable(text: str, *, ended: bool = False) -> Failure:
    """Return the answer to bytes that are not a request; `ended` if they end where a length should stand."""
    name = "java.io.EOFException" if ended else "com.google.protobuf.InvalidProtocolBufferException"
    return Failure(name, text, fatal=True)
