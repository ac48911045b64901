# SPDX-License-Identifier: Apache-2.0
"""Events as Spark passes them to listeners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

ID, RUN = "7e1b3561-2994-45ea-892d-6792f8f5ecdd", "77581f22-e370-4266-a29e-a64dc8e58fe5"
BEGAN = "2026-01-31T12:00:00.500Z"
BEGAN_AT = 1769860800.5


def offset(positions: Mapping[str, int], counters: Mapping[str, int] | None = None, topic: str = "demo") -> str:
    """Return the offset of a tubemq source: positions by `brokerId:partitionId`."""
    data: dict[str, Any] = {"v": 1, "query": "0507c8283c248623", "offsets": {topic: dict(positions)}}
    return json.dumps(data if counters is None else {**data, "counters": dict(counters)})


def source(end: str | None, latest: str | None, rows: int = 0) -> dict[str, Any]:
    """Return a source of a progress: offsets are JSON or null, as in the event's own JSON."""
    return {
        "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@5f25f89e",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": rows,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }


def progress(*sources: Mapping[str, Any], batch: int = 0, name: str | None = "copy", sink_rows: int = -1) -> Any:
    """Return an event with the progress of a batch that took 2 s. The class is Spark's own."""
    data = {
        "id": ID,
        "runId": RUN,
        "name": name,
        "timestamp": BEGAN,
        "batchId": batch,
        "batchDuration": 2000,
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500},
        "numInputRows": sum(one["numInputRows"] for one in sources),
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "noop", "numOutputRows": sink_rows},
    }
    return SimpleNamespace(progress=StreamingQueryProgress.fromJson(data))


def started(name: str | None = "copy", run: str = RUN) -> Any:
    return SimpleNamespace(id=ID, runId=run, name=name)


def idle() -> Any:
    return SimpleNamespace(id=ID, runId=RUN, timestamp=BEGAN)


def ended(exception: str | None = None, run: str = RUN) -> Any:
    return SimpleNamespace(id=ID, runId=run, exception=exception)
