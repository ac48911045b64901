"""From a request of the wire to the handler of its method and back; what TubeMQ does with requests that have none.

wire: NettyRpcServer, NettyRequestContext, PbEnDecoder.
"""

from __future__ import annotations

import logging
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
"""Takes a request message's bytes, gives the reply message's. May raise `RefusalError`; a `ProtocolError` says that the
bytes were no such message."""


class RefusalError(Exception):
    """A call that is answered by a Java exception instead of a reply message."""

    def __init__(self, exception_name: str, text: str = "") -> None:
        super().__init__(f"{exception_name}: {text}")
        self.failure = Failure(exception_name, text)


def bad_shape() -> RefusalError:
    """What a handler answers that threw, as one does that split a text and found too few fields: the cause is not
    transported.
    """
    return RefusalError("java.lang.reflect.InvocationTargetException")


def on_message(kind: type[M], answer: Callable[[M], Message]) -> Handler:
    """A handler from a function of messages."""

    def handle(data: bytes) -> bytes:
        return answer(parse(kind, data)).SerializeToString()

    return handle


class Service:
    """The handlers of one server by service type and method. `end_late` has the next call come to its end when so many
    more have begun, where a server knows calls that can."""

    def __init__(
        self,
        handlers: Mapping[ServiceType, Mapping[Method, Handler]],
        end_late: Callable[[int], None] = lambda calls: None,
    ) -> None:
        self.end_late = end_late
        self._handlers: dict[tuple[int, int], Handler] = {
            (service_type, method): handle
            for service_type, table in handlers.items()
            for method, handle in table.items()
        }

    def answer(self, request: Request) -> Response | Failure | None:
        """The reply; None when the server stays silent, as it does to a request that leaves it no time."""
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
            _log.exception("the handler of method %d of service %d", request.method, request.service_type)
            return bad_shape().failure

    def _unhandled(self, request: Request) -> Failure | None:
        """The method alone tells what the message must be, and it is looked at before the time and the service."""
        if request.method not in REQUESTS:
            return Failure("java.lang.Exception", f"there is no method {request.method}", fatal=True)
        parse(REQUESTS[Method(request.method)], request.data)
        if request.timeout_ms <= 0:
            return None
        return Failure("java.lang.Exception", f"service {request.service_type} has no method {request.method}")


def unreadable(text: str, *, ended: bool = False) -> Failure:
    """The answer to bytes that are no request; `ended` when they end where a length should stand."""
    name = "java.io.EOFException" if ended else "com.google.protobuf.InvalidProtocolBufferException"
    return Failure(name, text, fatal=True)
