# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to the handlers of their methods, and the answers to requests without a handler.

wire: NettyRpcServer, NettyRequestContext, PbEnDecoder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, parse
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing.rpc_messages import REQUESTS, new_reply, set_status

_log = logging.getLogger(__name__)

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
        try:
            return self._answer(request)
        except ProtocolError as error:
            return unreadable(str(error))
        except RefusalError as refusal:
            return refusal.failure
        except Exception:
            _log.exception(
                "[embedded-handler-failed] the handler of method %d of service %d", request.method, request.service_type
            )
            return bad_shape().failure

    def _answer(self, request: Request) -> Response | Failure | None:
        """Answer as the server does: it parses the message by its method, then checks the time and the service."""
        try:
            method = Method(request.method)
        except ValueError:
            return Failure("java.lang.Exception", f"there is no method {request.method}", fatal=True)
        message = parse(REQUESTS[method], request.data)
        if request.timeout_ms <= 0:
            return None
        handle = self._handlers.get((request.service_type, method))
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
