# SPDX-License-Identifier: Apache-2.0
"""Measure how many lines Spark puts around the sentence of an error: `python scripts/measure_errors.py PYTHON…`.

Each PYTHON is the interpreter of an environment with tubemq-spark and pyspark[connect]. The script writes
scripts/error_lines.json, which docs/errors.md shows after `make docs`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().with_name("error_lines.json")
SENTENCE = "tubemq_spark.errors."
SECONDS = 120
_TOO_LATE = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET", "PythonStreamingSourceRunner.init")


def measure(mode: str) -> list[dict[str, str]]:
    """Return one row for each kind of error, with Spark in this process (`classic`) or as a server (`Connect`)."""
    from pyspark.sql import SparkSession

    from tubemq_spark.testing import EmbeddedTubeMQ

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.remote("local[2]") if mode == "Connect" else builder.master("local[2]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    kinds: dict[str, Callable[..., None]] = {
        "an option, at `load()`": _unknown_option,
        "the driver, while the query runs": _lost_master,
        "a writing task, while the query runs": _null_value,
    }
    rows = []
    for kind, fail in kinds.items():
        lines: dict[str, str] | None = None
        while lines is None:
            with EmbeddedTubeMQ({"demo": 1}) as tubemq, tempfile.TemporaryDirectory() as folder:
                lines = _lines(fail, spark, tubemq, folder)
        rows.append({"Spark": f"{spark.version} {mode}", "raised by": kind, **lines})
    spark.stop()
    return rows


def _lines(fail: Callable[..., None], *arguments: Any) -> dict[str, str] | None:
    """Return None if Spark gave up a new Python process: it waits 10 s for it, and a busy machine needs more."""
    try:
        fail(*arguments)
    except Exception as error:
        if any(text in str(error) for text in _TOO_LATE):
            return None
        printed = "".join(traceback.format_exception(error))
        return {"message": _place(str(error)), "printed": _place(printed)}
    raise AssertionError("the query did not fail")


def _place(text: str) -> str:
    lines = text.rstrip().splitlines()
    places = [number for number, line in enumerate(lines, 1) if SENTENCE in line]
    return f"{places[0]} of {len(lines)}" if places else f"none of {len(lines)}"


def _stream(spark: Any, tubemq: Any, **options: str) -> Any:
    given = {"tubemq.master": tubemq.master, "tubemq.group": "g", "subscribe": "demo", "startingOffsets": "earliest"}
    return spark.readStream.format("tubemq").options(**given, **options).load()


def _unknown_option(spark: Any, tubemq: Any, folder: str) -> None:
    _stream(spark, tubemq, failOnDataLos="false").schema  # noqa: B018 - Connect sends nothing before


def _lost_master(spark: Any, tubemq: Any, folder: str) -> None:
    tubemq.send("demo", b"one")
    frame = _stream(spark, tubemq, **{"tubemq.retry.maxElapsedMs": "500", "metadataIntervalMs": "100"})
    query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(1)
    tubemq.close()
    query.awaitTermination(SECONDS)


def _null_value(spark: Any, tubemq: Any, folder: str) -> None:
    tubemq.send("demo", b"one")
    frame = _stream(spark, tubemq).selectExpr("nullif(value, value) AS value")
    options = {"tubemq.master": tubemq.master, "topic": "demo", "checkpointLocation": folder}
    frame.writeStream.format("tubemq").options(**options).start().awaitTermination(SECONDS)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--measure"]:
        Path(arguments[2]).write_text(json.dumps(measure(arguments[1])))
        return 0
    rows: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for python in arguments or [sys.executable]:
            for mode in ("classic", "Connect"):
                result = Path(folder) / "rows.json"
                environment = {**os.environ, "SPARK_TESTING": "1"}  # then the server of Connect chooses a free port
                command = [python, __file__, "--measure", mode, str(result)]
                subprocess.run(command, check=True, cwd=folder, env=environment)
                rows += json.loads(result.read_text())
                FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
