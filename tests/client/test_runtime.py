# SPDX-License-Identifier: Apache-2.0
"""What lives as long as a process: made once, apart from that of other processes, and what `forget_servers` closes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.clusters.embedded import embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client import forget_servers, runtime
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.connection import FRAMINGS
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.runtime import PerProcess, Runtime
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address


@pytest.fixture
def process() -> Iterator[Runtime]:
    """A new process, as far as the connector knows."""
    inside = Runtime()
    before = runtime.enter(inside)
    yield inside
    assert runtime.enter(before) is inside


def test_forget_servers_closes_idle_sessions_and_connections() -> None:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}) as cluster:
        closed = counted(cluster, "producer_close")
        with Producer(settings(cluster)) as producer:
            producer.send("demo", b"1")
        FRAMINGS()[Address("mq", 8123)] = Framing.PREFIXED
        forget_servers()
        assert closed.fired == 1
        assert repr(SESSIONS()) == "<ProducerSessions []>"
        assert repr(POOL()) == "<ConnectionPool idle: {}>"
        assert FRAMINGS() == {}


def test_each_process_has_its_own_value(process: Runtime) -> None:
    value: PerProcess[list[int]] = PerProcess(list)
    mine = value()
    mine.append(1)
    assert value() is mine
    assert runtime.enter(Runtime()) is process
    assert value() == []
    runtime.enter(process)
    assert value() is mine
    assert runtime.current() is process


def test_values_close_in_the_reverse_order_of_their_declaration(process: Runtime) -> None:
    closed: list[str] = []
    connections = PerProcess(lambda: "connections", closed.append)
    sessions = PerProcess(lambda: "sessions", closed.append)
    PerProcess(lambda: "never needed", closed.append)
    kept = PerProcess(lambda: "kept")
    sessions(), kept(), connections()
    process.close()
    assert closed == ["sessions", "connections"]
    assert sessions() == "sessions"


def test_threads_get_the_same_value(process: Runtime) -> None:
    together = threading.Barrier(4)

    def make() -> object:
        together.wait(60)  # all threads make one
        return object()

    value = PerProcess(make)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(value())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [value()] * 4


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_begins_with_nothing(process: Runtime) -> None:
    value: PerProcess[list[int]] = PerProcess(list)
    value().append(1)
    child = os.fork()
    if child == 0:
        os._exit(0 if value() == [] and runtime.current() is not process else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert value() == [1]
