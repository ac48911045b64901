# SPDX-License-Identifier: Apache-2.0
"""JVM options with which Spark starts in half the CPU time: a simple compiler and collector, and an archive of loaded
classes (application class-data sharing). The archive is made once per release of Java and Spark, and kept in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyspark

from tests.real.jars import MissingTool, cached, tool
from tests.spark_home import spark_home

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_ARCHIVE = "classes.jsa"


@cache
def quick_start() -> str:
    """Return the value for `spark.driver.extraJavaOptions`.

    Raises:
        MissingTool: Java is missing.
    """
    java = subprocess.run([tool("java"), "-version"], capture_output=True, text=True).stderr
    made_from = f"{java} {pyspark.__version__} {spark_home()} {Path(__file__).read_text()}"  # Java compares the paths
    archive = cached("spark-classes", made_from.encode(), _dump) / _ARCHIVE
    return f"{_QUICK} -XX:SharedArchiveFile={archive} -Xlog:disable"  # the log would warn on standard output


def _dump(folder: Path) -> None:
    """Run this module as a Spark program whose JVM writes its loaded classes to the archive when it ends."""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(root)}
    environment["SPARK_HOME"] = str(spark_home())
    with tempfile.TemporaryDirectory(prefix="tubemq-spark-") as work:
        command = [sys.executable, "-m", "tests.spark_jvm", str(folder / _ARCHIVE)]
        subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True)


def _run_queries(archive: str) -> None:
    from pyspark.sql import SparkSession

    from tubemq_spark.testing import EmbeddedTubeMQ

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", f"{_QUICK} -XX:ArchiveClassesAtExit={archive} -Xlog:disable")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        options = {"tubemq.master": tubemq.master, "tubemq.group": "g1", "subscribe": "demo", "topic": "demo"}
        numbers = session.range(10).selectExpr("CAST(id AS STRING) AS value")
        numbers.write.format("tubemq").mode("append").options(**options).save()
        batch = session.read.format("tubemq").options(**options).load()
        batch.groupBy("partition").count().collect()
        stream = session.readStream.format("tubemq").options(**options, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", "checkpoint")
            .trigger(availableNow=True)
            .start("rows")
        )
        query.awaitTermination()
        session.read.parquet("rows").collect()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    if sys.argv[1:]:
        _run_queries(sys.argv[1])
    else:
        with suppress(MissingTool):  # then the tests that need Spark say so
            quick_start()
