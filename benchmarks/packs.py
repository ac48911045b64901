# SPDX-License-Identifier: Apache-2.0
"""Rows in InLong packs, beside the default settings of Spark's Kafka connector, which sends batches too."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from benchmarks.filling import fill
from benchmarks.kafka import DEFAULT, KafkaPeer, batch_reader, connector_jars, kafka_broker
from benchmarks.kafka import writer as kafka_writer
from benchmarks.pack_bodies import pack_of
from benchmarks.parts import Part
from benchmarks.results import CPU, Key
from benchmarks.rounds import Recorder, Runner, Sample, alternate
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, SIZES, Scale
from benchmarks.spark import Meter, drain_batch, spark_session
from tests.real.cluster import RealTubeMQ

READ, WRITE = "Spark read of packs", "Spark write of packs"
READ_V1, WRITE_V1 = f"{READ}, protobuf", f"{WRITE}, protobuf"

PACKING: Mapping[str, str] = {"messageFormat": "inlongmsg", "inlongPackRows": "1000"}
PROTOBUF: Mapping[str, str] = {**PACKING, "inlongPackFormat": "protobuf"}

_READ_COUNTS = {100: 1_200_000, 1024: 400_000}  # rows
_WRITE_COUNTS = {100: 1_500_000, 1024: 400_000}
_PACK_ROWS = 500


def measure(scale: Scale, record: Recorder) -> None:
    topics = {name(size): LAYOUTS[OWN] for name in (_read_topic, _v1_topic, _write_topic) for size in SIZES}
    with (
        RealTubeMQ(topics=topics, release=RELEASE, quick_start=False) as tubemq,
        kafka_broker() as kafka,
        spark_session(jars=connector_jars()) as spark,
    ):
        peer = KafkaPeer(spark, kafka)
        for size in SIZES:
            packs = max(1, scale.count(_READ_COUNTS[size]) // _PACK_ROWS)
            fill(tubemq.master, _read_topic(size), packs, pack_of(_PACK_ROWS, size))
            rows = packs * _PACK_ROWS
            save(spark, tubemq.master, _v1_topic(size), rows, size, PROTOBUF)
            peer.write(_read_topic(size), rows, size, {})
            tubemq.wait_flushed(_read_topic(size))
            tubemq.wait_flushed(_v1_topic(size))
            for runners in (
                [*_readers(spark, tubemq.master, size, rows), *_kafka_default(peer, size, rows)],
                _writers(spark, tubemq.master, peer, size, scale.count(_WRITE_COUNTS[size])),
            ):
                for name, samples in alternate(runners, scale.rounds).items():
                    record.add_samples(name, samples, OWN, size)


def _readers(spark: SparkSession, master: str, size: int, rows: int) -> list[Runner]:
    meter = Meter(spark)

    def read(topic: str, message_format: str) -> Sample:
        options = {"tubemq.master": master, "subscribe": topic, "tubemq.group": f"{topic}_group"}
        options["messageFormat"] = message_format
        return meter.timed(rows, lambda: drain_batch(spark, "tubemq", options))

    return [
        Runner(READ, lambda: read(_read_topic(size), "inlongmsg")),
        Runner(READ_V1, lambda: read(_v1_topic(size), "inlong")),
    ]


def _kafka_default(peer: KafkaPeer, size: int, rows: int) -> list[Runner]:
    return [one for one in peer.readers(_read_topic(size), rows) if one.name == batch_reader(DEFAULT)]


def _writers(spark: SparkSession, master: str, peer: KafkaPeer, size: int, rows: int) -> list[Runner]:
    meter = Meter(spark)

    def write(packing: Mapping[str, str]) -> Sample:
        return meter.timed(rows, lambda: save(spark, master, _write_topic(size), rows, size, packing))

    return [
        Runner(WRITE, lambda: write(PACKING)),
        Runner(WRITE_V1, lambda: write(PROTOBUF)),
        Runner(kafka_writer(DEFAULT), lambda: peer.write(_write_topic(size), rows, size, {})),
    ]


def save(
    spark: SparkSession, master: str, topic: str, rows: int, size: int, packing: Mapping[str, str] = PACKING
) -> None:
    columns = (f"repeat('s', {size}) AS value", "'bench' AS inlong_group", "'bench' AS inlong_stream")
    writer = spark.range(rows).selectExpr(*columns).write.format("tubemq").mode("append").options(**packing)
    writer.option("tubemq.master", master).option("topic", topic).save()


def _read_topic(size: int) -> str:
    return f"bench_packs_read_{size}"


def _v1_topic(size: int) -> str:
    return f"bench_packs_v1_{size}"


def _write_topic(size: int) -> str:
    return f"bench_packs_write_{size}"


PART = Part(
    "packs",
    "rows in InLong packs are read and written, beside Spark-Kafka's default",
    4,
    (
        *(Key("packs", name, layout=OWN, size=size) for name in (READ, READ_V1, WRITE, WRITE_V1) for size in SIZES),
        *(
            Key("packs", name(DEFAULT), layout=OWN, size=size)
            for name in (batch_reader, kafka_writer)
            for size in SIZES
        ),
        *(Key("packs", name, CPU, OWN, size) for name in (READ, READ_V1, WRITE, WRITE_V1) for size in SIZES),
    ),
    measure,
)
