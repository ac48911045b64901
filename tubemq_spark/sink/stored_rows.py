"""An index of the rows that earlier attempts of a batch have stored, in bounded memory (an external merge sort).

`StoredRows` keeps 64 bytes for each row, in sorted runs of a quarter of a million rows. Further runs go to temporary
files and are merged in the end. So the index needs some tens of megabytes at most, whatever the number of rows, and
time in proportion to it. `StoredRowsOfTask` is the part of one task, and returns each stored row once.
"""

from __future__ import annotations

import mmap
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.client.producer.send_queue import RecordMetadata
from tubemq_spark.protocol.metadata import Partition

RUN_LENGTH = 1 << 18
"""The number of rows in memory before they are sorted and moved to a file."""

_NO_POSITION = -1
_COLUMNS = ("task", "digest", "row", "partition", "message", "position")
_CODES: Sequence[Literal["q", "Q"]] = ("q", "Q", "q", "q", "q", "q")  # of `array`, for each column
_VIEWS: Sequence[Literal["q", "Q"]] = (*_CODES, "q", "q")  # and for the sorted pairs of task and row number


class _Run:
    """Rows sorted by task, digest and row number, and pairs of task and row number, sorted; no row occurs twice.

    The columns are views of 8 bytes a row, into memory or into an unnamed file.
    """

    def __init__(self, columns: Sequence[memoryview]) -> None:
        casts = [column.cast(code) for column, code in zip(columns, _VIEWS, strict=True)]
        self.tasks, self.digests, self.rows, self.partitions, self.messages, self.positions = casts[:6]
        self.number_tasks, self.numbers = casts[6:]

    def __len__(self) -> int:
        return len(self.tasks)

    def entries(self) -> Iterator[tuple[int, ...]]:
        return zip(self.tasks, self.digests, self.rows, self.partitions, self.messages, self.positions, strict=True)


def _sorted_run(rows: pa.Table) -> _Run:
    rows = _sorted_once(rows, ["task", "digest", "row"])
    numbers = _sorted_once(rows.select(["task", "row"]), ["task", "row"])
    return _Run([memoryview(_bytes_of(column)) for column in [*rows.columns, *numbers.columns]])


