# SPDX-License-Identifier: Apache-2.0
"""What a Spark read costs between the broker and the JVM, with each way of decoding, against the ceiling of the cores.

A read needs at least the broker's CPU time, measured while bare sockets drain it, and the time that Spark needs to take
Arrow batches that are ready ("the pipe"). Both share this machine's cores, so their sum bounds the rate of any reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import proc
from benchmarks.bare import BareReader
from benchmarks.filling import fill
from benchmarks.parts import Part
from benchmarks.read import AT_ONCE, FASTEST, read_arrow, sample_of
from benchmarks.results import CPU, JVM, RATE, Key
from benchmarks.rounds import Recorder, Runner, Sample, alternate, timed
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, SIZES, Job, Scale, jobs
from benchmarks.sources import ReadySource
from benchmarks.spark import Meter, drain_batch, spark_session
from tests.interop.java_client import JavaClient
from tests.real.cluster import RealTubeMQ
from tubemq_spark import register
from tubemq_spark.protocol import speedups
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions

CEILING = "ceiling of the cores: broker and pipe"
PIPE = "pipe: Spark read of ready Arrow batches"
WAYS = ("decoders in Python", "compiled decoders")

_COUNTS = {100: 1_000_000, 1024: 400_000}


def arrow(way: str) -> str:
    return f"range to Arrow, one process, {way}"


def batch(way: str) -> str:
    return f"Spark batch read, {way}"


def measure(scale: Scale, record: Recorder) -> None:
    if speedups.compiled is None:
        raise RuntimeError(f"replies are decoded {speedups.state}: run `make bench`, which installs the compiled ones")
    work = [job for job in jobs(scale, _COUNTS) if job.layout == OWN]
    with (
        RealTubeMQ(topics={job.topic: LAYOUTS[OWN] for job in work}, release=RELEASE, quick_start=False) as tubemq,
        spark_session() as spark,
        TemporaryDirectory(prefix="bench-") as folder,
    ):
        java = JavaClient(tubemq.master)
        for job in work:
            fill(tubemq.master, job.topic, job.count, b"r" * job.size)
            tubemq.wait_flushed(job.topic)
            with java.consuming(
                job.topic, f"{job.topic}_java_fast", count=job.count, threads=3, confirm_locally=True
            ) as fastest:
                samples = alternate(
                    [
                        Runner(AT_ONCE, _of_broker(tubemq, BareReader(tubemq.master, job.topic, job.count))),
                        Runner(FASTEST, lambda: sample_of(fastest.run())),
                        *_spark(spark, tubemq.master, job, Path(folder, f"{job.size}.arrow")),
                    ],
                    scale.rounds,
                )
            for name, found in samples.items():
                record.add_samples(name, found, job.layout, job.size)
            each = zip(samples[AT_ONCE], samples[PIPE], strict=True)
            record.add(CEILING, RATE, [_ceiling(*costs) for costs in each], job.layout, job.size)


def _of_broker(tubemq: RealTubeMQ, reader: BareReader) -> Callable[[], Sample]:
    """Return what drains the topic, with the CPU time of its broker in place of that of this process."""

    def drain() -> Sample:
        before = proc.cpu_seconds(tubemq.pids["broker-1"])
        sample = reader.at_once()
        return replace(sample, cpu_seconds=proc.cpu_seconds(tubemq.pids["broker-1"]) - before)

    return drain


def _ceiling(drained: Sample, piped: Sample) -> float:
    """Return the messages a second of a reader that keeps all cores busy, and costs nothing itself."""
    costs = [drained.cpu_seconds, piped.cpu_seconds, piped.jvm_cpu_seconds]
    return (os.cpu_count() or 1) * drained.count / sum(cost or 0.0 for cost in costs)


def _spark(spark: SparkSession, master: str, job: Job, file: Path) -> Iterator[Runner]:
    meter = Meter(spark)
    options = {"tubemq.master": master, "subscribe": job.topic, "tubemq.group": f"{job.topic}_spark"}
    ours = {**options, "tubemq.group": f"{job.topic}_ours"}
    _store_first_batch(ours, file)
    spark.dataSource.register(ReadySource)
    ready = {"file": str(file), "rows": str(job.count)}
    yield Runner(PIPE, lambda: meter.timed(job.count, lambda: drain_batch(spark, "ready", ready)))
    for way in WAYS:

        def in_process(way: str = way) -> Sample:
            with _decoding(spark, way):
                return timed(job.count, lambda: read_arrow(ours, job.count))

        def in_spark(way: str = way) -> Sample:
            with _decoding(spark, way):
                return meter.timed(job.count, lambda: drain_batch(spark, "tubemq", options))

        yield Runner(arrow(way), in_process)
        yield Runner(batch(way), in_spark)


def _store_first_batch(options: dict[str, str], file: Path) -> None:
    """Store an Arrow batch as tasks make it."""
    first = next(iter(plan_batch(SourceOptions.read(options, streaming=False))[0].read()))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        writer.write_batch(first)


@contextmanager
def _decoding(spark: SparkSession, way: str) -> Iterator[None]:
    """Decode in this way, here and in workers: Spark keeps those with another environment apart."""
    environment, compiled = spark.sparkContext.environment, speedups.compiled
    if way == WAYS[0]:
        environment[speedups.PURE], speedups.compiled = "1", None
    register(spark)
    try:
        yield
    finally:
        environment.pop(speedups.PURE, None)
        speedups.compiled = compiled


_OURS = tuple(kind(way) for way in WAYS for kind in (arrow, batch))

PART = Part(
    "ceiling",
    "a read with decoders in Python and compiled, against what broker and Spark need at least",
    3,
    (
        *(Key("ceiling", name, layout=OWN, size=size) for name in (AT_ONCE, FASTEST, PIPE, CEILING) for size in SIZES),
        *(Key("ceiling", name, kind, OWN, size) for name in _OURS for kind in (RATE, CPU) for size in SIZES),
        *(Key("ceiling", batch(way), JVM, OWN, size) for way in WAYS for size in SIZES),
    ),
    measure,
)
