"""What this process remembers of the runs of queries. All of it can be found out anew; that takes time."""

from __future__ import annotations

from collections import OrderedDict

from tubemq_spark.client.process_caches import empty_after_fork
from tubemq_spark.sink.stored_rows import StoredRows
from tubemq_spark.sink.task_context import WriteTask


class RunCache:
    """The first batch that this process has seen of each run, for no other run has tried the later ones; and what
    earlier runs have stored of that first one, by topic."""

    _MOST = 100

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._known: OrderedDict[tuple[str | None, str | None], tuple[int, dict[str, StoredRows]]] = OrderedDict()

    def is_later(self, task: WriteTask) -> bool:
        """Whether `task` is of a later batch than the first that was seen of its run."""
        if task.run is None:
            return False
        first, found = self._of(task)
        if task.batch > first:
            found.clear()
        return task.batch > first

    def found(self, task: WriteTask) -> dict[str, StoredRows]:
        """By topic, for the first batch of the task's run; to be filled."""
        return {} if task.run is None else self._of(task)[1]

    def _of(self, task: WriteTask) -> tuple[int, dict[str, StoredRows]]:
        known = self._known.setdefault((task.id, task.run), (task.batch, {}))
        self._known.move_to_end((task.id, task.run))
        while len(self._known) > self._MOST:
            self._known.popitem(last=False)
        return known


RUNS = RunCache()
empty_after_fork(RUNS.forget)
