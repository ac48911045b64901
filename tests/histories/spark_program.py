# SPDX-License-Identifier: Apache-2.0
"""A Spark driver in a process that tests kill. It obeys commands on standard input.

`start` starts the query, `stop` stops it, `status` returns whether it is active, and its error. Each command is a line
of JSON, and so is each reply.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark_jvm import quick_start

TRIES = 3  # attempts of a task
ROWS_AT_ONCE = 20
_COLUMNS = ("topic", "broker_id", "partition", "offset", "message_id", "value", "msg_type")


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[2,{TRIES}]")
        .config("spark.driver.extraJavaOptions", quick_start())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_AT_ONCE))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches slowly, so that a test can kill a task that is still running."""
    for batch in batches:
        time.sleep(0.01)
        yield batch


class Sink:
    """A sink with one file for each attempt of a micro-batch. Only the last attempt counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [[_plain(row[name]) for name in _COLUMNS] for row in frame.select(*_COLUMNS).collect()]
        number = len(list(self._folder.glob(f"{batch_id}.*.json")))
        unfinished = self._folder / f"{batch_id}.tmp"
        unfinished.write_text(json.dumps({"begun": time.time(), "rows": rows}))
        unfinished.rename(self._folder / f"{batch_id}.{number}.json")
        time.sleep(0.02)


def _plain(value: Any) -> Any:
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else value


class Program:
    def __init__(self) -> None:
        self._spark = session()
        self._query: StreamingQuery | None = None

    def start(self, given: dict[str, Any]) -> dict[str, Any]:
        frame = self._spark.readStream.format("tubemq").options(**given["options"]).load()
        writer = frame.mapInArrow(slowly, frame.schema).writeStream
        if given["available_now"]:
            writer = writer.trigger(availableNow=True)
        sink = Sink(Path(given["output"]))
        self._query = writer.foreachBatch(sink).option("checkpointLocation", given["checkpoint"]).start()
        return {}

    def stop(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._query is not None:
            self._query.stop()
        return {}

    def status(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._query is None:
            return {"active": False, "error": None}
        error = self._query.exception()
        return {"active": self._query.isActive, "error": None if error is None else str(error)}


def main() -> None:
    program = Program()
    commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "start": program.start,
        "stop": program.stop,
        "status": program.status,
    }
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = commands[given["do"]](given)
        except Exception as error:
            answer = {"failed": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
