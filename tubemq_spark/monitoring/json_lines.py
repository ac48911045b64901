# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON, one object a line."""

from __future__ import annotations

import json
import time
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from tubemq_spark.monitoring.report import BatchReport, EndReport, Query
from tubemq_spark.protocol import speedups


class JsonLines:
    """Appends a line to a file, or to a text stream such as `sys.stdout`, for each event of a query.

    Every line has `event` (`started`, `batch`, `idle` or `ended`), `time` (seconds since the epoch), `query`, `id` and
    `run`. The first one says in `decoders` what decodes replies in the driver: Python, or compiled code. A file is
    opened for each line, so that log rotation may move it.
    """

    def __init__(self, target: str | PathLike[str] | TextIO) -> None:
        self._target: Path | TextIO = Path(target) if isinstance(target, (str, PathLike)) else target

    def started(self, query: Query) -> None:
        self._write("started", time.time(), query, decoders=speedups.state)

    def batch(self, report: BatchReport) -> None:
        self._write("batch", report.began, report.query, **report.as_json())

    def idle(self, query: Query, at: float) -> None:
        self._write("idle", at, query)

    def ended(self, report: EndReport) -> None:
        self._write("ended", time.time(), report.query, error=report.error, text=report.text)

    def _write(self, event: str, at: float, query: Query, **values: Any) -> None:
        head = {"event": event, "time": at, "query": query.label, "id": query.id, "run": query.run_id}
        line = json.dumps({**head, **values}, ensure_ascii=False) + "\n"
        if isinstance(self._target, Path):
            with self._target.open("a", encoding="utf-8") as file:
                file.write(line)
        else:
            self._target.write(line)
            self._target.flush()
