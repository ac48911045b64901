# SPDX-License-Identifier: Apache-2.0
"""How Spark's batch read grows: 1 to 1000 partitions, bodies of 10 B to 1 MiB, 1 to 4 tasks at once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from benchmarks.filling import fill
from benchmarks.parts import Part
from benchmarks.results import MILLISECONDS, Key
from benchmarks.rounds import Recorder, Runner, Sample, alternate
from benchmarks.sizes import RELEASE, Scale
from benchmarks.spark import Meter, drain_batch, spark_session
from tests.real.cluster import RealTubeMQ, TopicSpec
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings

# More than 100 stores would need more direct memory than the tests' broker gets.
PARTITIONS: Mapping[int, TopicSpec] = {
    1: TopicSpec(partitions=1, stores=1),
    10: TopicSpec(partitions=1, stores=10),
    100: TopicSpec(partitions=1, stores=100),
    1000: TopicSpec(partitions=10, stores=100),
}
BODIES = {10: 300_000, 100: 300_000, 1024: 150_000, 10_240: 15_000, 102_400: 1_500, 1 << 20: 150}  # messages by bytes
TASKS = (1, 2, 3, 4)
EACH = "read of one message in each of 1000 partitions"

_EACH_TOPIC = "bench_each"
_SMALL = 100  # bytes
_MESSAGES = 300_000
_ROUNDS = 2


def partitions(count: int) -> str:
    return f"{count} partition" + "s" * (count > 1)


def tasks(count: int) -> str:
    return f"{count} tasks at once, 4 partitions"


BODY = "a partition with bodies of this size"


def measure(scale: Scale, record: Recorder) -> None:
    topics = {f"bench_partitions_{count}": spec for count, spec in PARTITIONS.items()}
    topics |= {f"bench_body_{size}": TopicSpec(partitions=1) for size in BODIES}
    topics["bench_tasks"] = TopicSpec(partitions=1, stores=4)
    topics[_EACH_TOPIC] = PARTITIONS[1000]
    rounds = min(scale.rounds, _ROUNDS)
    count = scale.count(_MESSAGES)
    with RealTubeMQ(topics=topics, release=RELEASE, quick_start=False) as tubemq:
        for topic in [*(f"bench_partitions_{number}" for number in PARTITIONS), "bench_tasks"]:
            fill(tubemq.master, topic, count, b"g" * _SMALL)
        bodies = {size: max(3, round(messages * min(1.0, scale.scale))) for size, messages in BODIES.items()}
        for size, messages in bodies.items():
            fill(tubemq.master, f"bench_body_{size}", messages, b"g" * size)
        with Producer(ClientSettings.from_options({"tubemq.master": tubemq.master})) as producer:
            spec = topics[_EACH_TOPIC]
            each = [10_000 * store + number for store in range(spec.stores) for number in range(spec.partitions)]
            for partition_id in each:
                producer.send(_EACH_TOPIC, b"g" * _SMALL, target=(1, partition_id))
            producer.flush()
        for topic in topics:
            tubemq.wait_flushed(topic)
        with spark_session() as spark:
            runners = [
                _reader(spark, tubemq.master, f"bench_partitions_{one}", count, partitions(one)) for one in PARTITIONS
            ]
            for name, samples in alternate(runners, rounds).items():
                record.add_samples(name, samples, size=_SMALL)
            reader = _reader(spark, tubemq.master, _EACH_TOPIC, len(each), EACH)
            samples = alternate([reader], scale.rounds)[EACH]
            record.add(EACH, MILLISECONDS, [one.seconds * 1000 for one in samples])
            runners = [
                _reader(spark, tubemq.master, f"bench_body_{size}", messages, str(size))
                for size, messages in bodies.items()
            ]
            for name, samples in alternate(runners, rounds).items():
                record.add_samples(BODY, samples, size=int(name))
        for cores in TASKS:
            with spark_session(cores) as spark:
                runner = _reader(spark, tubemq.master, "bench_tasks", count, tasks(cores))
                record.add_samples(runner.name, alternate([runner], rounds)[runner.name], size=_SMALL)


def _reader(spark: SparkSession, master: str, topic: str, count: int, name: str) -> Runner:
    meter = Meter(spark)
    options = {"tubemq.master": master, "subscribe": topic, "tubemq.group": f"{topic}_group"}

    def run() -> Sample:
        return meter.timed(count, lambda: drain_batch(spark, "tubemq", options))

    return Runner(name, run)


PART = Part(
    "growth",
    "Spark batch read with 1 to 1000 partitions, bodies of 10 B to 1 MiB, 1 to 4 tasks",
    3,
    (
        *(Key("growth", partitions(count), size=_SMALL) for count in PARTITIONS),
        Key("growth", EACH, MILLISECONDS),
        *(Key("growth", BODY, size=size) for size in BODIES),
        *(Key("growth", tasks(count), size=_SMALL) for count in TASKS),
    ),
    measure,
)
