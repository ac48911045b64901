# SPDX-License-Identifier: Apache-2.0
"""Batches of requests to many servers: requests to one server share a connection and are sent in one write.

A request to a broker names the broker, not its address only: another broker there never receives it.

If a broker refuses the visit token of a request, the requests to it are sent again with a newer token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tubemq_spark.client.net.broker_identity import Server
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken, authorization
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.errcode import ErrCode, error_for_failure, is_about_visit_token, is_elsewhere
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

M = TypeVar("M", bound=Message)

Outcome = Response | Failure | TransportError | ProtocolError
"""What became of one request: a reply, an exception of the server, or why there is neither."""

_MAX_TEXT = 600  # characters of a server's text, which names topic, group and client ids


@dataclass(frozen=True)
class ServerRequest:
    """One request and its server. `what` describes it, as the beginning of an error's sentence.

    `token` is the visit token in the message's `authInfo`, for requests that may be repeated with a newer one.
    """

    server: Server
    service: ServiceType
    method: Method
    message: Message
    what: str
    token: VisitToken | None = field(default=None, compare=False)


def send_requests(
    settings: ClientSettings, requests: Sequence[ServerRequest], timeout: float | None = None
) -> list[Outcome]:
    """Return the outcome of each request, in order. Errors are outcomes: nothing is raised.

    A server handles its requests in order too. All requests to a broker that refused a visit token are sent twice, so
    requests with a `token` must be repeatable.
    """
    outcomes = _send_once(settings, requests, timeout)
    renewals = _renew_tokens(requests, outcomes)
    if renewals:
        again = [number for number, request in enumerate(requests) if renewals.get(request.server, "") is None]
        for request in (requests[number] for number in again):
            if request.token is not None:
                info: broker_pb.AuthorizedInfo = request.message.authInfo  # type: ignore[attr-defined]
                info.CopyFrom(authorization(settings.credentials, request.token.value, settings.clock))
        repeated = _send_once(settings, [requests[number] for number in again], timeout)
        for number, outcome in zip(again, repeated, strict=True):
            outcomes[number] = outcome
        for number, request in enumerate(requests):
            outcomes[number] = _unless_expired(request, outcomes[number], renewals.get(request.server))
    return outcomes


def _renew_tokens(requests: Sequence[ServerRequest], outcomes: Sequence[Outcome]) -> dict[Server, str | None]:
    """Return the brokers that refused a token, each with the reason why there is no newer token, None if there is."""
    renewals: dict[Server, str | None] = {}
    for request, outcome in zip(requests, outcomes, strict=True):
        if request.token is not None and request.server not in renewals and _refusal(request, outcome) is not None:
            try:
                request.token.renew(request.message.authInfo.visitAuthorizedToken)  # type: ignore[attr-defined]
                renewals[request.server] = None
            except TransportError as error:
                renewals[request.server] = str(error)
    return renewals


def _refusal(request: ServerRequest, outcome: Outcome) -> str | None:
    """Return the broker's text if it answered 415 to a request with a token."""
    if request.token is None or not isinstance(outcome, Response):
        return None
    reply: broker_pb.HeartBeatResponseB2C | broker_pb.RegisterResponseB2C
    try:
        if request.method is Method.PARTITION_HEARTBEAT:
            reply = parse(broker_pb.HeartBeatResponseB2C, outcome.data)
        else:
            reply = parse(broker_pb.RegisterResponseB2C, outcome.data)
    except ProtocolError:
        return None  # the caller finds out when it reads the reply
    return reply.errMsg if reply.errCode == ErrCode.CERTIFICATE_FAILURE else None


def _unless_expired(request: ServerRequest, outcome: Outcome, problem: str | None) -> Outcome:
    """Return `outcome`, or a `TransportError` if the token is still refused, because a retry may help then."""
    text = _refusal(request, outcome)
    if text is None or not is_about_visit_token(ErrCode.CERTIFICATE_FAILURE, text):
        return outcome
    return TransportError(f"the broker refuses the visit token ({text}), and {problem or 'the newest one too'}")


def _send_once(settings: ClientSettings, requests: Sequence[ServerRequest], timeout: float | None) -> list[Outcome]:
    seconds = settings.rpc_timeout if timeout is None else timeout
    outcomes: list[Outcome] = []
    broken: dict[Server, TransportError | ProtocolError] = {}
    with ExitStack() as leases:
        connections: dict[Server, Connection] = {}
        serials: list[int] = []
        # Connect to all servers first: connecting to one must not use up the timeouts of requests to others.
        for server in dict.fromkeys(request.server for request in requests):
            try:
                connections[server] = leases.enter_context(POOL().lease(server, settings, seconds))
            except (TransportError, ProtocolError) as error:
                broken[server] = error
        for request in requests:
            serial_no = -1
            if request.server not in broken:
                connection = connections[request.server]
                try:
                    serial_no = connection.submit(request.service, request.method, request.message, seconds)
                except (TransportError, ProtocolError) as error:
                    broken[request.server] = error
            serials.append(serial_no)
        for server, connection in connections.items() if len(connections) > 1 else ():  # `reply` writes, too
            try:
                connection.flush()
            except (TransportError, ProtocolError) as error:
                broken[server] = error
        for request, serial_no in zip(requests, serials, strict=True):
            server = request.server
            try:
                if server in broken and not (server in connections and connections[server].answered(serial_no)):
                    raise broken[server]
                outcomes.append(connections[server].reply(serial_no))
            except (TransportError, ProtocolError) as error:
                broken.setdefault(server, error)
                outcomes.append(broken[server])
    return outcomes


def unwrap_reply(outcome: Outcome, kind: type[M], what: str) -> M:
    """Return the reply message of a request.

    Raise `TransportError` also if the server is starting, stopping or standing by, so that callers treat every server
    that is not in service alike. Raise `ServerError` for any other exception of the server.
    """
    if isinstance(outcome, Response):
        try:
            return _with_readable_texts(parse(kind, outcome.data))
        except ProtocolError as error:
            raise ProtocolError(f"{what}: {error}") from None
    if isinstance(outcome, Failure):
        if is_elsewhere(outcome):
            raise TransportError(f"{what}: not in service ({outcome.simple_name})")
        raise error_for_failure(outcome, what)
    raise type(outcome)(f"{what}: {outcome}") from None


def _with_readable_texts(reply: M) -> M:
    """Return `reply` with an `errMsg` that errors and logs can show. Raise `ProtocolError` if a text is not UTF-8."""
    for name in _texts(reply.DESCRIPTOR):
        value = getattr(reply, name)
        # protobuf returns bytes instead of a text that is not UTF-8.
        if not isinstance(value, str) and (isinstance(value, bytes) or any(isinstance(one, bytes) for one in value)):
            raise ProtocolError(f"the text {name} of a {type(reply).__name__} is not UTF-8: {shown(value)}")
        if name == "errMsg" and not (len(value) <= _MAX_TEXT and value.isprintable()):
            setattr(reply, name, shown(value, _MAX_TEXT))
    return reply


@lru_cache
def _texts(kind: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in kind.fields if field.type == field.TYPE_STRING)
