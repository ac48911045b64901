# SPDX-License-Identifier: Apache-2.0
"""What a streaming query costs while no messages arrive: 30 partitions on 10 brokers, default trigger.

Measured is the CPU time of Spark's JVM and of its Python processes, beside a Python source that does nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping

from pyspark.sql import SparkSession

from benchmarks import proc
from benchmarks.parts import Part
from benchmarks.results import CORE, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import RELEASE, Scale
from benchmarks.sources import NothingSource
from benchmarks.spark import jvm, spark_session
from tests.real.cluster import RealTubeMQ, TopicSpec

OURS = "idle query"
NOTHING = "idle query of a source that does nothing"

_TOPIC = "bench_idle"
_SETTLE = 20.0  # seconds: the JVM compiles what runs often
_WINDOW = 10.0


def measure(scale: Scale, record: Recorder) -> None:
    with (
        RealTubeMQ(topics={_TOPIC: TopicSpec(partitions=3)}, brokers=10, release=RELEASE) as tubemq,
        spark_session() as spark,
    ):
        spark.dataSource.register(NothingSource)
        options = {"tubemq.master": tubemq.master, "subscribe": _TOPIC, "tubemq.group": "idle"}
        queries: list[tuple[str, str, dict[str, str]]] = [(NOTHING, "nothing", {}), (OURS, "tubemq", options)]
        for _, source, given in queries:  # the JVM compiles for minutes, and the first query would pay for it
            shares(spark, source, given, scale, windows=0)
        for name, source, given in queries:
            record.add(name, CORE, shares(spark, source, given, scale, windows=scale.rounds))


def shares(spark: SparkSession, source: str, options: Mapping[str, str], scale: Scale, *, windows: int) -> list[float]:
    """Return the share of a core, in percent, for each window."""
    root = jvm(spark)
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as checkpoint:
        stream = spark.readStream.format(source).options(**options).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
            time.sleep(scale.seconds(_SETTLE))
            for _ in range(windows):
                begin, used = time.perf_counter(), proc.tree_cpu_seconds(root)
                time.sleep(scale.seconds(_WINDOW))
                seconds = time.perf_counter() - begin
                # Spark ends workers that are idle for a minute: what they used before must not be subtracted.
                now = proc.tree_cpu_seconds(root)
                found.append(100 * sum(max(0.0, now[pid] - used.get(pid, 0.0)) for pid in now) / seconds)
            if not query.isActive:
                raise RuntimeError(f"the idle query of {source} ended: {query.exception()}")
        finally:
            query.stop()
    return found


PART = Part(
    "idle",
    "CPU of an idle query with 30 partitions on 10 brokers",
    2,
    tuple(Key("idle", name, CORE) for name in (OURS, NOTHING)),
    measure,
)
