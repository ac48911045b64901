# SPDX-License-Identifier: Apache-2.0
"""How fast a topic is read: the official Java client, our reader, and Spark, in turns on the same messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from benchmarks.common import Job, Runner, arguments, cluster, compare, jobs, spark_session
from tests.interop.java_client import JavaClient
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions


def main() -> None:
    given = arguments(__doc__ or "", count=300_000)
    with cluster(given) as tubemq, spark_session() as spark:
        java = JavaClient(tubemq.master)
        for job in jobs(given):
            with java.producing(job.topic, count=job.count, size=job.size) as filling:
                filling.run()
        for job in jobs(given):
            tubemq.settle(job.topic)
            with runners(tubemq.master, java, spark, job) as those:
                compare(f"read {job}", those, given)


@contextmanager
def runners(master: str, java: JavaClient, spark: SparkSession, job: Job) -> Iterator[list[Runner]]:
    """Those of the Java client keep their process until the end."""
    options = {"tubemq.master": master, "subscribe": job.topic, "tubemq.group": f"{job.topic}_ours"}
    with ExitStack() as processes:
        usual = processes.enter_context(java.consuming(job.topic, f"{job.topic}_java", count=job.count))
        fastest = processes.enter_context(
            java.consuming(
                job.topic, f"{job.topic}_java_fast", count=job.count, threads=job.partitions, confirm_locally=True
            )
        )
        yield [
            Runner("Java pull client, default settings", usual.run, java=True),
            Runner("Java pull client, fastest settings", fastest.run, java=True),
            Runner("PartitionReader, 1 thread", lambda: job.timed(lambda: read_raw(options, job.count))),
            Runner("Spark batch, local[2], noop", lambda: job.timed(lambda: drain(spark, options), here=False)),
        ]


def read_raw(options: dict[str, str], count: int) -> None:
    """The batches of all partitions, one partition after the other, without making rows of them."""
    seen = 0
    for number, part in enumerate(plan_batch(SourceOptions.read(options, streaming=False))):
        claim = replace(part.claim, task=number)
        for wanted, snapshot in part.ranges:
            reader = PartitionReader(part.settings, part.group, claim, wanted, snapshot)
            for batch in reader.batches():
                seen += len(batch.messages)
    if seen != count:
        raise RuntimeError(f"{seen} messages arrived, not {count}")


def drain(spark: SparkSession, options: dict[str, str]) -> None:
    spark.read.format("tubemq").options(**options).load().write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
