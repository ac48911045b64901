# SPDX-License-Identifier: Apache-2.0
"""What a monitor reports: plain values, made from the events of Spark's `StreamingQueryListener`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.message import parse_moment
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.task_counts import task_counts

# Both are found in linear time in a text that a peer may have written in part.
_ERROR = re.compile(r"\btubemq_spark(?:\.[a-z_]\w{0,60}){0,8}\.([A-Z][A-Za-z]{0,60}Error)\b")
_CONDITION = re.compile(r"\[([A-Z][A-Z_.]{1,80})\]")


@dataclass(frozen=True)
class Query:
    """A run of a query. `label` is the query's name, or its id without one."""

    id: str
    run_id: str
    name: str | None

    @property
    def label(self) -> str:
        return self.name or self.id


@dataclass(frozen=True)
class PartitionReport:
    """How far a partition is read, and where its store ended when the batch was planned: positions in bytes."""

    partition: Partition
    position: int
    log_end: int

    @property
    def lag(self) -> int:
        """Index entries of the partition's store that are not read yet."""
        return max(self.log_end - self.position, 0) // INDEX_MSG_UNIT_SIZE

    def as_json(self) -> dict[str, object]:
        broker, topic, number = self.partition
        place = {"topic": topic, "broker": broker, "partition": number}
        return {**place, "position": self.position, "logEnd": self.log_end, "lag": self.lag}


@dataclass(frozen=True)
class SourceReport:
    """A tubemq source of a query. `number` is its place among the query's sources, `counters` are totals of the run."""

    number: int
    rows: int
    partitions: tuple[PartitionReport, ...]
    counters: Mapping[str, int]

    def as_json(self) -> dict[str, object]:
        partitions = [one.as_json() for one in self.partitions]
        return {"source": self.number, "rows": self.rows, "partitions": partitions, "counters": dict(self.counters)}


@dataclass(frozen=True)
class BatchReport:
    """A micro-batch that has ended. `began` is in seconds since the epoch. `sink_rows` is None if the sink does not
    tell. `task_counts` are totals that the query's tasks counted, empty where they cannot report them."""

    query: Query
    batch: int
    began: float
    seconds: float
    sources: tuple[SourceReport, ...]
    sink_rows: int | None
    task_counts: Mapping[str, int]

    def as_json(self) -> dict[str, object]:
        sources = [one.as_json() for one in self.sources]
        counts = {"sinkRows": self.sink_rows, "taskCounts": dict(self.task_counts)}
        return {"batch": self.batch, "seconds": self.seconds, "sources": sources, **counts}


@dataclass(frozen=True)
class EndReport:
    """The end of a run. `error` is the name of the error's class, or Spark's error condition; None for a normal stop.
    `text` is the sentence of the error."""

    query: Query
    error: str | None
    text: str | None


def batch_report(progress: Any) -> BatchReport:
    """Return the report for a `StreamingQueryProgress`."""
    written = getattr(progress.sink, "numOutputRows", -1)
    return BatchReport(
        query=Query(str(progress.id), str(progress.runId), progress.name),
        batch=int(progress.batchId),
        began=seconds_of(progress.timestamp),
        seconds=dict(progress.durationMs).get("triggerExecution", 0) / 1000,
        sources=tuple(_sources(progress)),
        sink_rows=written if written is not None and written >= 0 else None,
        task_counts=task_counts(str(progress.id)),
    )


def end_report(query: Query, exception: str | None) -> EndReport:
    """Return the report for a query that ended with the text of an `exception`, or None."""
    if exception is None:
        return EndReport(query, None, None)
    found = _ERROR.search(exception)
    if found is not None:
        text = exception[found.end() :].partition("\n")[0].lstrip(": ")
        return EndReport(query, found[1], text)
    condition = _CONDITION.search(exception)
    return EndReport(query, condition[1] if condition else "unknown", exception.partition("\n")[0])


def seconds_of(timestamp: str) -> float:
    """Return the seconds since the epoch of a time in Spark's events, as 2026-01-31T12:00:00.123Z."""
    return parse_moment(timestamp).timestamp()


def _sources(progress: Any) -> Iterator[SourceReport]:
    for number, source in enumerate(progress.sources):
        end = _json(source.endOffset)
        with suppress(ConfigError):  # it belongs to another kind of source
            read = StreamOffset.from_json(end).positions
            latest = _json(source.latestOffset)
            # Spark 4.0 and 4.1 put the end of the batch here.
            log_ends = StreamOffset.from_json(latest).positions if latest else read
            partitions = (
                PartitionReport(partition, position, log_ends.get(partition, position))
                for partition, position in sorted(read.items())
            )
            yield SourceReport(number, int(source.numInputRows), tuple(partitions), _counters(latest))


def _counters(latest: Any) -> dict[str, int]:
    found = latest.get("counters") if isinstance(latest, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def _json(text: str | None) -> Any:
    """Return the value of an offset's text: JSON, or on Spark Connect 4.0 and 4.1 the text of a Python object."""
    if not text:
        return None
    with suppress(ValueError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return None
