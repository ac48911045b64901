"""`spark.readStream.format("tubemq")`."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.schema import check_schema, spark_schema

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # Spark 4.0 and 4.1, which never ask for limits
    ReadAllAvailable = ReadMaxRows = type("ReadLimit", (), {})  # type: ignore[misc, assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """There, a run with this trigger is one micro-batch, and the group follows with the next run."""


class _Known(NamedTuple):
    """An offset, and how Spark writes it."""

    text: dict[str, Any]
    offset: StreamOffset


class TubeMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of exact ranges.

    Spark keeps one of these in a process of its own for a run of the query and calls everything but `read` there;
    `read` runs on executors, on a pickled copy that has never been called.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.read(options, streaming=True)
        check_schema(schema, spark_schema(self._options.corrupt_messages, self._options.message_format))
        self._planner: MicroBatchPlanner | None = None
        self._reached: StreamOffset | None = None  # the end of what Spark planned last
        self._start: _Known | None = None  # what Spark told last
        self._end: _Known | None = None  # what it was told last

    def initialOffset(self) -> dict[str, Any]:
        return self._started().initial().to_json()

    # Spark 4.0 and 4.1 call this without arguments, later releases with both.
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        planner = self._started()
        if start is None:  # it is asked for when all that was planned is committed
            begin = self._reached or planner.initial()
        elif self._start is not None and start == self._start.text:
            begin = self._start.offset  # an idle query is asked with the same text many times a second
        else:
            self._start = _Known(start, StreamOffset.from_json(start))
            begin = self._start.offset
        end = planner.latest(begin, limited=not isinstance(limit, ReadAllAvailable))
        if self._end is None or end is not self._end.offset:
            self._end = _Known(end.to_json(), end)
        return self._end.text

    def getDefaultReadLimit(self) -> Any:
        """Spark 4.2 and later ask once. What is told is only a mark that there are limits: the options hold them."""
        return ReadMaxRows(self._options.max_offsets or 2**31 - 1) if self._options.has_limits else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._started().prepare_for_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What progress reports show as the latest offset (Spark 4.2 and later)."""
        found = self._started().log_ends
        return None if found is None else found.to_json()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        begin, self._reached = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begin == self._reached:
            return []  # Spark 4.0 and 4.1 tell a restarted query so, first of all, where its offset log ends
        return self._started().plan(begin, self._reached)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TubeMQInputPartition):
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
            self._stop_on_termination()
        return self._planner

    def _stop_on_termination(self) -> None:
        """Spark ends this process with SIGTERM when the query stops, and calls `stop` only if the process then
        unwinds.
        """
        atexit.register(self.stop)
        with suppress(ValueError):  # not the main thread: whoever runs us there stops us
            signal.signal(signal.SIGTERM, _exit)


def _exit(*_: object) -> None:
    # Spark may send the signal twice: a second one must not break into the good-byes.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
