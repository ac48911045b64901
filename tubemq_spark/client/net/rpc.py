"""Many calls at once: all that go to one server share a connection and are written together.

When a broker refuses the visit token of a call, the calls to it are made again with a newer one from the master.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken, authorization
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.errcode import ErrCode, error_for_failure, is_about_visit_token, is_elsewhere
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

M = TypeVar("M", bound=Message)

Outcome = Response | Failure | TransportError | ProtocolError

_MAX_TEXT = 600  # characters of a server's text, which names topic, group and client ids


@dataclass(frozen=True)
class ServerRequest:
    """One request and where it goes; `what` says in words what it is for, as the beginning of an error's sentence.
    `token` is the one in the message's `authInfo`, for calls that have it and may be repeated with another one.
    """

    address: Address
    service: ServiceType
    method: Method
    message: Message
    what: str
    token: VisitToken | None = field(default=None, compare=False)


def send_requests(
    settings: ClientSettings, calls: Sequence[ServerRequest], timeout: float | None = None
) -> list[Outcome]:
    """The outcome of each call, in their order; those to one server are handled in their order too. Raises nothing.

    All calls to a broker that refused a visit token are made twice, hence calls with a `token` must bear that.
    """
    outcomes = _call_all(settings, calls, timeout)
    troubles = _renew_tokens(calls, outcomes)
    if troubles:
        again = [number for number, call in enumerate(calls) if troubles.get(call.address, "") is None]
        for number in again:
            _authorize(settings, calls[number])
        for number, outcome in zip(again, _call_all(settings, [calls[n] for n in again], timeout), strict=True):
            outcomes[number] = outcome
        for number, call in enumerate(calls):
            outcomes[number] = _unless_expired(call, outcomes[number], troubles.get(call.address))
    return outcomes


def _renew_tokens(calls: Sequence[ServerRequest], outcomes: Sequence[Outcome]) -> dict[Address, str | None]:
    """The brokers that refused a token, each with why there is no newer one, None where there is one now."""
    troubles: dict[Address, str | None] = {}
    for call, outcome in zip(calls, outcomes, strict=True):
        if call.token is not None and call.address not in troubles and _refusal(call, outcome) is not None:
            try:
                call.token.renew(shown_token(call))
                troubles[call.address] = None
            except TransportError as error:
                troubles[call.address] = str(error)
    return troubles


def _authorize(settings: ClientSettings, call: ServerRequest) -> None:
    """Puts the token of now into the message."""
    if call.token is not None:
        info: broker_pb.AuthorizedInfo = call.message.authInfo  # type: ignore[attr-defined]
        info.CopyFrom(authorization(settings.credentials, call.token.value))


def shown_token(call: ServerRequest) -> int:
    """The visit token in the message of a call that has one."""
    token: int = call.message.authInfo.visitAuthorizedToken  # type: ignore[attr-defined]
    return token


def _refusal(call: ServerRequest, outcome: Outcome) -> str | None:
    """The broker's text when it answered 415 to a call with a token."""
    if call.token is None or not isinstance(outcome, Response):
        return None
    try:
        if call.method is Method.PARTITION_HEARTBEAT:
            beat = parse(broker_pb.HeartBeatResponseB2C, outcome.data)
            code, text = beat.errCode, beat.errMsg
        else:
            claim = parse(broker_pb.RegisterResponseB2C, outcome.data)
            code, text = claim.errCode, claim.errMsg
    except ProtocolError:
        return None  # who reads the answer finds out
    return text if code == ErrCode.CERTIFICATE_FAILURE else None


def _unless_expired(call: ServerRequest, outcome: Outcome, trouble: str | None) -> Outcome:
    """A token that stays refused is a trouble that may pass, and not one of the user's credentials."""
    text = _refusal(call, outcome)
    if text is None or not is_about_visit_token(ErrCode.CERTIFICATE_FAILURE, text):
        return outcome
    return TransportError(f"the broker refuses the visit token ({text}), and {trouble or 'the newest one too'}")


def _call_all(settings: ClientSettings, calls: Sequence[ServerRequest], timeout: float | None) -> list[Outcome]:
    seconds = settings.rpc_timeout if timeout is None else timeout
    outcomes: list[Outcome] = []
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


def send_request(settings: ClientSettings, call: ServerRequest, timeout: float | None = None) -> Response | Failure:
    """As `send_requests` for one, raising `TransportError` or `ProtocolError`."""
    outcome = send_requests(settings, [call], timeout)[0]
    if isinstance(outcome, (TransportError, ProtocolError)):
        raise type(outcome)(f"{call.what}: {outcome}") from None
    return outcome


def unwrap_reply(outcome: Outcome, kind: type[M], what: str) -> M:
    """The reply message of a call. `TransportError` as well when the node is starting, stopping or standing by, so that
    one reaction serves all cases of "not here, not now"; `ServerError` for any other exception of the server."""
    if isinstance(outcome, Response):
        try:
            return _checked(parse(kind, outcome.data))
        except ProtocolError as error:
            raise ProtocolError(f"{what}: {error}") from None
    if isinstance(outcome, Failure):
        if is_elsewhere(outcome):
            raise TransportError(f"{what}: not in service ({outcome.simple_name})")
        raise error_for_failure(outcome, what)
    raise type(outcome)(f"{what}: {outcome}") from None


def _checked(reply: M) -> M:
    """`reply` with a text that errors and logs can show; holders of partitions are found in it, too."""
    for name in _texts(reply.DESCRIPTOR):
        value = getattr(reply, name)
        # protobuf gives bytes instead of a text that is no UTF-8.
        if not isinstance(value, str) and (isinstance(value, bytes) or any(isinstance(one, bytes) for one in value)):
            raise ProtocolError(f"the text {name} of a {type(reply).__name__} is no UTF-8: {shown(value)}")
        if name == "errMsg" and not (len(value) <= _MAX_TEXT and value.isprintable()):
            setattr(reply, name, shown(value, _MAX_TEXT))
    return reply


@lru_cache
def _texts(kind: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)
