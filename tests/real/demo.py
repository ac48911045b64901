"""`make demo`: rows from a real TubeMQ through Spark, and back.

Brings up a cluster, writes rows to a topic with Spark, reads them as a stream, shows some of them and the lag of each
micro-batch, checks that every row came out once, and ends everything.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.real.cluster import RealTubeMQ, TopicSpec

TOPIC = "demo"
ROWS = 5000
UNIT = 28  # bytes of an index entry


def main() -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    print("Starting ZooKeeper, a TubeMQ master and a broker (the first time their jars are fetched) …", flush=True)
    with (
        RealTubeMQ(topics={TOPIC: TopicSpec(partitions=1, stores=3)}) as tubemq,
        tempfile.TemporaryDirectory(prefix="tubemq-demo-") as checkpoint,
    ):
        print(f"TubeMQ {tubemq.release}: the master listens on {tubemq.master}", flush=True)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            return run(spark, tubemq.master, checkpoint)
        finally:
            spark.stop()


def run(spark: SparkSession, master: str, checkpoint: str) -> int:
    write(spark, master, 0, ROWS)
    seen: list[int] = []

    def show(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("CAST(value AS STRING) AS value", "msg_type", "partition", "offset")
        print(f"micro-batch {batch_id}:", flush=True)
        rows.show(5, truncate=False)
        seen.extend(int(row.value.removeprefix("row ")) for row in rows.collect())

    query = (
        spark.readStream.format("tubemq")
        .option("tubemq.master", master)
        .option("tubemq.group", "demo_group")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(show)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.processAllAvailable()
        write(spark, master, ROWS, 2 * ROWS)
        query.processAllAvailable()
        for progress in query.recentProgress:
            print(f"batch {progress['batchId']}: {progress['numInputRows']} rows, lag afterwards {lag(progress)}")
    finally:
        query.stop()
    if sorted(seen) != list(range(2 * ROWS)):
        print(f"{len(seen)} rows came out of {2 * ROWS} that went in", file=sys.stderr)
        return 1
    print(f"All {2 * ROWS} rows came out, each once.")
    return 0


def write(spark: SparkSession, master: str, begin: int, end: int) -> None:
    (
        spark.range(begin, end)
        .selectExpr("concat('row ', id) AS value", "if(id % 2 = 0, 'even', 'odd') AS msg_type")
        .write.format("tubemq")
        .mode("append")
        .option("tubemq.master", master)
        .option("topic", TOPIC)
        .save()
    )


def lag(progress: Any) -> int:
    """How many messages the stores held beyond the batch's end when the source was last asked."""
    source = progress["sources"][0]
    end, latest = (as_positions(source[key]) for key in ("endOffset", "latestOffset"))
    return sum(latest[key] - end[key] for key in end) // UNIT


def as_positions(offset: Any) -> dict[tuple[str, str], int]:
    data = json.loads(offset) if isinstance(offset, str) else offset
    return {(topic, key): position for topic, keys in data["offsets"].items() for key, position in keys.items()}


if __name__ == "__main__":
    sys.exit(main())
