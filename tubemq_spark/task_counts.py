# SPDX-License-Identifier: Apache-2.0
"""What tasks count, in the program that called `register`: Spark's accumulators carry it there.

Tried on Spark 4.0 to 4.3: the class of a registered data source may hold an accumulator, and what its readers and
writers add in tasks arrives when a task has succeeded. Spark Connect has no accumulators; a source that Spark finds by
itself has none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from tubemq_spark.client.counters import COUNTERS
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.shipping import Ships

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

Totals = Mapping[str, Mapping[str, int]]
"""By the id of the streaming query, "" for other jobs: totals by the keys of `Count`."""


class _Sum(AccumulatorParam[Totals]):
    def zero(self, value: Totals) -> Totals:
        return {}

    def addInPlace(self, value1: Totals, value2: Totals) -> Totals:
        # In a new object: Spark adds in a thread of its own.
        return {**value1, **{query: Counter(value1.get(query)) + Counter(counts) for query, counts in value2.items()}}


class CountsInTasks(Ships):
    """A reader or writer whose tasks report what they count, if `register` gave the data source an accumulator."""

    totals: Accumulator[Totals] | None = None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Report what this process counts meanwhile: Spark's worker process runs one task at a time."""
        before = COUNTERS().totals(of_tasks=True)
        try:
            yield
        finally:
            context = TaskContext.get()
            if self.totals is not None and context is not None:
                counts = Counter(COUNTERS().totals(of_tasks=True))
                counts.subtract(before)
                self.totals.add({context.getLocalProperty("sql.streaming.queryId") or "": +counts})


_accumulators: PerProcess[dict[str, Accumulator[Totals]]] = PerProcess(dict)  # by the id of Spark's application


def accumulator_of(spark: SparkSession) -> Accumulator[Totals] | None:
    """Return the accumulator of the session's application, or None where Python programs have none."""
    with suppress(Exception):  # Connect, and platforms that keep the SparkContext from users, each with its own error
        context = spark.sparkContext
        known = _accumulators()
        if context.applicationId not in known:
            known[context.applicationId] = context.accumulator({}, _Sum())
        return known[context.applicationId]
    return None


def task_counts(query: str = "") -> dict[str, int]:
    """Return what the tasks of the streaming query with this id have counted, or those of other jobs: totals by the
    keys of `Count`, since `register`. A task that failed or was killed reports nothing."""
    return dict(sum((Counter(one.value.get(query)) for one in _accumulators().values()), Counter()))
