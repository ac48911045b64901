# SPDX-License-Identifier: Apache-2.0
"""A query in a process of its own that tests kill.

python -m tests.spark.endless_query '{"options": {…}, "output": "folder", "checkpoint": "folder", "java": "-XX:…"}'
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.queries import TOO_LATE


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
    while True:
        try:
            writer.start(given["output"]).awaitTermination()
        except StreamingQueryException as error:
            if TOO_LATE not in str(error):
                raise


if __name__ == "__main__":
    main()
