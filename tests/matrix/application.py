# SPDX-License-Identifier: Apache-2.0
"""A Spark application of its own that registers the source and uses all of the package. `run` starts it.

application.py FILE, with {"options": {…}, "folder": "…", "ship": true, …} in it. It prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ

COUNT = 20
COPIES = Counter({b"%d-a" % number: 2 for number in range(COUNT)})
"""The bodies that a batch and a stream write into topic `into`."""
_FOUND = "FOUND "
_PUSHES = hasattr(DataSourceReader, "pushFilters")
_OURS = ("PYSPARK_", "PYTHONPATH", "SPARK_REMOTE")


def run(
    folder: Path,
    options: Mapping[str, str],
    variables: Mapping[str, str],
    command: Sequence[str] = (sys.executable,),
    *,
    ship: bool = False,
    connect: bool = False,
    discover: bool = False,
) -> tuple[dict[str, Any], str]:
    """Run the application with these environment variables; return what it found, and its output.

    With `discover`, Spark first has to find the source by itself.
    """
    folder.mkdir(exist_ok=True)
    argument = folder / "given.json"
    given = {"options": options, "folder": str(folder), "ship": ship, "connect": connect, "discover": discover}
    argument.write_text(json.dumps(given))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    done = subprocess.run(
        [*command, __file__, str(argument)],
        env={**inherited, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, output[-8000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(_FOUND)]
    return json.loads(line.removeprefix(_FOUND)), output


def fill(tubemq: EmbeddedTubeMQ) -> dict[str, str]:
    """Create the topics of the application and return the options of a client."""
    for topic in ("from", "into"):
        tubemq.create_topic(topic)
    for number in range(COUNT):
        tubemq.send("from", b"%d-a" % number, msg_type="odd" if number % 2 else "even")
    return {"tubemq.master": tubemq.master}


def expected(**others: object) -> dict[str, object]:
    """Return what the application finds with these topics, and `others`."""
    from tubemq_spark.protocol import speedups

    found: dict[str, object] = {"batch": COUNT, "filters": COUNT // 2, "fields": ["1", "a"], "receipts": COUNT}
    pushed = {"pushed": COUNT // 2} if _PUSHES else {}
    decoders = [f"replies are decoded {speedups.state}"]  # in all processes as here
    return {**found, **pushed, "counted": True, "decoders": decoders, "problems": [], **others}


def main(given: Mapping[str, Any]) -> None:
    # The driver finds the tests here. This path is not that of workers.
    sys.path.insert(0, str(Path(__file__).parents[2]))
    if given["connect"]:
        from tests.matrix.conftest import local_connect

        builder = local_connect()
    else:
        builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    from tests.matrix.queries import TOO_LATE, Frames, run_to_the_end

    client, folder = given["options"], Path(given["folder"])
    frames = Frames(spark, {**client, "tubemq.group": "application", "startingOffsets": "earliest"})
    found: dict[str, Any] = {}
    if given["discover"]:
        found["discovered"] = frames.batch("from").count()

    import tubemq_spark
    from tubemq_spark.inlong import parse_csv
    from tubemq_spark.task_counts import task_counts

    for _ in range(2):
        tubemq_spark.register(spark, ship=given["ship"])
    try:
        found["batch"] = frames.batch("from").count()
    except Exception as error:
        print(_FOUND, json.dumps({"error": str(error)}), flush=True)
        spark.stop()
        return
    odd = frames.batch("from", filters="odd")
    found["filters"] = odd.count()
    if _PUSHES:
        found["pushed"] = frames.batch("from", pushFilters="true").where("msg_type = 'odd'").count()
    found["fields"] = min(row.fields for row in odd.select(parse_csv("value", "-").alias("fields")).collect())
    sink = {**client, "topic": "into"}
    frames.batch("from").select("value").write.format("tubemq").options(**sink).mode("append").save()
    writer = frames.stream("from").select("value").writeStream.format("tubemq").trigger(availableNow=True)
    writer = writer.options(**sink, effectivelyOnce="true", receipts=str(folder / "receipts"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for attempt in range(3):
        query = writer.start()
        try:
            run_to_the_end(query)
            break
        except StreamingQueryException as error:
            if TOO_LATE not in str(error) or attempt == 2:
                raise
    found["receipts"] = spark.read.parquet(str(folder / "receipts")).count()
    found["counted"] = task_counts(query.id).get("fetches", 0) > 0
    rows = tubemq_spark.check(spark, frames.options("from"), show=False)
    found["problems"] = [row for row in rows if row.state == "failed"]
    found["decoders"] = sorted({row.detail for row in rows if row.check == "decoders"})
    found["package"] = sorted({row.detail for row in rows if row.check == "tubemq-spark" and row.place != "driver"})
    print(_FOUND, json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
