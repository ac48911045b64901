"""`effectivelyOnce` where the task of an earlier run ends after the new run has begun, as Spark lets it for 2 s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.sink_options.bench import Task, batches, options, schema
from tubemq_spark.sink.run_cache import RUNS
from tubemq_spark.sink.task_writer import Plan, plan, ready_for_tasks, write_batches

ROWS = [{"value": b"%d" % row} for row in range(400)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr("tubemq_spark.sink.deduplicator.SETTLING", 0.0)
    RUNS.forget()
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}) as running:
        yield running
    RUNS.forget()


@pytest.mark.parametrize("late", [0, 200], ids=["all of its rows", "half of its rows"])
def test_it_stores_rows_after_the_new_run_has_planned(cluster: EmbeddedCluster, tmp_path: Path, late: int) -> None:
    def planned() -> Plan:
        raw = options(cluster, "demo", effectivelyOnce=True, checkpointLocation=str(tmp_path))
        return ready_for_tasks(plan(raw, schema(ROWS), False))

    plans = [planned()]

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from batches(ROWS[:late], schema(ROWS))
        plans.append(planned())  # by the new run's driver
        yield from batches(ROWS[late:], schema(ROWS))

    task = Task()
    with task.running():
        write_batches(plans[0], slowly())
    with task.restarted().running():
        write_batches(plans[1], batches(ROWS, schema(ROWS)))
    assert bodies_in(cluster) == Counter(row["value"] for row in ROWS)
