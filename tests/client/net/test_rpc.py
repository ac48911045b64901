"""Many calls at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers import Peer, answering, echo, refused_address, silent
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, send_request, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, ServerError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

SETTINGS = ClientSettings(masters=(), framing=Framing.STANDARD)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection_module, "_GRACE", 0.05)
    yield
    POOL.close()


def call(address: Address, group: str) -> ServerRequest:
    message = broker_pb.CommitOffsetRequestC2B(clientId="c", topicName="demo", partitionId=0, groupName=group)
    return ServerRequest(address, ServiceType.BROKER_READ, Method.COMMIT_OFFSET, message, f"asking for {group}")


def group_in(outcome: Response | Failure | TransportError | ProtocolError) -> str:
    assert isinstance(outcome, Response)
    return broker_pb.CommitOffsetRequestC2B.FromString(outcome.data).groupName


def test_outcomes_come_in_the_order_of_the_calls() -> None:
    with Peer(answering(echo)) as one, Peer(answering(echo)) as two:
        calls = [call((one, two, two)[n % 3].address, f"g{n}") for n in range(30)]
        assert [group_in(outcome) for outcome in send_requests(SETTINGS, calls)] == [f"g{n}" for n in range(30)]
        assert (one.connections, two.connections) == (1, 1)


def test_a_server_handles_its_calls_in_their_order() -> None:
    seen: list[str] = []

    def note(request: Request) -> Response:
        seen.append(broker_pb.CommitOffsetRequestC2B.FromString(request.data).groupName)
        return echo(request)

    with Peer(answering(note)) as peer:
        send_requests(SETTINGS, [call(peer.address, f"g{n}") for n in range(100)])
    assert seen == [f"g{n}" for n in range(100)]


def test_no_calls() -> None:
    assert send_requests(SETTINGS, []) == []


@pytest.mark.parametrize("fault", ["refuses", "is silent", "closes", "speaks HTTP"])
def test_one_server_that_fails_does_not_spoil_the_others(fault: str) -> None:
    faulty = {
        "refuses": silent,
        "is silent": silent,
        "closes": lambda connection: None,
        "speaks HTTP": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    }
    with Peer(answering(echo)) as good, Peer(faulty[fault]) as bad:
        bad_address = refused_address() if fault == "refuses" else bad.address
        calls = [call(address, "g") for address in (bad_address, good.address, bad_address, good.address)]
        outcomes = send_requests(SETTINGS, calls, timeout=2.0 if fault == "is silent" else None)
        assert [group_in(outcome) for outcome in outcomes[1::2]] == ["g", "g"]
        for outcome in outcomes[::2]:
            assert isinstance(outcome, ProtocolError if fault == "speaks HTTP" else TransportError)
            assert str(bad_address) in str(outcome)
        assert len(send_requests(SETTINGS, calls[1:2])) == 1
        assert good.connections == 1


def test_answers_that_came_before_a_break_count() -> None:
    def two_of_three(request: Request) -> Response:
        if broker_pb.CommitOffsetRequestC2B.FromString(request.data).groupName == "g2":
            raise ConnectionError
        return echo(request)

    with Peer(answering(two_of_three)) as peer:
        first, second, third = send_requests(SETTINGS, [call(peer.address, f"g{n}") for n in range(3)])
        assert [group_in(first), group_in(second)] == ["g0", "g1"]
        assert isinstance(third, TransportError)


def test_one_call_says_what_it_was_for() -> None:
    with Peer(answering(echo)) as peer:
        assert group_in(send_request(SETTINGS, call(peer.address, "g"))) == "g"
    address = refused_address()
    with pytest.raises(TransportError, match=f"^asking for g: cannot connect to {address}"):
        send_request(SETTINGS, call(address, "g"))


REPLY = broker_pb.CommitOffsetResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=28)
NOT_HERE = "org.apache.inlong.tubemq.corerpc.exception."


def test_an_answer_is_the_replys_message() -> None:
    outcome = Response(Method.COMMIT_OFFSET, REPLY.SerializeToString())
    assert unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, "asking") == REPLY


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        (Response(Method.COMMIT_OFFSET, b"\xff"), ProtocolError, "1 bytes are no CommitOffsetResponseB2C"),
        (Failure(f"{NOT_HERE}StandbyException", "x"), TransportError, r"^asking: not in service \(StandbyException\)"),
        (Failure(f"{NOT_HERE}ServiceStoppingException", "x"), TransportError, "^asking: not in service"),
        (Failure(f"{NOT_HERE}ServerNotReadyException", "x"), TransportError, "^asking: not in service"),
        (Failure("java.lang.Exception", "why"), ServerError, "^asking failed at the server with Exception: why"),
        (TransportError("broken"), TransportError, "^asking: broken"),
        (ProtocolError("nonsense"), ProtocolError, "^asking: nonsense"),
    ],
)
def test_what_is_no_answer(
    outcome: Response | Failure | TransportError | ProtocolError, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, "asking")
