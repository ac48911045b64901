# SPDX-License-Identifier: Apache-2.0
"""Latency from the acknowledgement of a send to the row in the sink: default trigger, a sink that collects its rows.

A Python source that does nothing gives the trigger's own latency: its rows are due at the same rate, and nothing is
read. What ours has more is the added latency. The settings of docs/howto/low-latency.md are measured in the same run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.parts import Part
from benchmarks.processes import SPAWN
from benchmarks.results import MILLISECONDS, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, Scale
from benchmarks.sources import NothingSource
from benchmarks.spark import spark_session
from tests.real.cluster import RealTubeMQ
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings

RATES = (100, 1_000, 10_000)  # messages per second
EMPTY = "an empty batch"
LOW_RATE = 1_000
LOW_LATENCY = {  # docs/howto/low-latency.md
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

_WARM_UP, _SECONDS = 4.0, 8.0
_PAUSE = 0.002  # seconds between sends
_EMPTY_BATCHES = 12


def ours(percentile: str, rate: int) -> str:
    return f"{percentile} at {rate}/s"


def without(percentile: str, rate: int) -> str:
    return f"{percentile} at {rate}/s of a source that does nothing"


def added(percentile: str, rate: int) -> str:
    return f"added {percentile} at {rate}/s"


def low(name: str) -> str:
    return f"{name}, settings for low latency"


def measure(scale: Scale, record: Recorder) -> None:
    with (
        RealTubeMQ(topics={_topic(rate): LAYOUTS[OWN] for rate in RATES}, release=RELEASE, quick_start=False) as tubemq,
        spark_session() as spark,
    ):
        spark.dataSource.register(NothingSource)
        seconds = _WARM_UP + scale.seconds(_SECONDS)
        record.add(EMPTY, MILLISECONDS, _empty_batches(spark))

        def record_rate(rate: int, named: Callable[[str], str] = str) -> None:
            base = _percentiles(_of_nothing(spark, rate, seconds))
            real = _percentiles(_of_tubemq(spark, tubemq.master, rate, seconds))
            for percentile, value in real.items():
                record.add(named(without(percentile, rate)), MILLISECONDS, [base[percentile]])
                record.add(named(ours(percentile, rate)), MILLISECONDS, [value])
                record.add(named(added(percentile, rate)), MILLISECONDS, [value - base[percentile]])

        for rate in RATES:
            record_rate(rate)
        for name, value in LOW_LATENCY.items():
            spark.conf.set(name, value)
        record_rate(LOW_RATE, low)


class _Arrivals:
    """The sink: notes when each row arrived. Rows are numbers."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        numbers = rows.select(rows.value.cast("string").cast("long").alias("n")).toArrow()["n"].to_pylist()
        moment = time.time()
        self.at.update((number, moment) for number in numbers)


def _run(
    spark: SparkSession, source: str, options: Mapping[str, str], work: Callable[[], dict[int, float]]
) -> list[float]:
    """Return the seconds from the moments that ``work`` returns by row to the rows' arrival, without the warm-up."""
    arrivals = _Arrivals()
    with tempfile.TemporaryDirectory(prefix="bench-") as checkpoint:
        stream = spark.readStream.format(source).options(**options).load()
        query = stream.writeStream.foreachBatch(arrivals).option("checkpointLocation", checkpoint).start()
        try:
            if source == "tubemq":  # the query begins at the end of its topic; the other source always has rows
                query.processAllAvailable()
            known = work()
            deadline = time.monotonic() + 60
            while not known.keys() <= arrivals.at.keys():
                if time.monotonic() > deadline or not query.isActive:
                    raise RuntimeError(
                        f"{len(known.keys() - arrivals.at.keys())} rows did not arrive: {query.exception()}"
                    )
                time.sleep(0.05)
        finally:
            query.stop()
    first = min(known.values())
    return [arrivals.at[row] - moment for row, moment in known.items() if moment - first >= _WARM_UP]


def _of_nothing(spark: SparkSession, rate: int, seconds: float) -> list[float]:
    since = time.time() + 2

    def work() -> dict[int, float]:
        time.sleep(max(0.0, since + seconds - time.time()))
        return {row: since + (row + 1) / rate for row in range(int(rate * seconds))}

    return _run(spark, "nothing", {"rate": str(rate), "since": str(since)}, work)


def _of_tubemq(spark: SparkSession, master: str, rate: int, seconds: float) -> list[float]:
    options = {"tubemq.master": master, "subscribe": _topic(rate), "tubemq.group": f"latency_{rate}"}
    return _run(spark, "tubemq", options, lambda: _sent(master, rate, seconds))


def _sent(master: str, rate: int, seconds: float) -> dict[int, float]:
    """Send from a process of its own; return when each message was acknowledged."""
    with ProcessPoolExecutor(1, SPAWN) as process:
        return process.submit(_send, master, rate, seconds).result()


def _send(master: str, rate: int, seconds: float) -> dict[int, float]:
    acknowledged: dict[int, float] = {}
    with Producer(
        ClientSettings.from_options({"tubemq.master": master}),
        on_stored=lambda rows, ids, places: acknowledged.update((row or 0, time.time()) for row in rows),
    ) as producer:
        begin, sent, total = time.time(), 0, int(rate * seconds)
        while sent < total:
            due = min(total, int((time.time() - begin) * rate) + 1)
            for row in range(sent, due):
                producer.send(_topic(rate), b"%d" % row, row=row)
            sent = due
            producer.step()
            time.sleep(_PAUSE)
        producer.flush()
    return acknowledged


def _empty_batches(spark: SparkSession) -> list[float]:
    """Return the milliseconds of micro-batches with a row in each partition, of the source that does nothing."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder, "rows")
        file.touch()
        stream = spark.readStream.format("nothing").option("file", str(file)).load()
        query = (
            stream.writeStream.foreachBatch(_Arrivals()).option("checkpointLocation", f"{folder}/checkpoint").start()
        )
        found = []
        try:
            for _ in range(_EMPTY_BATCHES):
                with file.open("ab") as offered:
                    offered.write(b"...")
                query.processAllAvailable()
                last = query.lastProgress
                assert last is not None
                found.append(float(last["durationMs"]["triggerExecution"]))
        finally:
            query.stop()
    return found[_EMPTY_BATCHES // 3 :]


def _percentiles(latencies: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=100)
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}


def _topic(rate: int) -> str:
    return f"bench_latency_{rate}"


PART = Part(
    "latency",
    "from acknowledged send to the row in the sink, at 100, 1000 and 10000 messages per second",
    2,
    (
        Key("latency", EMPTY, MILLISECONDS),
        *(
            Key("latency", name(percentile, rate), MILLISECONDS)
            for name in (ours, without, added)
            for percentile in ("p50", "p99")
            for rate in RATES
        ),
        *(
            Key("latency", low(name(percentile, LOW_RATE)), MILLISECONDS)
            for name in (ours, without, added)
            for percentile in ("p50", "p99")
        ),
    ),
    measure,
)
