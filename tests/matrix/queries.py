# SPDX-License-Identifier: Apache-2.0
"""What tests with Spark share: frames of the source, waiting for queries, and what checkpoints hold.

It runs on each release of Spark and on Connect, and imports only pyspark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

TOO_LATE = "Python worker failed to connect back"
"""The error if a Python process needs more than the 10 s that Spark waits, which no setting changes."""


class Frames:
    """Reads of topics. All have the options `common`."""

    def __init__(self, spark: SparkSession, common: Mapping[str, object]) -> None:
        self.spark = spark
        self._common = common

    def options(self, *topics: str, **others: object) -> dict[str, str]:
        """Return the options of all reads and `others`. `_` in a name stands for `.`; None removes an option."""
        options = {**self._common, "subscribe": ",".join(topics)}
        options |= {name.replace("_", "."): value for name, value in others.items()}
        return {
            name: json.dumps(value) if isinstance(value, Mapping) else str(value)
            for name, value in options.items()
            if value is not None
        }

    def batch(self, *topics: str, schema: Any = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("tubemq").options(**self.options(*topics, **options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, *topics: str, schema: Any = None, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("tubemq").options(**self.options(*topics, **options))
        return (reader if schema is None else reader.schema(schema)).load()


def wait_for(condition: Callable[[], T], what: str, *queries: StreamingQuery, timeout: float = 300.0) -> T:
    """Return the result of `condition` once it is true. Raise the error of a query that fails before."""
    deadline = time.monotonic() + timeout
    while True:
        problems = [query.exception() for query in queries if not query.isActive]
        if found := condition():
            return found
        for problem in filter(None, problems):
            raise problem
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what}; {[query.status for query in queries]}")
        time.sleep(0.05)


def run_to_the_end(query: StreamingQuery, timeout: int = 300) -> None:
    """Wait for the end of a query whose trigger ends; raise its error."""
    assert query.awaitTermination(timeout), f"it goes on: {query.status}"


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the micro-batches in a log of a checkpoint."""
    return sorted(int(file.name) for file in folder.glob("[0-9]*"))


def logged_offsets(checkpoint: Path, batch_id: int) -> dict[str, dict[str, int]]:
    """Return where a micro-batch ends, by the offset log: positions by topic and by broker and partition."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    offsets: dict[str, dict[str, int]] = json.loads(text)["offsets"]
    return offsets
