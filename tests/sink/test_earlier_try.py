"""`effectivelyOnce` where the task of an earlier run ends after the new run has begun, as Spark lets it for 2 s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.without_spark.sink import Task, batches, options, schema
from tubemq_spark.sink.earlier_attempts import RUN_CACHE
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan, plan_write

ROWS = [{"value": b"%d" % row} for row in range(400)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    RUN_CACHE.clear()
    use_timings(task_settling=0.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}) as running:
        yield running
    RUN_CACHE.clear()


@pytest.mark.parametrize("late", [0, 200], ids=["all of its rows", "half of its rows"])
def test_it_stores_rows_after_the_new_run_has_planned(cluster: EmbeddedCluster, tmp_path: Path, late: int) -> None:
    def planned() -> WritePlan:
        raw = options(cluster, "demo", effectivelyOnce=True, checkpointLocation=str(tmp_path))
        return plan_write(raw, schema(ROWS), False).for_tasks()

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
