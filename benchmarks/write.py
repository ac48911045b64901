# SPDX-License-Identifier: Apache-2.0
"""How fast rows are written: the limit, the official Java client, ours, and Spark's Kafka connector."""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession

from benchmarks.bare import BareSender
from benchmarks.filling import fill
from benchmarks.kafka import WRITING, KafkaPeer, connector_jars, kafka_broker
from benchmarks.kafka import writer as kafka_writer
from benchmarks.parts import Part
from benchmarks.read import sample_of
from benchmarks.results import CPU, Key
from benchmarks.rounds import Recorder, Runner, Sample, alternate, timed
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, SIZES, Job, Scale, jobs
from benchmarks.spark import Meter, spark_session
from tests.interop.java_client import JavaClient
from tests.real.cluster import RealTubeMQ

LIMIT = "limit: bare sends, 2 connections"
JAVA = "Java client, asynchronous sends"
PRODUCER = "Producer, one process"
SPARK = "Spark batch write"

_COUNTS = {100: 200_000, 1024: 150_000}
_EVERYWHERE = (LIMIT, JAVA, PRODUCER, SPARK)


def measure(scale: Scale, record: Recorder) -> None:
    todo = jobs(scale, _COUNTS)
    with (
        RealTubeMQ(
            topics={job.topic: LAYOUTS[job.layout] for job in todo}, release=RELEASE, quick_start=False
        ) as tubemq,
        kafka_broker() as kafka,
        spark_session(jars=connector_jars()) as spark,
    ):
        java, peer = JavaClient(tubemq.master), KafkaPeer(spark, kafka)
        for job in todo:
            with java.producing(job.topic, count=job.count, size=job.size) as sending:
                runners = [
                    _bare(tubemq.master, job),
                    Runner(JAVA, lambda: sample_of(sending.run())),
                    *_ours(spark, tubemq.master, job),
                    *(_kafka(peer, job) if job.layout == OWN else []),
                ]
                for name, samples in alternate(runners, scale.rounds).items():
                    record.add_samples(name, samples, job.layout, job.size)


def _bare(master: str, job: Job) -> Runner:
    sender = BareSender(master, job.topic, job.size)
    return Runner(LIMIT, lambda: sender.send(job.count))


def _ours(spark: SparkSession, master: str, job: Job) -> list[Runner]:
    meter = Meter(spark)
    return [
        Runner(PRODUCER, lambda: timed(job.count, lambda: fill(master, job.topic, job.count, b"p" * job.size))),
        Runner(SPARK, lambda: meter.timed(job.count, lambda: save(spark, master, job))),
    ]


def _kafka(peer: KafkaPeer, job: Job) -> list[Runner]:
    def run(tuning: str) -> Sample:
        return peer.write(job.topic, job.count, job.size, WRITING[tuning])

    return [Runner(kafka_writer(tuning), partial(run, tuning)) for tuning in WRITING]


def save(spark: SparkSession, master: str, job: Job) -> None:
    rows = spark.range(job.count).selectExpr(f"repeat('s', {job.size}) AS value")
    rows.write.format("tubemq").mode("append").option("tubemq.master", master).option("topic", job.topic).save()


PART = Part(
    "write",
    "rows are written to a topic of 3 partitions: limit, Java client, ours, Spark-Kafka",
    3.5,
    (
        *(Key("write", name, layout=layout, size=size) for name in _EVERYWHERE for layout in LAYOUTS for size in SIZES),
        *(Key("write", kafka_writer(tuning), layout=OWN, size=size) for tuning in WRITING for size in SIZES),
        *(Key("write", SPARK, CPU, layout, size) for layout in LAYOUTS for size in SIZES),
    ),
    measure,
)
