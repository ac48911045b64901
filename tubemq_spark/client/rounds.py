"""Many calls at once: all that go to one server share a connection and are written together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tubemq_spark.client.connection import Connection
from tubemq_spark.client.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.errcode import error_for_failure, is_elsewhere
from tubemq_spark.protocol.metadata import Address

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Call:
    """One request and where it goes; `what` says in words what it is for, as the beginning of an error's sentence."""

    address: Address
    service: ServiceType
    method: Method
    message: Message
    what: str


def call_all(
    settings: ClientSettings, calls: Sequence[Call], timeout: float | None = None
) -> list[Response | Failure | TransportError | ProtocolError]:
    """The outcome of each call, in their order; those to one server are handled in their order too. Raises nothing."""
    seconds = settings.rpc_timeout if timeout is None else timeout
    outcomes: list[Response | Failure | TransportError | ProtocolError] = []
    broken: dict[Address, TransportError | ProtocolError] = {}
    with ExitStack() as leases:
        connections: dict[Address, Connection] = {}
        serials: list[int] = []
        # First all connections: while one is waited for, no request's time must run.
        for address in dict.fromkeys(call.address for call in calls):
            try:
                connections[address] = leases.enter_context(POOL.lease(address, settings, seconds))
            except (TransportError, ProtocolError) as error:
                broken[address] = error
        for call in calls:
            serial_no = -1
            if call.address not in broken:
                try:
                    serial_no = connections[call.address].submit(call.service, call.method, call.message, seconds)
                except (TransportError, ProtocolError) as error:
                    broken[call.address] = error
            serials.append(serial_no)
        for address, connection in connections.items():
            try:
                connection.flush()
            except (TransportError, ProtocolError) as error:
                broken[address] = error
        for call, serial_no in zip(calls, serials, strict=True):
            try:
                if call.address in broken and not (
                    call.address in connections and connections[call.address].answered(serial_no)
                ):
                    raise broken[call.address]
                outcomes.append(connections[call.address].reply(serial_no))
            except (TransportError, ProtocolError) as error:
                broken.setdefault(call.address, error)
                outcomes.append(broken[call.address])
    return outcomes


def call_one(settings: ClientSettings, call: Call, timeout: float | None = None) -> Response | Failure:
    """As `call_all` for one, raising `TransportError` or `ProtocolError`."""
    outcome = call_all(settings, [call], timeout)[0]
    if isinstance(outcome, (TransportError, ProtocolError)):
        raise type(outcome)(f"{call.what}: {outcome}") from outcome
    return outcome


def answer(outcome: Response | Failure | TransportError | ProtocolError, kind: type[M], what: str) -> M:
    """The reply message of a call. `TransportError` as well when the node is starting, stopping or standing by, so that
    one reaction serves all cases of "not here, not now"; `ServerError` for any other exception of the server."""
    if isinstance(outcome, Response):
        try:
            return _checked(parse(kind, outcome.data))
        except ProtocolError as error:
            raise ProtocolError(f"{what}: {error}") from error
    if isinstance(outcome, Failure):
        if is_elsewhere(outcome):
            raise TransportError(f"{what}: not in service ({outcome.simple_name})")
        raise error_for_failure(outcome, what)
    raise type(outcome)(f"{what}: {outcome}") from outcome


def _checked(reply: M) -> M:
    """protobuf gives bytes instead of a text that is no UTF-8."""
    for name in _texts(reply.DESCRIPTOR):
        value = getattr(reply, name)
        if not isinstance(value, str) and (isinstance(value, bytes) or any(isinstance(one, bytes) for one in value)):
            raise ProtocolError(f"the text {name} of a {type(reply).__name__} is no UTF-8: {value!r}")
    return reply


@lru_cache
def _texts(kind: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)
