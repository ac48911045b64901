# SPDX-License-Identifier: Apache-2.0
"""The jobs of a query's processes, by the sink's public interface; each job runs in one process."""

from __future__ import annotations

import logging
import os
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import StructType

from tests.sink_histories.hooks import CALLS, Hook
from tests.sink_histories.script import AS_READ, BARE, WITH_TOPIC
from tests.without_spark.sink import KINDS, Task, commit_stream, plan_stream, run_task, schema
from tubemq_spark.client import settings
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings
from tubemq_spark.sink.stored_rows import StoredRows
from tubemq_spark.sink.stored_rows_search import StoredRowsSearch

COLUMNS: Mapping[str, tuple[str, ...]] = {
    BARE: ("value", "key", "broker_id", "partition"),
    WITH_TOPIC: ("value", "key", "broker_id", "partition", "topic"),
    AS_READ: ("value", "key", "broker_id", "partition", "topic", "offset", "message_id", "corrupt"),
}
"""The columns of each kind of frame."""

_BAD: dict[str, tuple[int, int | None]] = {"half a target": (1, None), "no such target": (99, 0)}
BAD = [*_BAD]
CORRUPT = "corrupt"


@dataclass(frozen=True)
class OutRow:
    """A row for `topic`; `target` is (broker id, partition id).

    A `bad` row can never be sent: it has half a target, an unknown one, or the source could not decode it. `read_in` is
    the topic that the frame names if it is not the destination. The frame says that the row was read in a partition
    that does not exist.
    """

    topic: str
    body: bytes
    key: bytes | None = None
    target: tuple[int, int] | None = None
    bad: str = ""
    read_in: str | None = None

    def cells(self, columns: Sequence[str]) -> dict[str, Any]:
        broker_id, partition = _BAD.get(self.bad, self.target or (None, None))
        cells = {
            "value": self.body,
            "key": self.key,
            "broker_id": broker_id,
            "partition": partition,
            "topic": self.topic if self.read_in is None else self.read_in,
        }
        if "message_id" in columns:
            cells |= {"broker_id": 77, "partition": 3, "offset": 28, "message_id": 5, "corrupt": self.bad == CORRUPT}
        return {name: cells[name] for name in columns}


class Job(Protocol):
    @property
    def hook(self) -> Hook | None: ...

    def do(self) -> Any: ...


@dataclass(frozen=True)
class Begin:
    """The state in which a process begins: the `timings` of its clients, and the driver's local `folder`.

    A `blind` process finds no stored rows, to test that histories detect that.
    """

    timings: Timings = DEFAULT_TIMINGS
    blind: bool = False
    folder: str = ""
    hook: Hook | None = None

    def do(self) -> None:
        os.environ["SPARK_LOCAL_DIRS"] = self.folder
        settings.DEFAULT_TIMINGS = self.timings  # type: ignore[attr-defined]
        StoredRowsSearch.rows_in = _counted(StoredRowsSearch.rows_in)  # type: ignore[method-assign]
        if self.blind:
            StoredRows.add = lambda *_: None  # type: ignore[method-assign]


_searches = [0]  # of topics for rows of earlier attempts, in the present job


def _counted(search: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **options: Any) -> Any:
        _searches[0] += 1
        return search(*args, **options)

    return counted


def _schema(columns: Sequence[str]) -> StructType:
    return schema(kinds={name: KINDS[name] for name in columns})


@dataclass(frozen=True)
class Plan:
    """Returns the pickled writer."""

    options: Mapping[str, str]
    columns: Sequence[str]
    hook: Hook | None = None

    def do(self) -> bytes:
        return plan_stream(self.options, _schema(self.columns))


@dataclass(frozen=True)
class Write:
    """Returns the task's commit message."""

    writer: bytes
    task: Task
    rows: Sequence[OutRow]
    columns: Sequence[str]
    arrow: bool
    hook: Hook | None = None

    def do(self) -> Any:
        size = random.Random(str(self.task)).choice([1, 3, 1000])
        cells = [row.cells(self.columns) for row in self.rows]
        return run_task(self.writer, cells, _schema(self.columns), self.task, by_rows=not self.arrow, size=size)


@dataclass(frozen=True)
class Commit:
    options: Mapping[str, str]
    columns: Sequence[str]
    messages: Sequence[Any]
    batch: int
    hook: Hook | None = None

    def do(self) -> None:
        commit_stream(self.options, _schema(self.columns), self.messages, self.batch)


@dataclass(frozen=True)
class Done:
    """The result of a job: `calls` are the methods of its requests to servers, `searches` counts the topics that it
    has searched for rows of earlier attempts. With an `error` (class and text) there is no `value`."""

    value: Any = None
    calls: tuple[str, ...] = ()
    error: str | None = None
    kind: str = ""
    searches: int = 0


def do(job: Job) -> Done:
    CALLS.begin(job.hook)
    _searches[0] = 0
    try:
        return Done(job.do(), tuple(CALLS.names), searches=_searches[0])
    except Exception as error:
        return Done(None, tuple(CALLS.names), "".join(traceback.format_exception(error)), type(error).__name__)


def quiet() -> None:
    """Silence the warnings, which are expected; TUBEMQ_HISTORIES_LOG shows them."""
    if os.environ.get("TUBEMQ_HISTORIES_LOG"):
        logging.basicConfig(level=logging.INFO, format="%(process)d %(asctime)s %(message)s")
    else:
        logging.getLogger("tubemq_spark").addHandler(logging.NullHandler())
        logging.getLogger("tubemq_spark").propagate = False
