# SPDX-License-Identifier: Apache-2.0
"""The faults of one request: what the server executes, and what the client gets."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.request_faults import befall, cut, method_of
from tests.waiting import wait_until
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, Response
from tubemq_spark.protocol.metadata import parse_master_addresses
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ

# The master answers it with an error code, and counts it.
REQUEST = Request(
    ServiceType.MASTER,
    Method.PRODUCER_HEARTBEAT,
    20_000,
    pb.HeartRequestP2M(clientId="nobody", brokerCheckSum=-1, hostName="127.0.0.1").SerializeToString(),
)
SOON = 0.05  # seconds


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ() as tubemq:
        yield tubemq


@pytest.fixture
def connection(tubemq: EmbeddedTubeMQ) -> Iterator[Connection]:
    (address,) = parse_master_addresses(tubemq.master)
    connection = Connection(address, Framing.STANDARD, 10.0)
    yield connection
    connection.close()


def executed(tubemq: EmbeddedTubeMQ) -> int:
    return tubemq.activity().calls.get("producer_heartbeat", 0)


def submit(connection: Connection, how: str, soon: float | None = SOON) -> int:
    return befall(how, connection, REQUEST, Connection.submit_request, {"cut": cut}, soon)


def test_a_request_has_the_name_of_its_method() -> None:
    assert method_of(REQUEST) == "producer_heartbeat"


@pytest.mark.parametrize(("how", "count"), [("lost", 0), ("unanswered", 1)])
def test_the_client_waits_for_a_reply_in_vain(
    tubemq: EmbeddedTubeMQ, connection: Connection, how: str, count: int
) -> None:
    serial_no = submit(connection, how)
    with pytest.raises(TransportError, match="did not answer in time"):
        connection.reply(serial_no)
    assert executed(tubemq) == count


@pytest.mark.parametrize("how", ["lost", "unanswered"])
def test_other_requests_of_the_connection_are_answered(
    tubemq: EmbeddedTubeMQ, connection: Connection, how: str
) -> None:
    before = connection.submit_request(REQUEST)
    submit(connection, how, soon=None)
    after = connection.submit_request(REQUEST)
    assert isinstance(connection.reply(before), Response)
    assert isinstance(connection.reply(after), Response)


def test_a_late_reply_comes_to_a_client_that_waits(
    tubemq: EmbeddedTubeMQ, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.request_faults.LATENESS", 0.3)
    begun = time.monotonic()
    serial_no = submit(connection, "late", soon=None)
    assert isinstance(connection.reply(serial_no), Response)
    assert time.monotonic() >= begun + 0.3
    assert executed(tubemq) == 1


def test_a_late_reply_comes_too_late_for_a_client_that_gives_up(tubemq: EmbeddedTubeMQ, connection: Connection) -> None:
    serial_no = submit(connection, "late")
    with pytest.raises(TransportError, match="did not answer in time"):
        connection.reply(serial_no)
    wait_until(lambda: executed(tubemq) == 1)


@pytest.mark.parametrize(("how", "count"), [("cut_before", 0), ("cut_answered", 1)])
def test_the_connection_breaks(tubemq: EmbeddedTubeMQ, connection: Connection, how: str, count: int) -> None:
    serial_no = submit(connection, how)
    with pytest.raises(TransportError, match="broke"):
        connection.reply(serial_no)
    assert executed(tubemq) == count
