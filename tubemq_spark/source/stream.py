# SPDX-License-Identifier: Apache-2.0
"""Stream reader: `spark.readStream.format("tubemq")`."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.client.counters import COUNTERS
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.task_counts import CountsInTasks

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1 have no read limits
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = type("ReadLimit", (), {})  # type: ignore[misc, assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """In these releases, a run with this trigger is one micro-batch; the next run commits its end to the group."""


class TubeMQStreamReader(CountsInTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches of exact ranges. For a run of the query, Spark keeps one reader in a driver process of its
    own. Executors call `read` on a pickled copy."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, owns_process: bool = True) -> None:
        """`owns_process`: stop at the process's end and at Spark's signal. Otherwise the caller calls `stop`."""
        self._options = SourceOptions.read(options, streaming=True, schema=schema)
        self._owns_process = owns_process
        self._planner: MicroBatchPlanner | None = None
        self._reached: StreamOffset | None = None  # the end of the batch that Spark planned last
        # The last argument of `latestOffset`, and its last result, as JSON and parsed
        self._start: tuple[dict[str, Any], StreamOffset] | None = None
        self._end: tuple[dict[str, Any], StreamOffset] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._started().initial().to_json()

    # Spark 4.0 and 4.1 call this without arguments, later releases pass both.
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        planner = self._started()
        if start is None:  # Spark calls it when all planned batches are committed
            begin = self._reached or planner.initial()
        else:
            if self._start is None or start != self._start[0]:  # an idle query often asks with the same offset
                self._start = start, StreamOffset.from_json(start)
            begin = self._start[1]
        end = planner.latest(begin, limited=not isinstance(limit, ReadAllAvailable))
        if self._end is None or end is not self._end[1]:
            self._end = end.to_json(), end
        return self._end[0]

    def getDefaultReadLimit(self) -> Any:
        """Tell Spark 4.2 and later whether there are read limits. The options hold the limits themselves:
        Spark's object holds only one, and gives it back to `latestOffset`."""
        options = self._options
        if options.max_bytes is not None and options.max_offsets is None:
            return ReadMaxBytes(options.max_bytes)
        return ReadMaxRows(options.max_offsets or 2**31 - 1) if options.has_limits else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._started().prepare_for_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest offset for progress reports (Spark 4.2 and later), with this process's counters, and the
        topics of which the cluster has nothing.

        Only reports get it: Spark does not store it in the checkpoint.
        """
        planner = self._started()
        if planner.log_ends is None:
            return None
        missing = {"missing": planner.missing_topics} if planner.missing_topics else {}
        return {**planner.log_ends.to_json(), "counters": COUNTERS().totals(), **missing}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        begin, self._reached = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begin == self._reached:
            return []  # Spark 4.0 and 4.1 first pass the end of the offset log like this to a restarted query
        return self._started().plan(begin, self._reached)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TubeMQInputPartition):
            with self.counting():
                yield from partition.read()

    def commit(self, end: Any) -> None:
        self._started().commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.stop()
            self._planner = None

    def _started(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = MicroBatchPlanner(self._options)
            if self._owns_process:
                self._stop_on_termination()
        return self._planner

    def _stop_on_termination(self) -> None:
        # Spark sends SIGTERM when the query stops. `SystemExit` ends the process then, and `stop` runs.
        atexit.register(self.stop)
        with suppress(ValueError):  # not the main thread: the caller's program handles signals
            signal.signal(signal.SIGTERM, _exit)


def _exit(*_: object) -> None:
    # Spark may send the signal twice. The second one must not interrupt `stop`.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
