# SPDX-License-Identifier: Apache-2.0
"""Connecting in the background: one attempt to each broker, shared by all producers that wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers import Peer, answering, calling_itself, refused_address
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.connect_attempt import ConnectAttempt, ConnectAttempts
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Broker

SETTINGS = ClientSettings(masters=(), framing=Framing.STANDARD)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Peer(answering(calling_itself(1))) as peer:
        yield Broker(1, peer.address)


def finished(attempt: ConnectAttempt) -> ConnectAttempt:
    wait_until(lambda: attempt.done, "the end of an attempt to connect")
    return attempt


def test_the_first_producer_gets_the_connection_of_a_shared_attempt(broker: Broker) -> None:
    attempts = ConnectAttempts(SETTINGS, lambda broker_id: None)
    attempt = attempts.to(broker)
    assert attempt is attempts.to(broker) or attempt.done
    taken = finished(attempt).take()
    assert taken is not None
    connection, lease = taken
    assert attempts.to(broker) is not attempt
    lease.close()
    assert POOL().has_idle(broker.address, SETTINGS)
    assert not connection.closed


def test_a_connection_that_nobody_waits_for_goes_to_the_pool(broker: Broker) -> None:
    attempt = ConnectAttempts(SETTINGS, lambda broker_id: None).to(broker)
    attempt.close()
    wait_until(lambda: POOL().has_idle(broker.address, SETTINGS), "a connection in the pool")


def test_an_idle_connection_is_taken_at_once(broker: Broker) -> None:
    with POOL().lease(ExpectedBroker(broker), SETTINGS):
        pass
    attempt = ConnectAttempts(SETTINGS, lambda broker_id: None).to(broker)
    assert attempt.done
    attempt.close()


def test_all_producers_get_the_error_of_an_attempt_that_failed() -> None:
    unreachable: list[int] = []
    attempts = ConnectAttempts(SETTINGS, unreachable.append)
    attempt = finished(attempts.to(Broker(7, refused_address())))
    with pytest.raises(TransportError, match="cannot connect"):
        attempt.take()
    assert not attempt.join()
    assert unreachable == [7]
