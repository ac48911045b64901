# SPDX-License-Identifier: Apache-2.0
"""How fast a topic of 3 partitions is read: the limit, the official Java client, ours, and Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from benchmarks.bare import BareReader
from benchmarks.filling import check, fill, read_messages
from benchmarks.kafka import READING, KafkaPeer, batch_reader, connector_jars, kafka_broker, stream_reader
from benchmarks.parts import Part
from benchmarks.results import CPU, Key
from benchmarks.rounds import Recorder, Runner, Sample, alternate, timed
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, SIZES, Job, Scale, jobs
from benchmarks.spark import Meter, drain_batch, drain_stream, spark_session
from tests.interop.java_client import JavaClient, Rate
from tests.real.cluster import RealTubeMQ
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions

LIMIT = "limit: bare sockets, one partition after the other"
AT_ONCE = "limit: bare sockets, 3 partitions at once"
JAVA = "Java client, pull, default settings"
FASTEST = "Java client, pull, fastest settings"
READER = "PartitionReader, one process"
ARROW = "range to Arrow, one process"
BATCH = "Spark batch read"
ATTRIBUTED = "Spark batch read, three attributes a message"
VALUES = "Spark batch read, three attributes a message, value alone"
STREAM = "Spark stream read"

_COUNTS = {100: 1_000_000, 1024: 400_000}
_EVERYWHERE = (LIMIT, AT_ONCE, JAVA, FASTEST, READER, ARROW, BATCH, STREAM)
_KAFKA = [name(tuning) for tuning in READING for name in (batch_reader, stream_reader)]


def measure(scale: Scale, record: Recorder) -> None:
    with (
        RealTubeMQ(
            topics={
                **{job.topic: LAYOUTS[job.layout] for job in jobs(scale, _COUNTS)},
                **{_attributed(job): LAYOUTS[OWN] for job in jobs(scale, _COUNTS) if job.layout == OWN},
            },
            release=RELEASE,
            quick_start=False,
        ) as tubemq,
        kafka_broker() as kafka,
        spark_session(jars=connector_jars()) as spark,
    ):
        java, peer = JavaClient(tubemq.master), KafkaPeer(spark, kafka)
        for job in jobs(scale, _COUNTS):
            fill(tubemq.master, job.topic, job.count, b"r" * job.size)
            if job.layout == OWN:
                peer.write(job.topic, job.count, job.size, {})
                fill(tubemq.master, _attributed(job), job.count, b"r" * job.size, attributed=True)
                tubemq.wait_flushed(_attributed(job))
        for job in jobs(scale, _COUNTS):
            tubemq.wait_flushed(job.topic)
            with _java(java, job) as runners:
                runners = [
                    *_bare(tubemq.master, job),
                    *runners,
                    *_ours(tubemq.master, job),
                    *_spark(spark, tubemq.master, job),
                ]
                runners += peer.readers(job.topic, job.count) if job.layout == OWN else []
                for name, samples in alternate(runners, scale.rounds).items():
                    record.add_samples(name, samples, job.layout, job.size)


def _bare(master: str, job: Job) -> list[Runner]:
    reader = BareReader(master, job.topic, job.count)
    return [Runner(LIMIT, reader.one_after_the_other), Runner(AT_ONCE, reader.at_once)]


@contextmanager
def _java(java: JavaClient, job: Job) -> Iterator[list[Runner]]:
    """Yield runners; their processes live until the end."""
    with (
        java.consuming(job.topic, f"{job.topic}_java", count=job.count) as usual,
        java.consuming(
            job.topic, f"{job.topic}_java_fast", count=job.count, threads=3, confirm_locally=True
        ) as fastest,
    ):
        yield [
            Runner(JAVA, lambda: sample_of(usual.run())),
            Runner(FASTEST, lambda: sample_of(fastest.run())),
        ]


def sample_of(rate: Rate) -> Sample:
    return Sample(rate.count, rate.seconds, rate.cpu_seconds)


def _ours(master: str, job: Job) -> list[Runner]:
    options = {"tubemq.master": master, "subscribe": job.topic, "tubemq.group": f"{job.topic}_ours"}
    return [
        Runner(READER, lambda: timed(job.count, lambda: read_messages(options, job.count))),
        Runner(ARROW, lambda: timed(job.count, lambda: read_arrow(options, job.count))),
    ]


def read_arrow(options: dict[str, str], count: int) -> None:
    """Read all partitions one after the other into Arrow batches, as tasks do."""
    planned = plan_batch(SourceOptions.read(options, streaming=False))
    check(sum(batch.num_rows for part in planned for batch in part.read()), count)


def _spark(spark: SparkSession, master: str, job: Job) -> list[Runner]:
    meter = Meter(spark)
    options = {"tubemq.master": master, "subscribe": job.topic, "tubemq.group": f"{job.topic}_spark"}

    def batch(topic: str = job.topic, columns: str = "") -> Sample:
        of_topic = {**options, "subscribe": topic}
        return meter.timed(job.count, lambda: drain_batch(spark, "tubemq", of_topic, columns))

    def stream() -> Sample:
        group = {**options, "tubemq.group": f"{job.topic}_stream"}
        return meter.timed_stream(job.count, lambda: drain_stream(spark, "tubemq", group, job.count))

    runners = [Runner(BATCH, batch), Runner(STREAM, stream)]
    if job.layout == OWN:
        runners.append(Runner(ATTRIBUTED, lambda: batch(_attributed(job))))
        runners.append(Runner(VALUES, lambda: batch(_attributed(job), "value BINARY")))
    return runners


def _attributed(job: Job) -> str:
    return f"{job.topic}_attributed"


PART = Part(
    "read",
    "a topic of 3 partitions is read: limit, Java client, ours, Spark-Kafka",
    7,
    (
        *(Key("read", name, layout=layout, size=size) for name in _EVERYWHERE for layout in LAYOUTS for size in SIZES),
        *(Key("read", name, layout=OWN, size=size) for name in (*_KAFKA, ATTRIBUTED, VALUES) for size in SIZES),
        *(Key("read", name, CPU, layout, size) for name in (BATCH, STREAM) for layout in LAYOUTS for size in SIZES),
    ),
    measure,
)
