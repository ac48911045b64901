# SPDX-License-Identifier: Apache-2.0
"""Which broker answers on a connection: it is asked once, before the first request of a client that wants one broker.

Brokers that restart may get each other's address, and then lists, plans and caches of host names are old. A broker does
not look for whom a request is, and no other reply tells brokers apart: it names itself only when it refuses a claim,
because another client has the partition (wire: BrokerServiceServer.inProcessConsumerRegister). So the question is two
claims on a partition of the brokers' own topic, and the release of the first, in one write. A TCP connection goes to
one process, so the answer holds as long as the connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tubemq_spark.client import system
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken, authorization
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import IDENTITY_GROUP, OFFSET_HISTORY, Method, OpType, ReadStatus, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.errcode import ErrCode, broker_in, is_about_visit_token, is_elsewhere
from tubemq_spark.protocol.metadata import Address, Broker
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_QUESTIONS = 2  # a claim that has expired is refused once more, without the broker's id; the next one is not


class ExpectedBroker(NamedTuple):
    """The broker that a connection must lead to. `token` is the visit token for asking it who it is."""

    broker: Broker
    token: VisitToken = NO_TOKEN


Server = Address | ExpectedBroker
"""Where requests go: whoever is at an address, as for masters, or one broker and no other."""


def address_of(server: Server) -> Address:
    return server.broker.address if isinstance(server, ExpectedBroker) else server


def ask_broker_id(connection: Connection, settings: ClientSettings, token: VisitToken, timeout: float) -> int | None:
    """Return the id of the broker at the other end; None if it does not say. That is so where the cluster checks
    consumers and refuses this client.

    Raise `TransportError` if the broker does not answer, is not in service yet, or refuses the visit token and there is
    no newer one: with the next token, requests would reach a broker that nobody has asked.
    """
    problem = ""
    for number in range(_QUESTIONS):
        shown_token = token.value
        claims = [f"spark_identity_{system.token_hex(8)}" for _ in range(2)]
        requests = [*((OpType.REGISTER, one) for one in claims), (OpType.UNREGISTER, claims[0])]
        serials = [
            connection.submit(
                ServiceType.BROKER_READ,
                Method.PARTITION_REGISTER,
                broker_pb.RegisterRequestC2B(
                    opType=operation,
                    clientId=client_id,
                    groupName=IDENTITY_GROUP,
                    topicName=OFFSET_HISTORY,
                    partitionId=0,
                    readStatus=ReadStatus.FROM_MAX,
                    authInfo=authorization(settings.credentials, shown_token, settings.clock),
                ),
                timeout,
            )
            for operation, client_id in requests
        ]
        replies = [connection.reply(serial_no) for serial_no in serials]
        try:
            broker_id, is_final = _answer(connection.address, replies[:2])
        except _OldTokenError as refusal:
            token.renew(shown_token)
            problem = f"the broker at {connection.address} refuses the visit token: {refusal}"
            continue
        if is_final or number == _QUESTIONS - 1:
            return broker_id
    raise TransportError(problem)


class _OldTokenError(Exception):
    """The broker refuses the visit token."""


def _answer(address: Address, replies: Iterable[Response | Failure]) -> tuple[int | None, bool]:
    """Return the id that the replies name, and whether the same question would find no other."""
    for reply in replies:
        if isinstance(reply, Failure):
            if is_elsewhere(reply):
                raise TransportError(f"the broker at {address} is not in service ({reply.simple_name})")
            return None, True
        found = parse(broker_pb.RegisterResponseB2C, reply.data)
        text = str(found.errMsg)
        if found.errCode == ErrCode.SERVICE_UNAVAILABLE:
            raise TransportError(f"the broker at {address} is not in service ({found.errCode} {text})")
        if is_about_visit_token(found.errCode, text):
            raise _OldTokenError(text)
        broker_id = broker_in(found.errCode, text)
        if broker_id is not None or found.errCode not in (ErrCode.SUCCESS, ErrCode.PARTITION_OCCUPIED):
            return broker_id, True
    return None, False
