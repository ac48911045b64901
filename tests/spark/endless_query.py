"""A query in a process of its own, to be killed.

python -m tests.spark.endless_query '{"options": {…}, "output": "folder", "checkpoint": "folder", "java": "-XX:…"}'
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .getOrCreate()
    )
    frame = spark.readStream.format("tubemq").options(**given["options"]).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", given["checkpoint"])
    writer.start(given["output"]).awaitTermination()


if __name__ == "__main__":
    main()
