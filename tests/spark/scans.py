# SPDX-License-Identifier: Apache-2.0
"""Scans the same data several times in a Spark of its own, and prints each scan's number of rows as JSON.

python -m tests.spark.scans '{"spark": "local[6]", "options": {…}, "folder": "…", "java": "-XX:…"}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

THREADS = 2


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master(given["spark"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.task.maxFailures", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = given["options"]
    found = of_streams(spark, {**options, "tubemq.group": "streams"}, Path(given["folder"]))
    found["batch"] = of_batch_reads(spark, {**options, "tubemq.group": "batches"})
    print(f"\n{json.dumps(found)}")
    spark.stop()


def of_batch_reads(spark: SparkSession, options: dict[str, str]) -> dict[str, object]:
    def load() -> DataFrame:
        return spark.read.format("tubemq").options(**options).load()

    frame = load()
    return {
        **of_a_frame(frame),
        "loads": frame.union(load()).count(),
        "plans": at_once([lambda: load().count()] * THREADS),
    }


def of_a_frame(frame: DataFrame) -> dict[str, object]:
    found = {
        "count": frame.count(),
        "union": frame.union(frame).count(),
        "join": frame.alias("a").join(frame.alias("b"), "message_id").count(),
        "threads": at_once([frame.count] * THREADS),
    }
    kept = frame.cache()
    found["cached"] = at_once([kept.count] * THREADS)
    kept.unpersist()
    return found


def of_streams(spark: SparkSession, options: dict[str, str], folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}

    def sink(frame: DataFrame, batch_id: int) -> None:
        found[f"micro-batch {batch_id}"] = of_a_frame(frame) if batch_id == 0 else {"count": frame.count()}

    stream = spark.readStream.format("tubemq").options(**options).load()
    union = stream.where("message_id % 2 = 0").union(stream.where("message_id % 2 = 1"))
    for name, writer in {
        "foreachBatch": stream.writeStream.foreachBatch(sink),
        "union": union.writeStream.format("parquet").option("path", str(folder / "rows")),
    }.items():
        started = writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
        started.awaitTermination()
    return {**found, "union": spark.read.parquet(str(folder / "rows")).count()}


def at_once(actions: Sequence[Callable[[], int]]) -> list[int]:
    with ThreadPoolExecutor(len(actions)) as pool:
        return [one.result() for one in [pool.submit(action) for action in actions]]


if __name__ == "__main__":
    main()
