# SPDX-License-Identifier: Apache-2.0
"""A Spark application whose workers lack the package: `register(spark, ship=True)`. `run` starts it.

shipped.py FILE, with {"options": {…}, "folder": "…", "connect": false} in it. It prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader

_FOUND = "FOUND "
_TOO_LATE = "Python worker failed to connect back"  # a busy machine needs more than Spark's 10 s
PUSHES = hasattr(DataSourceReader, "pushFilters")


def run(
    python: Path, folder: Path, options: Mapping[str, str], *, connect: bool = False, **variables: str
) -> tuple[dict[str, Any], str]:
    """Run the application with `python` for the workers; return what it found, and its output."""
    folder.mkdir(exist_ok=True)
    argument = folder / "given.json"
    argument.write_text(json.dumps({"options": options, "folder": str(folder), "connect": connect}))
    ours = ("PYSPARK_", "PYTHONPATH", "SPARK_REMOTE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, __file__, str(argument)],
        env={**inherited, "PYSPARK_PYTHON": str(python), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, output[-8000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(_FOUND)]
    return json.loads(line.removeprefix(_FOUND)), output


def main(given: Mapping[str, Any]) -> None:
    # The driver has the package; this path is not that of workers.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import tubemq_spark
    from tests.matrix.conftest import local_connect
    from tubemq_spark.inlong import parse_csv
    from tubemq_spark.task_counts import task_counts

    builder = local_connect() if given["connect"] else SparkSession.builder.master("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tubemq_spark.register(spark, ship=True)
    folder, client = Path(given["folder"]), given["options"]
    source = {**client, "tubemq.group": "shipped", "subscribe": "from"}
    sink = {**client, "topic": "into"}
    found: dict[str, Any] = {}

    def batch(**options: str) -> Any:
        return spark.read.format("tubemq").options(**source, **options).load()

    try:
        found["batch"] = batch().count()
    except Exception as error:
        print(_FOUND, json.dumps({"error": str(error)}), flush=True)
        spark.stop()
        return
    found["filters"] = batch(filters="odd").count()
    if PUSHES:
        found["pushed"] = batch(pushFilters="true").where("msg_type = 'odd'").count()
    fields = batch(filters="odd").select(parse_csv("value", "-").alias("fields")).collect()
    found["fields"] = min(row.fields for row in fields)
    batch().select("value").write.format("tubemq").options(**sink).mode("append").save()
    stream = spark.readStream.format("tubemq").options(**source, startingOffsets="earliest").load().select("value")
    writer = stream.writeStream.format("tubemq").options(**sink, effectivelyOnce="true")
    writer = writer.option("receipts", str(folder / "receipts"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    for attempt in range(3):
        query = writer.start()
        try:
            assert query.awaitTermination(240), query.status
            break
        except StreamingQueryException as error:
            if _TOO_LATE not in str(error) or attempt == 2:
                raise
    found["receipts"] = spark.read.parquet(str(folder / "receipts")).count()
    found["counted"] = task_counts(query.id).get("fetches", 0) > 0
    rows = tubemq_spark.check(spark, source, show=False)
    found["problems"] = [row for row in rows if row.state == "failed"]
    found["package"] = sorted({row.detail for row in rows if row.check == "tubemq-spark" and row.place != "driver"})
    print(_FOUND, json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
