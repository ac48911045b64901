# SPDX-License-Identifier: Apache-2.0
"""A worker process runs many tasks, each with a producer: none may leave threads, files or connections behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, counted, settings
from tests.waiting import wait_until
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ServerError
from tubemq_spark.testing import Fault


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=2) as running:
        yield running


class Left(NamedTuple):
    """What exists in this process, where the servers run, too, and at the servers."""

    threads: int
    files: int
    connections: int
    producers: int


class Observer:
    """Counts what exists, and waits until it is gone."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._tubemq = cluster.tubemq
        self._registers: Fault = counted(cluster, "producer_register")
        self._closes: Fault = counted(cluster, "producer_close")

    def count(self) -> Left:
        servers = self._tubemq._servers
        listeners = [one.plain for one in servers.masters] + [one.plain for one in servers.brokers.values()]
        return Left(
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
            self._tubemq._on_thread(lambda: sum(len(listener.connections) for listener in listeners)),
            self._registers.fired - self._closes.fired,
        )

    def wait_for(self, before: Left) -> None:
        """Wait until no more is left than `before`: servers notice a little later that a connection has ended."""
        wait_until(lambda: all(now <= then for now, then in zip(self.count(), before, strict=True)), f"{before}")

    def settled(self, producers: int, connections: int) -> Left:
        """Wait until the servers have no more than these and no attempt to connect runs. Return what is left."""

        def is_settled() -> bool:
            left = self.count()
            dialling = any(one.name.startswith("tubemq-connect") for one in threading.enumerate())
            return not dialling and left.producers == producers and left.connections <= connections

        wait_until(is_settled, f"{producers} producers and {connections} connections")
        return self.count()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files as Linux shows them")
@pytest.mark.parametrize("tasks", [100, pytest.param(1000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "not shared"])
def test_many_tasks_leave_nothing_behind(cluster: EmbeddedCluster, shared: bool, tasks: int) -> None:
    same = replace(settings(cluster), shared_connections=shared)
    observer = Observer(cluster)
    limits = (1, 3) if shared else (0, 0)
    for task in range(tasks):
        with Producer(same) as producer:
            producer.send("demo", b"row %d" % task)
            producer.send("demo", b"key %d" % task, key=b"%d" % task)
        if task == 10:
            before = observer.settled(*limits)
    observer.wait_for(before)
    observer.settled(*limits)
    assert bodies_in(cluster).total() == 2 * tasks


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files as Linux shows them")
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "not shared"])
def test_failed_tasks_leave_nothing_behind(cluster: EmbeddedCluster, shared: bool) -> None:
    same = replace(settings(cluster, retry_for=0.0), shared_connections=shared)
    observer = Observer(cluster)
    with Producer(same) as producer:
        producer.send("demo", b"before")
    before = observer.count()
    cluster.stop_broker(2)
    refusal = cluster.tubemq.on("send_message", broker=1).fail(400)
    for number in range(100):
        with suppress(ServerError), Producer(same) as producer:
            producer.prepare("demo")
            producer.send("demo", b"row %d" % number, target=(1, 0))
            if number % 3:
                raise ServerError("the task fails for a reason of its own", code=0, name="", message="")
    assert refusal.fired > 0
    # A background attempt to connect may still run, and open a connection.
    observer.wait_for(before._replace(connections=before.connections + 1, files=before.files + 4))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts files as Linux shows them")
def test_concurrent_tasks_share_a_registration(cluster: EmbeddedCluster) -> None:
    """Tasks in the threads of one process."""
    same = settings(cluster)
    registers = counted(cluster, "producer_register")

    def run(task: int) -> None:
        for number in range(20):
            with Producer(same) as producer:
                producer.send("demo", b"row %d" % (20 * task + number))

    tasks = [threading.Thread(target=run, args=(task,)) for task in range(8)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert bodies_in(cluster) == {b"row %d" % row: 1 for row in range(160)}
    assert registers.fired == 1