def _merged(runs: Sequence[_Run]) -> _Run:
    """Return a run in a temporary file, with all rows of `runs`."""
    entries = merge(*(run.entries() for run in runs))
    numbers = merge(*(zip(run.number_tasks, run.numbers, strict=True) for run in runs))
    # The file has room for repetitions, too.
    sizes = [8 * sum(map(len, runs))] * len(_CODES) + [8 * sum(len(run.numbers) for run in runs)] * 2
    with tempfile.TemporaryFile(prefix="tubemq-spark-") as file:
        file.truncate(sum(sizes))
        whole = memoryview(mmap.mmap(file.fileno(), sum(sizes)))
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    columns = [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    views = [column.cast(code) for column, code in zip(columns, _VIEWS, strict=True)]
    counts = [_fill(views[:6], entries, 3), _fill(views[6:], numbers, 2)]
    return _Run([column[: 8 * counts[number >= 6]] for number, column in enumerate(columns)])


def _fill(columns: Sequence[Any], entries: Iterable[tuple[int, ...]], key_length: int) -> int:
    """Write the entries whose key differs from that of the entry before, and return how many these are."""
    count, last = 0, None
    for entry in entries:
        key = entry[:key_length]
        if key == last:
            continue
        last = key
        for column, value in zip(columns, entry, strict=True):
            column[count] = value
        count += 1
    return count


class StoredRows:
    """The rows of a batch that earlier attempts have stored in a topic, by task."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._partitions: dict[Partition, int] = {}  # and the number that stands for each in the runs
        self._fresh = _new_columns()
        self.tasks: set[int] = set()
        """The numbers of the tasks that have stored rows."""

    def add(self, task: int, row: int, digest: str, stored: RecordMetadata) -> None:
        """Add a row with its digest of 16 hex digits; a row that is added again counts once."""
        number = self._partitions.setdefault(stored.partition, len(self._partitions))
        position = _NO_POSITION if stored.offset is None else stored.offset
        values = (task, int(digest, 16), row, number, stored.message_id, position)
        for column, value in zip(self._fresh, values, strict=True):
            column.append(value)
        self.tasks.add(task)
        if len(self._fresh[0]) >= RUN_LENGTH:
            self._runs.append(_merged([self._fresh_run()]))

    def of(self, task: int) -> StoredRowsOfTask:
        """Return the rows of one task."""
        if task not in self.tasks:
            return StoredRowsOfTask()
        if len(self._fresh[0]):
            self._runs.append(self._fresh_run())
        if len(self._runs) > 1:
            self._runs = [_merged(self._runs)]
        return StoredRowsOfTask(self._runs[0], list(self._partitions), task) if self._runs else StoredRowsOfTask()

    def _fresh_run(self) -> _Run:
        fresh, self._fresh = self._fresh, _new_columns()
        return _sorted_run(pa.table({name: _as_arrow(column) for name, column in zip(_COLUMNS, fresh, strict=True)}))


class StoredRowsOfTask:
    """The rows of one task that earlier attempts have stored in a topic."""

    def __init__(self, run: _Run | None = None, partitions: Sequence[Partition] = (), task: int = 0) -> None:
        self._run = run = _Run([memoryview(b"")] * len(_VIEWS)) if run is None else run
        self._partitions = partitions
        self._low, self._high = bisect_left(run.tasks, task), bisect_right(run.tasks, task)
        self._numbers = bisect_left(run.number_tasks, task), bisect_right(run.number_tasks, task)
        self._taken = bytearray(self._high - self._low)
        self._next: dict[int, int] = {}  # equal row to try next, by the index of the first one
        self.unmatched = self._high - self._low
        """How many stored rows were not taken."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, row: int, digest: str) -> tuple[int, RecordMetadata] | None:
        """Return the row number of an equal stored row, and where it is stored; return no stored row twice."""
        run, wanted = self._run, int(digest, 16)
        first = bisect_left(run.digests, wanted, self._low, self._high)
        last = bisect_right(run.digests, wanted, first, self._high)
        if first == last:
            return None
        at = bisect_left(run.rows, row, first, last)
        if at == last or run.rows[at] != row or self._taken[at - self._low]:
            at = self._first_left(first, last)
        if at == last:
            return None
        self._taken[at - self._low] = 1
        self.unmatched -= 1
        position = None if run.positions[at] == _NO_POSITION else run.positions[at]
        return run.rows[at], RecordMetadata(self._partitions[run.partitions[at]], run.messages[at], position, None)

    def free_number(self, row: int) -> int:
        """Return a number for a row that is not stored: its own, unless a stored row has that number."""
        numbers, (low, high) = self._run.numbers, self._numbers
        while (at := bisect_left(numbers, row, low, high)) < high and numbers[at] == row:
            row += 1 << 32
        return row

    def _first_left(self, first: int, last: int) -> int:
        """Return the first of equal rows that was not taken, or `last`. All calls together visit each row once."""
        at = self._next.get(first, first)
        while at < last and self._taken[at - self._low]:
            at += 1
        if last - first > 1:
            self._next[first] = at
        return at


def _new_columns() -> list[array[int]]:
    return [array(code) for code in _CODES]


def _as_arrow(column: array[int]) -> Any:
    kind = pa.uint64() if column.typecode == "Q" else pa.int64()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _bytes_of(column: Any) -> bytes:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(values, pa.ChunkedArray):  # older releases of pyarrow
        values = pa.concat_arrays(values.chunks)
    start = values.offset * 8
    return values.buffers()[1].to_pybytes()[start : start + 8 * len(values)]  # type: ignore[no-any-return]


def _sorted_once(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return `rows` sorted by `keys`, without those whose keys equal those of the row before."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in keys]))
    if rows.num_rows < 2:
        return rows
    same = None
    for key in keys:
        column = rows[key].combine_chunks()
        equal = pc.equal(column[1:], column[:-1])
        same = equal if same is None else pc.and_(same, equal)
    return rows.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))
