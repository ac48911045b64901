# SPDX-License-Identifier: Apache-2.0
"""A sink that writes a topic and a stream that reads it, both without Spark, while a test disturbs servers or network.

At the end, the ledger compares what the sink reports, what the brokers store, and what the stream has read.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from tests import messages
from tests.clusters import Cluster
from tests.reading import group_position, read
from tests.waiting import wait_until
from tests.without_spark.sink import Task, commit_stream, plan_stream, run_task, schema
from tests.without_spark.sink import options as sink_options
from tests.without_spark.source import Checkpoint, Run
from tubemq_spark.errors import DataLossError, TubeMQError

MessageKey = tuple[int, int, int, bytes]
"""Broker, partition, id and body: what tells a message from all others of its topic."""

RETRY_FOR = 60  # seconds, as on the page docs/reliability.md
_ROWS = 40  # of a micro-batch of the sink
_SIZE = 1000  # bytes of a row
_ATTEMPTS = 4  # of a task, as Spark's default; then the query fails and is started again


class Jobs:
    """A sink and a stream on `topic`, each in a thread; a context manager. `options` are of both.

    A query that fails is started again from its checkpoint, as an operator would do. `failures` are the errors.
    """

    pause = 0.2  # seconds between two micro-batches of the sink

    def __init__(self, cluster: Cluster, topic: str, **options: object) -> None:
        self.failures: list[TubeMQError] = []
        self.losses: list[DataLossError] = []
        self.written: set[bytes] = set()
        self.read: list[MessageKey] = []
        self.longest_pause = 0.0  # seconds between two committed batches of the stream
        self._last = time.monotonic()  # when the stream committed a batch
        self._cluster = cluster
        self._topic = topic
        # With 'effectivelyOnce' a task has to know its query and its batch.
        self._task = Task() if "effectivelyOnce" in options else None
        common = {
            "tubemq.master": cluster.master, "tubemq.rpc.framing": cluster.framing,
            "tubemq.retry.maxElapsedMs": RETRY_FOR * 1000, **options,
        }  # fmt: skip
        self._sink = {**sink_options(cluster, topic), **_texts(common)}
        self._source = _texts({
            "tubemq.group": f"g_{uuid.uuid4().hex[:12]}", "subscribe": topic, "startingOffsets": "earliest",
            "headsIntervalMs": 0, **common,
        })  # fmt: skip
        self._checkpoint = Checkpoint()
        self._numbers = itertools.count()
        self._no_more_rows = threading.Event()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._write, self._stream)]
        self._problem: BaseException | None = None

    def __enter__(self) -> Jobs:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._no_more_rows.set()
        self._end.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int, patience: float = 240.0) -> None:
        """Wait until the stream has read `count` more rows."""
        enough = len(self.read) + count
        wait_until(lambda: self._has_failed() or len(self.read) >= enough, f"{count} more rows", patience)
        self._raise()

    def wait_for_rows_of(self, broker: int, patience: float = 240.0) -> None:
        """Wait until the stream has read a row of this broker."""
        wait_until(
            lambda: self._has_failed() or any(key[0] == broker for key in self.read), f"a row of {broker}", patience
        )
        self._raise()

    def finish(self, patience: float = 240.0) -> None:
        """Write no more rows, and wait until the stream has read all that the brokers store."""
        self._no_more_rows.set()
        self._threads[0].join(patience)
        assert not self._threads[0].is_alive(), "the sink does not end"
        stored = self.stored()
        wait_until(lambda: self._has_failed() or set(self.read) >= stored, "that all messages are read", patience)
        self._raise()

    def stored(self) -> set[MessageKey]:
        """Return what the brokers store, read past the proxies."""
        found = set()
        observers = f"o_{uuid.uuid4().hex[:12]}"
        for partition in messages.partitions(self._cluster, self._topic):
            end = group_position(self._cluster, observers, partition).end
            if end > 0:
                for row in read(self._cluster, observers, partition, 0, end):
                    found.add((partition.broker_id, partition.partition_id, row.message_id, row.body))
        return found

    def pass_time(self, seconds: float) -> None:
        """Let the queries run for a time. Raise the error of one that cannot continue."""
        self._end.wait(seconds)
        self._raise()

    def check(self, crashed: int | None = None) -> int:
        """Each row that the sink reported is stored, and the stream has read each stored message once.

        Only the broker `crashed` may have lost messages. Return how many of those that were read it has lost.
        """
        stored = self.stored()
        twice = [key for key, count in Counter(self.read).items() if count > 1]
        assert twice[:3] == [], f"{len(twice)} messages were read twice"
        lost = set(self.read) - stored
        assert sorted(key for key in lost if key[0] != crashed)[:3] == [], "read, and not stored"
        assert sorted(stored - set(self.read))[:3] == [], "stored, and not read"
        if crashed is None:
            missing = self.written - {body for *_, body in stored}
            assert sorted(missing)[:3] == [], "reported as written, and not stored"
        return len(lost)

    def summary(self) -> str:
        """Return the figures of this run, for the log of the test."""
        copies = len(self.read) - len({body for *_, body in self.read})
        return (
            f"{len(self.written)} rows written, {len(self.read)} messages read ({copies} rows stored twice), "
            f"{len(self.failures)} failures of a query, longest pause {self.longest_pause:.1f} s"
        )

    def _has_failed(self) -> bool:
        return self._problem is not None

    def _raise(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self._problem = problem

    def _write(self) -> None:
        columns = schema()
        for batch in itertools.count():
            if self._no_more_rows.wait(self.pause):
                return
            rows = [{"value": f"{next(self._numbers)} ".encode().ljust(_SIZE, b".")} for _ in range(_ROWS)]
            while not self._try(lambda: self._write_batch(rows, columns, batch)):  # noqa: B023
                pass
            self.written.update(row["value"] for row in rows)

    def _write_batch(self, rows: list[Any], columns: Any, batch: int) -> None:
        writer = plan_stream(self._sink, columns)
        for attempt in range(_ATTEMPTS):
            task = None if self._task is None else replace(self._task, batch=batch, attempt=attempt)
            try:
                written = run_task(writer, rows, columns, task, size=_ROWS)
                break
            except TubeMQError:
                if attempt == _ATTEMPTS - 1:
                    self._task = None if self._task is None else self._task.restarted()
                    raise
        commit_stream(self._sink, columns, [written], batch)

    def _stream(self) -> None:
        while not self._end.is_set():
            self._try(self._run_query)

    def _run_query(self) -> None:
        run = Run(self._checkpoint, self._source)
        try:
            while not self._end.is_set():
                if not run.find_next():
                    self._end.wait(0.05)
                    continue
                [tasks] = run.plan()
                rows = [row for batch in run.read(tasks) for row in batch.to_pylist()]
                self._checkpoint.committed += 1
                self.read += [(row["broker_id"], row["partition"], row["message_id"], row["value"]) for row in rows]
                now = time.monotonic()
                self.longest_pause, self._last = max(self.longest_pause, now - self._last), now
        finally:
            run.stop()

    def _try(self, work: Callable[[], None]) -> bool:
        """Return False if `work` failed as a query may fail."""
        try:
            work()
        except DataLossError as loss:
            self.losses.append(loss)
            raise
        except TubeMQError as error:
            self.failures.append(error)
            self._end.wait(1.0)
            return self._end.is_set()
        return True


def _texts(options: dict[str, object]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}
