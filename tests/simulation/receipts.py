# SPDX-License-Identifier: Apache-2.0
"""The invariant of receipts: the file of a committed batch tells the truth, and loses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tests.simulation.promises import BrokenError, granted_by
from tests.simulation.written import Origin, attributes_of, bodies_in, is_bad
from tests.without_spark.sink import Cells
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit import Written

if TYPE_CHECKING:
    from tests.simulation.writing_promises import Writing

_KEY, _MESSAGE = ("topic", "spark_partition", "spark_row"), ("broker_id", "partition", "message_id")


class Receipts:
    """The receipts of all batches; `_before` are those of the last commit of each."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._schedule = writing, writing.schedule
        self._before: dict[Origin, list[dict[str, Any]]] = {}

    def check(self, origin: Origin, tasks: Sequence[Sequence[Cells]], written: Sequence[Written]) -> None:
        """The file of a batch names each stored row once, and at that place is a message with its body."""
        folder = self._schedule.receipts
        assert folder is not None
        # A batch that is committed again has other rows if its source has lost some; the file keeps the old ones, too.
        is_again = self._writing.commits[origin] > 1
        is_changed = origin in self._writing.changed or (is_again and bool(self._schedule.truth.losses))
        if not written or (is_changed and not any(tasks)):
            return
        kind, batch = origin
        name = f"{self._writing.query_id}-{batch:010d}.parquet" if kind == "batch" else f"{written[0].id}.parquet"
        file = Path(folder, name)
        if not file.exists():
            raise BrokenError("receipts_true", f"{kind} {batch} is committed, and there is no file {name}")
        rows = pq.read_table(file).to_pylist()
        shown = Counter((row["spark_partition"], row["spark_row"] & 0xFFFFFFFF) for row in rows)
        wanted = {(task, n) for task, of in enumerate(tasks) for n, row in enumerate(of) if not is_bad(row["value"])}
        # Of equal rows, those that are found give their numbers to others.
        is_loose = self._schedule.shuffled or self._schedule.setting.extra["equal"] or is_changed
        if (shown.keys() != wanted and not is_loose) or not wanted <= shown.keys() | (wanted if is_loose else set()):
            raise BrokenError(
                "receipts_true",
                f"the receipts of {kind} {batch} lack {sorted(wanted - shown.keys())[:5]} and name "
                f"{sorted(shown.keys() - wanted)[:5]} besides",
            )
        if not self._is_mixed(origin) and len(rows) != len(wanted) and not is_changed:
            raise BrokenError(
                "receipts_true", f"the receipts of {kind} {batch} have {len(rows)}, not {len(wanted)} rows"
            )
        for row in rows:
            self._receipt_true(origin, tasks, row)
        now = {tuple(row[name] for name in _KEY): row for row in rows}
        for before in self._before.get(origin, ()):
            kept = now.get(tuple(before[name] for name in _KEY), {})
            is_same = all(kept.get(name) == before[name] for name in _MESSAGE)
            lost = [name for name, value in before.items() if value is not None and kept.get(name) is None]
            if lost and (is_same or not kept):
                raise BrokenError("receipts_true", f"the second commit of {kind} {batch} loses {lost} of {before}")
        self._before[origin] = rows

    @granted_by("limits.md", "the file of receipts may contain the messages of both attempts")
    def _is_mixed(self, origin: Origin) -> bool:
        """Return True if the commit of an earlier run may have written a file with rows in another order."""
        runs = {attempt.run for attempt in self._writing.attempts_of(origin)}
        return self._schedule.shuffled and (self._writing.commits[origin] > 1 or len(runs) > 1)

    def _receipt_true(self, origin: Origin, tasks: Sequence[Sequence[Cells]], row: Mapping[str, Any]) -> None:
        partition = Partition(row["broker_id"], row["topic"], row["partition"])
        of_task = tasks[row["spark_partition"]] if row["spark_partition"] < len(tasks) else []
        number = row["spark_row"] & 0xFFFFFFFF
        if origin in self._writing.changed or number >= len(of_task):
            bodies = {entry.body for entry in self._writing.of_batch[origin]}
        elif self._schedule.shuffled:
            bodies = {one["value"] for one in of_task}
        else:
            bodies = {of_task[number]["value"]}
        there = [
            message
            for message in self._schedule.truth.of(partition)
            if message.message_id == row["message_id"]
            and bodies.intersection(bodies_in(message, attributes_of(message)))
        ]
        if not there or (row["offset"] is not None and all(one.position != row["offset"] for one in there)):
            raise BrokenError(
                "receipts_true",
                f"the receipts of {origin[0]} {origin[1]} name row {number} of task {row['spark_partition']} as "
                f"message {row['message_id']} at {row['offset']} of {partition}, where it is not",
            )
