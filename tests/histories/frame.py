"""A DataFrame of a batch read, as Spark uses it: planned once, and read as often as somebody wants its rows."""

from __future__ import annotations

import pickle

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.batch import TubeMQReader
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.schema import SPARK_SCHEMA

_OPTIONS = ("tubemq.", "subscribe", "assign")


class Frame:
    """Without a plan there are no rows."""

    def __init__(self) -> None:
        self._plan = pickle.dumps([])

    @property
    def partitions(self) -> list[Partition]:
        return [wanted.partition for task in self._tasks for wanted, _ in task.ranges]

    def plan(self, options: dict[str, str]) -> bool:
        """Of everything there is, with those of a stream's `options` that choose who and where. False when that failed:
        then there are no rows."""
        chosen = {name: value for name, value in options.items() if name.startswith(_OPTIONS)}
        self._plan = pickle.dumps([])
        try:
            reader = TubeMQReader({**chosen, "failOnDataLoss": "false"}, SPARK_SCHEMA)
            self._plan = pickle.dumps(list(reader.partitions()))
        except TubeMQError:
            return False
        return True

    def read(self) -> bool:
        """Reads all rows; False when that failed."""
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
