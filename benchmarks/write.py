# SPDX-License-Identifier: Apache-2.0
"""Write rates: the official Java client, our producer and Spark, alternately on the same topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from benchmarks.common import Job, Runner, arguments, cluster, compare, jobs, spark_session
from tests.interop.java_client import JavaClient
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings


def main() -> None:
    given = arguments(__doc__ or "", count=100_000)
    with cluster(given) as tubemq, spark_session() as spark:
        for job in jobs(given):
            with runners(tubemq.master, spark, job) as those:
                compare(f"write {job}", those, given)


@contextmanager
def runners(master: str, spark: SparkSession, job: Job) -> Iterator[list[Runner]]:
    """Yield the runners; the Java client's process lives until the end."""
    with JavaClient(master).producing(job.topic, count=job.count, size=job.size) as sending:
        yield [
            Runner("Java client, asynchronous sends", sending.run, java=True),
            Runner("Producer, 1 thread", lambda: job.timed(lambda: send(master, job))),
            Runner("Spark batch, local[2]", lambda: job.timed(lambda: save(spark, master, job), here=False)),
        ]


def send(master: str, job: Job) -> None:
    body = b"p" * job.size
    with Producer(ClientSettings.from_options({"tubemq.master": master})) as producer:
        for _ in range(job.count):
            producer.send(job.topic, body)


def save(spark: SparkSession, master: str, job: Job) -> None:
    rows = spark.range(job.count).selectExpr(f"repeat('s', {job.size}) AS value")
    rows.write.format("tubemq").mode("append").option("tubemq.master", master).option("topic", job.topic).save()


if __name__ == "__main__":
    main()
