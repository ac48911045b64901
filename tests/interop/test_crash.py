# SPDX-License-Identifier: Apache-2.0
"""The official Java client reads rows that the sink wrote while a broker was killed and came back."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, StructType

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.interop.java_client import JavaClient
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.sending import connect
from tubemq_spark.sink.commit import commit
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import plan_write

TASKS = 4
FLUSHED, KILLED, RESTARTED, ROWS = 2_000, 4_000, 7_000, 10_000  # of each task: what happens after so many
BATCH = 500
IN_FLIGHT = 1000
SCHEMA = StructType().add("value", BinaryType())


@pytest.fixture(params=[EMBEDDED, REAL_THOROUGHLY])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(request.param, topics={"rows": TopicSpec(partitions=2, settings=FLUSH_SOON)}) as own:
        yield own


class Crash:
    """Kills broker 1 while tasks write, and starts it again while they wait for it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._killer = threading.Thread(target=self._kill)
        self._killed = threading.Event()
        self._first = threading.Lock()
        self._restart = threading.Barrier(TASKS, self._come_back, timeout=300)
        self.handed_over = [0] * TASKS
        """How many rows each task took, at most, before the broker was surely dead."""

    def batches(self, task: int, rows: range) -> Iterator[pa.RecordBatch]:
        for row in rows[::BATCH]:
            if row == KILLED and self._first.acquire(blocking=False):
                self._killer.start()
            if row == RESTARTED:
                self._restart.wait()
            values = [value(task, number) for number in range(row, row + BATCH)]
            if not self._killed.is_set():  # some of these may be sent before it is
                self.handed_over[task] = row + BATCH
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})

    def _kill(self) -> None:
        self._cluster.kill_broker(1)
        self._killed.set()

    def _come_back(self) -> None:
        self._killer.join()
        self._cluster.start_broker(1)


def value(task: int, row: int) -> bytes:
    return b"task %d row %d" % (task, row)


@pytest.mark.thorough  # tests/spark/test_sink.py kills a broker, too
def test_rows_that_were_written_while_a_broker_was_killed_and_came_back(
    cluster: Cluster, java_at: Callable[..., JavaClient], group: str, tmp_path: Path
) -> None:
    """Without stamps. Only rows that the broker had acknowledged and not flushed may be missing. Rows that it stored
    without answering are sent again, and may be stored twice."""
    crash = Crash(cluster)
    receipts = write(cluster, crash, range(FLUSHED), tmp_path)
    cluster.wait_flushed("rows")
    connect(cluster, TASKS)  # so that broker 1 has its share of what follows
    receipts |= write(cluster, crash, range(FLUSHED, ROWS), tmp_path)
    assert len(receipts) == TASKS * ROWS

    received = java_at(cluster.master, cluster.framing).consume("rows", group, idle=8.0)
    found = Counter(message.body for message in received)
    places = {(message.body, message.partition, message.message_id) for message in received}
    missing = receipts.keys() - found.keys()
    twice = {body: count for body, count in found.items() if count > 1}
    # After the flush and before the crash.
    before = {value(task, row) for task in range(TASKS) for row in range(FLUSHED, crash.handed_over[task])}
    by_the_dead = {body for body in before if receipts[body]["broker_id"] == 1}
    print(
        f"{len(receipts)} rows acknowledged, {len(missing)} of them lost with broker 1, which had acknowledged at most "
        f"{len(by_the_dead)} since the last flush; {len(twice)} rows are stored twice"
    )

    assert found.keys() <= receipts.keys(), "a row that nobody wrote"
    assert missing <= by_the_dead, "lost although flushed, or not by the crash"
    assert max(crash.handed_over) <= RESTARTED
    assert by_the_dead
    assert not holes(missing, by_the_dead, receipts)
    unanswered = TASKS * IN_FLIGHT
    assert len(twice) <= unanswered
    assert twice.keys() <= before, "twice, and not because of the crash"
    assert set(twice.values()) <= {2}
    copies = {body: [place for place in places if place[0] == body] for body in twice}
    assert all(any(partition.startswith("1:") for _, partition, _ in found_at) for found_at in copies.values())
    told = {(body, place(row), row["message_id"]) for body, row in receipts.items() if body not in missing}
    assert told <= places, "a receipt of no row"


def holes(missing: set[bytes], by_the_dead: set[bytes], receipts: dict[bytes, dict[str, Any]]) -> list[bytes]:
    """Return rows that are stored although rows before them in the same store are lost."""
    lost = [(receipts[body]["offset"], receipts[body]["append_time"]) for body in missing]
    if not lost:
        return []
    first, last = min(lost)[0], max(moment for _, moment in lost)  # rows appended later took their place
    kept = [(body, receipts[body]) for body in by_the_dead - missing]
    return [body for body, row in kept if row["append_time"] <= last and row["offset"] > first]


def write(cluster: Cluster, crash: Crash, rows: range, folder: Path) -> dict[bytes, dict[str, Any]]:
    """Write these rows of each task, and return the receipts by value."""
    options = {
        "tubemq.master": cluster.master,
        "tubemq.rpc.framing": cluster.framing,
        "topic": "rows",
        "receipts": str(folder),
        "tubemq.producer.maxInFlight": str(IN_FLIGHT),
    }
    plans = [plan_write(options, SCHEMA, False, str(uuid.uuid4())) for _ in range(TASKS)]
    with ThreadPoolExecutor(TASKS) as threads:
        done = list(threads.map(lambda task: write_batches(plans[task], crash.batches(task, rows)), range(TASKS)))
    receipts = {}
    for task, (made, written) in enumerate(zip(plans, done, strict=True)):
        assert sum(written.rows.values()) == len(rows)
        commit(made.options, [written], None)
        for row in pq.read_table(folder / f"{made.write_id}.parquet").to_pylist():
            receipts[value(task, rows[row["spark_row"]])] = row
    return receipts


def place(row: dict[str, Any]) -> str:
    return f"{row['broker_id']}:{row['topic']}:{row['partition']}"
