# SPDX-License-Identifier: Apache-2.0
"""Batches of requests to many servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.peers import Peer, answering, echo, refused_address, silent
from tubemq_spark.client.net import pool as pool_module
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ProtocolError, ServerError, TransportError
from tubemq_spark.protocol.claim_id import holder_in
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

SETTINGS = ClientSettings(masters=(), framing=Framing.STANDARD, timings=Timings(slow_peer_grace=0.05))


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    POOL().close()


def call(address: Address, group: str) -> ServerRequest:
    message = broker_pb.CommitOffsetRequestC2B(clientId="c", topicName="demo", partitionId=0, groupName=group)
    return ServerRequest(address, ServiceType.BROKER_READ, Method.COMMIT_OFFSET, message, f"asking for {group}")


def group_in(outcome: Response | Failure | TransportError | ProtocolError) -> str:
    assert isinstance(outcome, Response)
    return broker_pb.CommitOffsetRequestC2B.FromString(outcome.data).groupName


def test_outcomes_have_the_order_of_the_requests() -> None:
    with Peer(answering(echo)) as one, Peer(answering(echo)) as two:
        calls = [call((one, two, two)[n % 3].address, f"g{n}") for n in range(30)]
        assert [group_in(outcome) for outcome in send_requests(SETTINGS, calls)] == [f"g{n}" for n in range(30)]
        assert (one.connections, two.connections) == (1, 1)


def test_a_server_gets_its_requests_in_order() -> None:
    seen: list[str] = []

    def note(request: Request) -> Response:
        seen.append(broker_pb.CommitOffsetRequestC2B.FromString(request.data).groupName)
        return echo(request)

    with Peer(answering(note)) as peer:
        send_requests(SETTINGS, [call(peer.address, f"g{n}") for n in range(100)])
    assert seen == [f"g{n}" for n in range(100)]


@pytest.mark.parametrize("fault", ["refuses", "is silent", "closes", "speaks HTTP"])
def test_a_server_that_fails_does_not_affect_the_others(fault: str) -> None:
    faulty = {
        "refuses": silent,
        "is silent": silent,
        "closes": lambda connection: None,
        "speaks HTTP": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    }
    with Peer(answering(echo)) as good, Peer(faulty[fault]) as bad:
        bad_address = refused_address() if fault == "refuses" else bad.address
        calls = [call(address, "g") for address in (bad_address, good.address, bad_address, good.address)]
        outcomes = send_requests(SETTINGS, calls, timeout=0.2 if fault == "is silent" else None)
        assert [group_in(outcome) for outcome in outcomes[1::2]] == ["g", "g"]
        for outcome in outcomes[::2]:
            assert isinstance(outcome, ProtocolError if fault == "speaks HTTP" else TransportError)
            assert str(bad_address) in str(outcome)
        assert len(send_requests(SETTINGS, calls[1:2])) == 1
        assert good.connections == 1


def test_the_error_of_a_request_begins_with_its_description() -> None:
    with Peer(answering(echo)) as peer:
        (outcome,) = send_requests(SETTINGS, [call(peer.address, "g")])
        assert group_in(outcome) == "g"
    asking = call(refused_address(), "g")
    (outcome,) = send_requests(SETTINGS, [asking])
    with pytest.raises(TransportError, match=f"^asking for g: cannot connect to {asking.server}"):
        unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, asking.what)


REPLY = broker_pb.CommitOffsetResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=28)
NOT_HERE = "org.apache.inlong.tubemq.corerpc.exception."


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        (Response(Method.COMMIT_OFFSET, b"\xff"), ProtocolError, "1 bytes are not a CommitOffsetResponseB2C"),
        (Failure(f"{NOT_HERE}StandbyException", "x"), TransportError, r"^asking: not in service \(StandbyException\)"),
        (Failure(f"{NOT_HERE}ServiceStoppingException", "x"), TransportError, "^asking: not in service"),
        (Failure(f"{NOT_HERE}ServerNotReadyException", "x"), TransportError, "^asking: not in service"),
        (Failure("java.lang.Exception", "why"), ServerError, "^asking failed at the server with Exception: why"),
        (TransportError("broken"), TransportError, "^asking: broken"),
        (ProtocolError("nonsense"), ProtocolError, "^asking: nonsense"),
    ],
)
def test_unwrap_reply_raises_the_error_of_an_outcome(
    outcome: Response | Failure | TransportError | ProtocolError, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, "asking")


def test_a_server_that_is_slow_to_connect_takes_no_time_from_the_requests_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SkippingClock()

    def slow_connect(address: Address, *others: Any) -> Connection:
        if address != alive.address:
            clock.advance(1000.0)
        return connect(address, *others)

    monkeypatch.setattr(pool_module, "connect", slow_connect)
    settings = replace(SETTINGS, clock=clock, timings=Timings(slow_peer_grace=-1.0))
    with Peer(answering(echo)) as alive:
        answered, refused = send_requests(settings, [call(alive.address, "g"), call(refused_address(), "g")])
    assert isinstance(answered, Response)
    assert isinstance(refused, TransportError)


# Texts of errors


FORGED = "x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"  # forges a line of a log
ESCAPED = r"x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"


def heard(text: str) -> str:
    """Return the text of a reply as the client sees it."""
    message = broker_pb.RegisterResponseB2C(success=False, errCode=410, errMsg=text)
    reply = unwrap_reply(
        Response(Method.PARTITION_REGISTER, message.SerializeToString()), broker_pb.RegisterResponseB2C, "asking"
    )
    return reply.errMsg


def test_usual_texts_of_errors_stay_as_they_are() -> None:
    holder = "spark_0123456789abcdef_r1_b2_p3_a4_" + "name" * 40
    text = f"[Duplicated Register] Partition 1:{'topic' * 12}:10001 has been registered by {holder}"
    assert heard(text) == text
    assert holder_in(heard(text)) == holder


def test_long_or_unprintable_texts_of_errors_are_cut_and_escaped() -> None:
    assert heard(FORGED) == ESCAPED
    told = heard(FORGED * 100_000)
    assert told.startswith(ESCAPED * 2)
    assert told.isprintable()
    assert len(told) < 650
