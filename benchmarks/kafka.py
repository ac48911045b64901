# SPDX-License-Identifier: Apache-2.0
"""The peer that users know: a Kafka broker of this machine, and Spark's connector to it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.rounds import Runner, Sample
from benchmarks.spark import Meter, drain_batch, drain_stream
from tests.real import jars
from tests.real.processes import Ports, Processes, is_listening

VERSION, CONNECTOR = "4.0.0", "4.2.0"
PARTITIONS = 3
DEFAULT, TUNED = "default", "tuned"
READING: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    TUNED: {
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "10000",
        "kafka.max.partition.fetch.bytes": "4194304",
    },
}
WRITING: Mapping[str, Mapping[str, str]] = {
    DEFAULT: {},
    TUNED: {"kafka.linger.ms": "10", "kafka.batch.size": "262144", "kafka.buffer.memory": "134217728"},
}

_POMS = Path(__file__).with_name("poms")
_START_TIMEOUT = 120.0
_CLUSTER_ID = "dHViZW1xLXNwYXJrLWJlbg"  # 16 bytes in base64
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def connector_jars() -> list[str]:
    """Return the paths of the jars that Spark needs to read and write Kafka.

    Raises:
        MissingTool: Maven is missing.
    """
    return [str(jar) for jar in jars.libraries(_POMS / f"kafka-connector-{CONNECTOR}.xml")]


@contextmanager
def kafka_broker() -> Iterator[str]:
    """Start a broker that creates topics of 3 partitions at their first use; yield its ``host:port``."""
    class_path = ":".join(str(jar) for jar in jars.libraries(_POMS / f"kafka-server-{VERSION}.xml"))
    java = [jars.tool("java"), "-Xmx1g", "-XX:-UsePerfData", "-cp", class_path]
    folder = Path(tempfile.mkdtemp(prefix="kafka-"))
    processes, ports = Processes(folder, remove=True), Ports()
    try:
        port, controller = ports.free(), ports.free()
        config = folder / "server.properties"
        config.write_text(
            _PROPERTIES.format(port=port, controller=controller, folder=folder, partitions=PARTITIONS), encoding="utf-8"
        )
        form = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)]
        done = subprocess.run(form, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"Kafka's StorageTool failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
        processes.start("kafka", [*java, "kafka.Kafka", str(config)])
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_listening("127.0.0.1", port):
            if not processes.is_running("kafka") or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start\n{processes.tail('kafka')}")
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        processes.close()
        ports.close()


class KafkaPeer:
    """Runs the work of a table through Spark's Kafka connector."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self._meter = Meter(spark)
        self._address = {"kafka.bootstrap.servers": address}

    def write(self, topic: str, count: int, size: int, options: Mapping[str, str]) -> Sample:
        rows = self._spark.range(count).selectExpr(f"repeat('s', {size}) AS value")
        writer = rows.write.format("kafka").mode("append").options(**self._address, **options).option("topic", topic)
        return self._meter.timed(count, writer.save)

    def readers(self, topic: str, count: int) -> list[Runner]:
        """Return runners that read all messages of a topic, which must have ``count`` of them."""
        runners = []
        for name, tuning in READING.items():
            options = {**self._address, **tuning, "subscribe": topic}
            batch, stream = self._drains(options, count)
            runners += [
                Runner(batch_reader(name), batch),
                Runner(stream_reader(name), stream),
            ]
        return runners

    def _drains(self, options: Mapping[str, str], count: int) -> tuple[Callable[[], Sample], Callable[[], Sample]]:
        def batch() -> Sample:
            return self._meter.timed(count, lambda: drain_batch(self._spark, "kafka", options))

        def stream() -> Sample:
            return self._meter.timed_stream(count, lambda: drain_stream(self._spark, "kafka", options, count))

        return batch, stream


def batch_reader(tuning: str) -> str:
    return f"Spark-Kafka batch read, {tuning}"


def stream_reader(tuning: str) -> str:
    return f"Spark-Kafka stream read, {tuning}"


def writer(tuning: str) -> str:
    return f"Spark-Kafka batch write, {tuning}"
