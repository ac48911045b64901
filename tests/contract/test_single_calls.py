# SPDX-License-Identifier: Apache-2.0
"""One request of a write and a read goes wrong, or the process is killed there: each row is stored once and read once.

A trial writes two micro-batches with `effectivelyOnce`, reads the topic with a streaming query, writes and reads once
more, and starts again what failed. Its fault happens to one request of the connector, without the heartbeats.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from unittest import mock

import pytest

from tests import messages, reading
from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.real import RealCluster
from tests.clusters.servers import EMBEDDED_THOROUGHLY, PREFIXED_THOROUGHLY, REAL_THOROUGHLY
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, commit_stream, plan_stream, run_task, schema
from tests.without_spark.sink import bodies as stored_bodies
from tests.without_spark.sink import options as sink_options
from tests.without_spark.source import Stream, StreamRun, bodies
from tubemq_spark.client import forget_servers, system
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Request

FAULTS = ("request lost", "cut before", "cut after", "reply late", "killed before", "killed after")
TRIALS = 17  # of each fault, on a real server; 3 on the embedded one
_NO_PROCESS = 2_000_000_000  # and above: ids that no system gives
LATE = 1.2  # seconds; a proof of a claim may be one second old
T = TypeVar("T")
RETRY = {"tubemq_rpc_timeoutMs": 1000, "tubemq_retry_maxElapsedMs": 20_000}


class Killed(BaseException):
    """The process is dead: it sends nothing more."""


class Calls:
    """Counts the requests of this thread, and lets `fault` happen to number `nth`."""

    def __init__(self, nth: int = 0, fault: str = "") -> None:
        self.methods: list[int] = []
        self.met: Method | None = None
        self._nth, self._fault = nth, fault
        self._thread = threading.get_ident()
        self._is_dead = False
        self.process = _NO_PROCESS

    def submit(self, connection: Connection, method: int, submit: Callable[[], T]) -> T:
        """Pass on requests of `method`, which `submit` queues."""
        if threading.get_ident() != self._thread:
            return submit()
        if self._is_dead:
            raise Killed
        self.methods.append(method)
        if len(self.methods) != self._nth:
            return submit()
        self.met = Method(method)
        if self._fault == "killed before":
            self._die(connection)
        if self._fault == "cut before":
            connection._stream.socket.shutdown(socket.SHUT_RDWR)
        if self._fault == "request lost":
            with mock.patch.object(connection._stream, "queue"):
                return submit()
        result = submit()
        if self._fault != "cut before":
            connection._stream.write()
            select.select([connection._stream.socket], [], [], 5.0)  # until the server has answered
        if self._fault == "reply late":
            time.sleep(LATE)
        if self._fault == "cut after":
            connection._stream.socket.shutdown(socket.SHUT_RDWR)
        if self._fault == "killed after":
            self._die(connection)
        return result

    def _die(self, connection: Connection) -> NoReturn:
        self._is_dead = True
        connection.close()
        raise Killed

    def revive(self) -> None:
        """Begin a new process, if this one was killed."""
        if self._is_dead:
            self._is_dead = False
            self.process += 1
            forget_servers()


@pytest.fixture(scope="module", params=[EMBEDDED_THOROUGHLY, *REAL_THOROUGHLY, *PREFIXED_THOROUGHLY])
def cluster(request: pytest.FixtureRequest, _clusters: Callable[[str], Cluster]) -> Iterator[Cluster]:
    yield _clusters(request.param)
    forget_servers()


class Trial:
    """Rows that are written to a topic and read from it, whatever happens to one request."""

    def __init__(self, cluster: Cluster, topic: str, group: str, calls: Calls, rows: list[bytes]) -> None:
        self._cluster, self._topic, self._group = cluster, topic, group
        self._calls, self._rows = calls, rows
        self._stream = Stream(cluster, topic, tubemq_group=group, **RETRY)
        self._raw = sink_options(cluster, topic, effectivelyOnce=True, checkpointLocation=new_checkpoint(), **RETRY)
        self._task = Task()
        self._runs: list[StreamRun] = []
        self.failures: list[BaseException] = []

    def play(self) -> None:
        forget_servers()  # as a new process
        request, sends, calls = Connection.submit_request, Connection.submit_sends, self._calls

        def submit_request(to: Connection, given: Request) -> int:
            return calls.submit(to, given.method, lambda: request(to, given))

        def submit_sends(to: Connection, *given: Any, **more: Any) -> None:
            calls.submit(to, Method.SEND_MESSAGE, lambda: sends(to, *given, **more))

        def process_id() -> int:
            return calls.process

        with (
            mock.patch.multiple(Connection, submit_request=submit_request, submit_sends=submit_sends),
            mock.patch.object(system, "process_id", process_id),
        ):
            for step in (self._write, self._write, self._read, self._write, self._read):
                while not self._is_done(step):
                    assert len(self.failures) < 5, self.failures
        for run in self._runs:
            run.stop()  # the heartbeats of those that were killed

    def check(self) -> None:
        assert stored_bodies(self._cluster, self._topic) == sorted(self._rows)
        assert sorted(bodies(self._stream.rows)) == sorted(self._rows)
        ends = {partition: end for partition, end in self._stream.end.items() if end}
        for partition, end in ends.items():
            assert reading.group_position(self._cluster, self._group, partition).group == end

    def _is_done(self, step: Callable[[], Any]) -> bool:
        try:
            step()
        except (TubeMQError, Killed) as error:
            self.failures.append(error)
            self._task = self._task.restarted()
            return False
        finally:
            self._calls.revive()
        return True

    def _write(self) -> None:
        rows = [b"%s %d %d" % (self._group.encode(), self._task.batch, number) for number in range(10)]
        columns = schema()
        written = run_task(plan_stream(self._raw, columns), [{"value": row} for row in rows], columns, self._task)
        commit_stream(self._raw, columns, [written], self._task.batch)
        self._rows += rows
        self._task = self._task.next()

    def _read(self) -> None:
        with self._stream.running() as run:
            self._runs.append(run)
            while run.next() is not None:
                pass


def chosen(methods: Sequence[int], count: int, rng: random.Random) -> list[int]:
    """Return numbers of `count` calls, from 1: of each method as many, if there are so many. The last tenth is left
    out, because a trial may have fewer calls."""
    by_method: dict[int, list[int]] = {}
    for number, method in enumerate(methods[: len(methods) * 9 // 10], 1):
        by_method.setdefault(method, []).append(number)
    shuffled = [rng.sample(numbers, len(numbers)) for numbers in rng.sample(list(by_method.values()), len(by_method))]
    in_turn = [number for turn in zip_longest(*shuffled) for number in turn if number is not None]
    return in_turn[:count]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_a_single_call_loses_and_doubles_nothing(
    cluster: Cluster,
    group: str,
    fault: str,
    rng: random.Random,
    use_timings: UseTimings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_timings(task_settling=0.1, closed_connection_settling=0.1, broker_away_after=30.0)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    topic = cluster.new_topic("one")
    sent = messages.send(cluster, messages.numbered(messages.partitions(cluster, topic), 300))
    rows = [message.body for several in sent.values() for message in several]
    usual = Calls()
    clean = Trial(cluster, topic, f"{group}_clean", usual, rows)
    clean.play()
    clean.check()
    assert not clean.failures
    count = TRIALS if isinstance(cluster, RealCluster) else 3
    for number, nth in enumerate(chosen(usual.methods, count, rng)):
        calls = Calls(nth, fault)
        trial = Trial(cluster, topic, f"{group}_{number}", calls, rows)
        begun = time.monotonic()
        trial.play()
        told = (
            f"{fault} at call {nth} of {len(usual.methods)}: {calls.met and calls.met.name.lower()}, {trial.failures}"
        )
        print(f"{told}, {time.monotonic() - begun:.1f} s")
        trial.check()
        assert calls.met is not None, told
