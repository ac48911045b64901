# SPDX-License-Identifier: Apache-2.0
"""The connection pool: which connections are reused, and which are closed."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.client.net.connecting import submit
from tests.clocks import ManualClock
from tests.peers import Peer, answering, echo
from tests.without_spark.query import Query, write
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL, ConnectionPool
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.testing import EmbeddedTubeMQ

STANDARD = Framing.STANDARD
SETTINGS = ClientSettings(masters=(), framing=STANDARD)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer(answering(echo)) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    pool = ConnectionPool()
    yield pool
    pool.close()


def use(pool: ConnectionPool, peer: Peer, settings: ClientSettings = SETTINGS) -> Connection:
    with pool.lease(peer.address, settings) as connection:
        call(connection)
    return connection


def call(connection: Connection) -> None:
    connection.reply(submit(connection, b"hello", 10.0))


def test_a_connection_is_reused(pool: ConnectionPool, peer: Peer) -> None:
    first = use(pool, peer)
    assert repr(pool) == f"<ConnectionPool idle: {{'{peer.address}': 1}}>"
    assert use(pool, peer) is first
    assert peer.connections == 1


def test_a_connection_belongs_to_one_borrower_at_a_time(pool: ConnectionPool, peer: Peer) -> None:
    with pool.lease(peer.address, SETTINGS) as mine:
        others = use(pool, peer)
        call(mine)
    assert mine is not others
    assert use(pool, peer) in (mine, others)
    assert peer.connections == 2


def test_without_sharing_each_borrower_gets_a_new_connection(pool: ConnectionPool, peer: Peer) -> None:
    shared = use(pool, peer)
    alone = replace(SETTINGS, shared_connections=False)
    first, second = use(pool, peer, alone), use(pool, peer, alone)
    assert first.closed
    assert second.closed
    assert peer.connections == 3
    assert use(pool, peer) is shared


@pytest.mark.parametrize("shared", [True, False])
def test_a_task_leaves_shared_connections_and_sessions_behind(shared: bool) -> None:
    """Without sharing, it closes its connections and its session."""
    with EmbeddedTubeMQ({"one": 1, "pair": 2}) as tubemq:
        farewells = tubemq.on("producer_close", client="spark_producer").count()
        assert write(tubemq, [b"a", b"b"], rpc_timeout=10.0, shared_connections=shared) == 2
        query = Query(tubemq, "pair", rpc_timeout=10.0, shared_connections=shared)
        query.run()
        assert sorted(row.body for rows in query.rows.values() for row in rows) == [b"a", b"b"]
        assert (repr(POOL()) == "<ConnectionPool idle: {}>") is not shared
        assert (repr(SESSIONS()) == "<ProducerSessions []>") is not shared
        assert farewells.fired == (0 if shared else 1)
        forget_servers()


def test_each_lease_closes_all_connections_that_were_idle_for_too_long(pool: ConnectionPool, peer: Peer) -> None:
    clock = ManualClock()
    settings = replace(SETTINGS, idle_for=10.0, clock=clock)
    with Peer(answering(echo)) as other:
        old = use(pool, other, settings)
        clock.advance(6)
        young = use(pool, peer, settings)
        clock.advance(5)
        assert use(pool, peer, settings) is young
        assert old.closed
        assert repr(pool) == f"<ConnectionPool idle: {{'{peer.address}': 1}}>"


@pytest.mark.parametrize(("idle_for", "there"), [(180.0, True), (-1.0, False)])
def test_has_idle_ignores_connections_that_were_idle_for_too_long(
    pool: ConnectionPool, peer: Peer, idle_for: float, there: bool
) -> None:
    """The caller would have to wait for a new connection."""
    use(pool, peer)
    assert pool.has_idle(peer.address, replace(SETTINGS, idle_for=idle_for)) is there


def test_a_connection_whose_borrower_failed_is_closed(pool: ConnectionPool, peer: Peer) -> None:
    with pytest.raises(KeyError), pool.lease(peer.address, SETTINGS) as failed:
        raise KeyError
    assert failed.closed
    assert use(pool, peer) is not failed


def test_a_connection_with_an_unanswered_request_is_closed(pool: ConnectionPool, peer: Peer) -> None:
    with pool.lease(peer.address, SETTINGS) as left:
        submit(left, b"hello", 10.0)
    assert left.closed
    assert use(pool, peer) is not left


def test_a_connection_that_broke_while_idle_is_closed(pool: ConnectionPool) -> None:
    with Peer(answering(echo)) as gone:
        broken = use(pool, gone)
        gone.hang_up()
        select.select([broken._stream.socket], [], [])
        with pytest.raises(TransportError, match="cannot connect"):
            use(pool, gone)
    assert broken.closed
    assert repr(pool) == "<ConnectionPool idle: {}>"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_use_its_parents_connections(peer: Peer) -> None:
    first = use(POOL(), peer)
    child = os.fork()
    if child == 0:
        os._exit(0 if repr(POOL()) == "<ConnectionPool idle: {}>" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert use(POOL(), peer) is first
    POOL().close()
