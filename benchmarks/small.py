# SPDX-License-Identifier: Apache-2.0
"""Duration of a micro-batch with 30 rows of 3 partitions, with the package installed in the workers and shipped to
them, beside that of a Python source that does nothing; and of one that writes the rows of that source."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.parts import Part
from benchmarks.results import MILLISECONDS, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import LAYOUTS, OWN, RELEASE, Scale
from benchmarks.sources import NothingSource
from benchmarks.spark import spark_session
from tests.real.cluster import RealTubeMQ
from tubemq_spark import register
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings

OURS = "30 rows of 3 partitions"
SHIPPED = "30 rows of 3 partitions, the package is shipped"
NOTHING = "30 rows of a source that does nothing"
WRITTEN = "30 rows of that source, written to 3 partitions"
ONCE = "30 rows of that source, written with effectivelyOnce"
NAMES = (OURS, SHIPPED, NOTHING, WRITTEN, ONCE)
TOPIC, OUTPUT = "bench_small", "bench_small_out"
STORES = (0, 10_000, 20_000)  # ids of the partitions, one for each store

SINKS: dict[str, dict[str, str]] = {NOTHING: {}, WRITTEN: {"stampRows": "true"}, ONCE: {"effectivelyOnce": "true"}}

_ROWS = 30
_WARM_UP, _BATCHES, _TRIES = 10, 10, 60


def measure(scale: Scale, record: Recorder) -> None:
    rounds: list[dict[str, list[float]]] = []
    with (
        RealTubeMQ(topics=dict.fromkeys((TOPIC, OUTPUT), LAYOUTS[OWN]), release=RELEASE, quick_start=False) as tubemq,
        spark_session() as spark,
        Producer(ClientSettings.from_options({"tubemq.master": tubemq.master})) as producer,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
    ):
        spark.dataSource.register(NothingSource)
        for number in range(1 + scale.rounds):
            options = {
                "tubemq.master": tubemq.master,
                "subscribe": TOPIC,
                "headsIntervalMs": "0",  # else the times contain the source's wait for its next request
            }
            durations = {}
            for name in (OURS, SHIPPED):
                register(spark, ship=name == SHIPPED)
                options["tubemq.group"] = f"small_{number}_{name == SHIPPED}"
                durations[name] = batches(spark, "tubemq", options, partial(send_rows, producer))
            for name, sink in SINKS.items():
                offered = Path(folder, f"{number} {name}")
                offered.touch()
                options = {"file": str(offered)}
                sink = sink and {"tubemq.master": tubemq.master, "topic": OUTPUT, **sink}
                durations[name] = batches(spark, "nothing", options, partial(offer_rows, offered), sink)
            rounds.append(durations)
    for name in NAMES:  # without the first round, in which the JVM compiles
        record.add(name, MILLISECONDS, [value for durations in rounds[1:] for value in durations[name]])


def send_rows(producer: Producer) -> None:
    for number in range(_ROWS):
        producer.send(TOPIC, b"row %d" % number, target=(1, STORES[number % len(STORES)]))
    producer.flush()


def offer_rows(file: Path) -> None:
    with file.open("ab") as offered:
        offered.write(b"." * _ROWS)


def batches(
    spark: SparkSession,
    source: str,
    options: Mapping[str, str],
    offer: Callable[[], None],
    sink: Mapping[str, str] | None = None,
) -> list[float]:
    """Return the milliseconds of one query's micro-batches, without those that did not get all rows at once. `sink`
    are options of the connector's sink; without them, Spark writes nothing."""
    with tempfile.TemporaryDirectory(prefix="bench-") as checkpoint:
        stream = spark.readStream.format(source).options(**options).load()
        writer = stream.writeStream.format("tubemq" if sink else "noop").options(**(sink or {}))
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            found: list[float] = []
            for _ in range(_TRIES):
                offer()
                query.processAllAvailable()
                last = query.lastProgress
                if last is not None and last["numInputRows"] == _ROWS:
                    found.append(float(last["durationMs"]["triggerExecution"]))
                if len(found) == _WARM_UP + _BATCHES:
                    break
        finally:
            query.stop()
    if len(found) <= _WARM_UP:
        raise RuntimeError(f"of {_TRIES} micro-batches of {source} {len(found)} had {_ROWS} rows")
    return found[_WARM_UP:]


PART = Part(
    "small",
    "a micro-batch of 30 rows, read or written, beside a source that does nothing",
    1,
    tuple(Key("small", name, MILLISECONDS) for name in NAMES),
    measure,
)
