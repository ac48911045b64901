# SPDX-License-Identifier: Apache-2.0
"""A DataFrame of a batch read: planned once, then read any number of times, as Spark does."""

from __future__ import annotations

import pickle

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.batch import TubeMQReader
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.schema import SPARK_SCHEMA

_OPTIONS = ("tubemq.", "subscribe", "assign")


class Frame:
    """One batch read. It has no rows until it is planned."""

    def __init__(self) -> None:
        self._plan = pickle.dumps([])

    @property
    def partitions(self) -> list[Partition]:
        return [wanted.partition for task in self._tasks for wanted, _ in task.ranges]

    def plan(self, options: dict[str, str]) -> bool:
        """Plan a read of all messages, with those of a stream's `options` that choose cluster, group and topics. Return
        False if that failed; the frame then has no rows."""
        chosen = {name: value for name, value in options.items() if name.startswith(_OPTIONS)}
        self._plan = pickle.dumps([])
        try:
            reader = TubeMQReader({**chosen, "failOnDataLoss": "false"}, SPARK_SCHEMA)
            self._plan = pickle.dumps(list(reader.partitions()))
        except TubeMQError:
            return False
        return True

    def read(self) -> bool:
        """Read all rows. Return False if that failed."""
        try:
            for task in self._tasks:
                for _ in task.read():
                    pass
        except TubeMQError:
            return False
        return True

    @property
    def _tasks(self) -> list[TubeMQInputPartition]:
        return list(pickle.loads(self._plan))
