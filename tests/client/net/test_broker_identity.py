# SPDX-License-Identifier: Apache-2.0
"""Whoever wants one broker meets no other: each new connection is asked which broker it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.peers import Answer, Peer, answering, calling_itself, message_reply
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import IDENTITY_GROUP, OFFSET_HISTORY, Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address, Broker, parse_addresses
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ, Release, ServerConfig

SETTINGS = ClientSettings(masters=(), framing=Framing.STANDARD)
WRONG = r"broker 2 answers at .*, not broker 1\. .* the masters must list the new ones; .*'tubemq\.brokers\.addresses'"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"demo": 1}, brokers=2) as running:
        yield running


def address_of(tubemq: EmbeddedTubeMQ, broker_id: int) -> Address:
    return parse_addresses(tubemq.broker_address(broker_id))[0]


def met(server: ExpectedBroker, settings: ClientSettings = SETTINGS) -> Connection:
    with POOL().lease(server, settings) as connection:
        return connection


def fetch(server: ExpectedBroker) -> ServerRequest:
    message = pb.GetMessageRequestC2B(clientId="c", partitionId=0, groupName="g", topicName="demo")
    return ServerRequest(server, ServiceType.BROKER_READ, Method.GET_MESSAGE, message, "reading")


@pytest.mark.parametrize("release", Release)
def test_a_new_connection_is_asked_once(release: Release) -> None:
    with EmbeddedTubeMQ(release=release) as tubemq:
        asked = tubemq.on("partition_register", group=IDENTITY_GROUP).count()
        settings = ClientSettings(masters=(), framing=tubemq.framing)
        server = ExpectedBroker(Broker(1, address_of(tubemq, 1)))
        assert met(server, settings) is met(server, settings)
        assert (asked.fired, tubemq.claims()) == (2, {})


def test_another_broker_receives_no_request(tubemq: EmbeddedTubeMQ) -> None:
    fetched = tubemq.on("get_message").count()
    wrong, right = (ExpectedBroker(Broker(number, address_of(tubemq, 2))) for number in (1, 2))
    refused, served = send_requests(SETTINGS, [fetch(wrong), fetch(right)])
    with pytest.raises(TransportError, match=WRONG):
        raise refused  # type: ignore[misc]
    assert (isinstance(served, Response), fetched.fired) == (True, 1)
    assert [POOL().is_elsewhere(one.broker) for one in (wrong, right)] == [True, False]


def test_an_idle_connection_is_only_for_those_who_want_its_broker(tubemq: EmbeddedTubeMQ) -> None:
    address = address_of(tubemq, 2)
    right = met(ExpectedBroker(Broker(2, address)))
    with pytest.raises(TransportError, match=WRONG):
        met(ExpectedBroker(Broker(1, address)))
    assert POOL().has_idle(ExpectedBroker(Broker(2, address)), SETTINGS)
    assert not POOL().has_idle(ExpectedBroker(Broker(1, address)), SETTINGS)
    assert met(ExpectedBroker(Broker(2, address))) is right


def test_a_broker_that_is_back_at_its_address_is_not_elsewhere(tubemq: EmbeddedTubeMQ) -> None:
    server = ExpectedBroker(Broker(1, address_of(tubemq, 1)))
    for is_elsewhere in (True, False):
        for number in (1, 2):
            tubemq.stop_broker(number)
        tubemq.swap_addresses(1, 2)
        for number in (1, 2):
            tubemq.start_broker(number)
        if is_elsewhere:
            with pytest.raises(TransportError, match=WRONG):
                met(server)
        else:
            met(server)
        assert POOL().is_elsewhere(server.broker) is is_elsewhere


def test_a_claim_that_another_client_left_does_not_hide_the_broker(tubemq: EmbeddedTubeMQ) -> None:
    server = ExpectedBroker(Broker(1, address_of(tubemq, 1)))
    impatient = replace(SETTINGS, rpc_timeout=0.1)
    lost = tubemq.on("partition_unregister", group=IDENTITY_GROUP, times=1).drop_request()
    with lost, pytest.raises(TransportError, match="did not answer in time"):
        met(server, impatient)
    assert len(tubemq.claims()) == 1
    assert met(server).broker_id == 1


def test_a_claim_that_has_just_expired_does_not_hide_the_broker() -> None:
    """The broker refuses the next claim without naming itself, and then has none."""
    expired = refusal(410, "[Duplicated Register] Remove Invalid Consumer Register c#g:t:0")
    answers = iter([expired, refusal(200, "OK!"), refusal(411, "UnRegistered Consumer"), *[calling_itself(1)] * 3])
    with Peer(answering(lambda request: next(answers)(request))) as peer:
        assert met(ExpectedBroker(Broker(1, peer.address))).broker_id == 1


def refusal(code: int, text: str) -> Answer:
    def answer(request: Request) -> Response:
        return message_reply(request, pb.RegisterResponseB2C(success=False, errCode=code, errMsg=text))

    return answer


UNCLEAR: dict[str, Answer] = {
    "refuses the client": refusal(415, "Certificate failure"),
    "does not know its own topic": refusal(403, f"{OFFSET_HISTORY} not existed, please check your configure"),
    "fails": lambda _: Failure("java.lang.reflect.InvocationTargetException", ""),
    "names another client only": refusal(410, "[Duplicated Register] Remove Invalid Consumer Register c#g:t:0"),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_a_broker_that_does_not_say_who_it_is_is_used_and_asked_again(case: str) -> None:
    with Peer(answering(UNCLEAR[case])) as peer:
        server = ExpectedBroker(Broker(1, peer.address))
        first = met(server)
        assert (first.broker_id, POOL().has_idle(server, SETTINGS)) == (None, False)
        assert met(server) is first


NOT_IN_SERVICE: dict[str, Answer] = {
    "starting": refusal(503, "StoreService temporary unavailable!"),
    "stopping": lambda _: Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", ""),
}


@pytest.mark.parametrize("case", NOT_IN_SERVICE)
def test_a_broker_that_is_not_in_service_receives_no_request(case: str) -> None:
    """It could come into service before the request."""
    with Peer(answering(NOT_IN_SERVICE[case])) as peer, pytest.raises(TransportError, match="is not in service"):
        met(ExpectedBroker(Broker(1, peer.address)))


def test_a_broker_that_refuses_the_visit_token_is_asked_with_a_newer_one() -> None:
    """With the newer one, requests would reach a broker that has not said who it is."""
    checking = ServerConfig(start_visit_token_check=True, visit_token_check_in_valid_time=0.0)
    with EmbeddedTubeMQ(config=checking) as tubemq:
        tokens = tubemq._servers.catalog.tokens
        token = VisitToken(lambda: tokens.current, value=1)
        assert met(ExpectedBroker(Broker(1, address_of(tubemq, 1)), token)).broker_id == 1
        assert token.value == tokens.current


@pytest.mark.parametrize("newer", [(1,), (2, 3, 4)], ids=["none", "all refused"])
def test_a_broker_that_refuses_all_visit_tokens_receives_no_request(newer: tuple[int, ...]) -> None:
    given = iter(newer)
    token = VisitToken(lambda: next(given), value=1)
    too_old = refusal(415, "Visit Authorized Token is invalid!")
    with Peer(answering(too_old)) as peer, pytest.raises(TransportError, match=r"visit token|gives no newer one"):
        met(ExpectedBroker(Broker(1, peer.address), token))


def test_who_wants_anybody_at_an_address_does_not_ask(tubemq: EmbeddedTubeMQ) -> None:
    asked = tubemq.on("partition_register", group=IDENTITY_GROUP).count()
    with POOL().lease(address_of(tubemq, 1), SETTINGS) as connection:
        assert (connection.broker_id, asked.fired) == (None, 0)
