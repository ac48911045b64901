# SPDX-License-Identifier: Apache-2.0
"""Writes receipts: one Parquet file for each batch says where each of its rows is stored.

A task packs its receipts while rows are acknowledged. Spark carries them to the driver in the task's commit message,
and the driver's commit writes the file. Readers see a whole file or none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tubemq_spark.client.producer.record_batch import RecordPlaces
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.output_dir import OutputDir

_log = logging.getLogger(__name__)

_ROW = [
    pa.field("spark_row", pa.int64()),
    pa.field("topic", pa.string()),
    pa.field("broker_id", pa.int32()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),  # an index position in bytes, 28 a message, as in the source's rows
    pa.field("message_id", pa.int64()),
]
_PACKED = pa.schema([*_ROW, pa.field("append_time", pa.timestamp("ms", tz="UTC"))])
_ROWS = pa.schema(
    [pa.field("spark_partition", pa.int32()), *_ROW, pa.field("append_time", pa.timestamp("us", tz="UTC"))]
)
SCHEMA = pa.schema([pa.field("spark_id", pa.string()), pa.field("spark_batch", pa.int64()), *_ROWS])
_KEY = ["topic", "spark_partition", "spark_row"]  # stamps are unique in each topic
_FEW_VALUES = ["spark_id", "topic", "broker_id", "partition"]

_PARTITION = b"spark_partition"  # in the metadata of packed receipts, because all rows of a task share it
_SLICE = 4096  # rows that are packed at a time, and kept as Python values until then
_GROUP = 131_072  # rows of a row group, which is in memory as Arrow has it
_CODEC = "zstd" if pa.Codec.is_available("zstd") else None
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a name that neither hides a file nor leads out of the folder


class Receipts:
    """The receipts of one task, packed as they come: about 15 bytes a row."""

    def __init__(self, spark_partition: int) -> None:
        self._columns: list[list[Any]] = [[] for _ in _PACKED]
        self._schema = _PACKED.with_metadata({_PARTITION: str(spark_partition)})
        self._sink = pa.BufferOutputStream()
        self._stream = pa.ipc.new_stream(self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC))

    def add(self, rows: Sequence[int | None], places: RecordPlaces) -> None:
        """Add where rows of the task, which are numbers, are stored."""
        (broker_id, topic, partition), message_ids, offsets, times = places
        same = ([one] * len(rows) for one in (topic, broker_id, partition))
        for column, more in zip(self._columns, (rows, *same, offsets, message_ids, times), strict=True):
            column += more
        if len(self._columns[0]) >= _SLICE:
            self._pack()

    def packed(self) -> bytes:
        """Return all receipts for `write_receipts`. To be called once; nothing can be added afterwards."""
        if self._columns[0]:
            self._pack()
        self._stream.close()
        return self._sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _pack(self) -> None:
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, self._schema, strict=True)]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._columns = [[] for _ in _PACKED]


def check_folder(folder: str) -> None:
    """Create the folder if it is missing. Raise `ConfigError` if its scheme is unknown, or it cannot be written to."""
    OutputDir(folder, "receipts").check()


def write_receipts(folder: str, spark_id: str, batch: int | None, parts: Iterable[bytes]) -> str:
    """Write the file of a batch, and return its path; `parts` are the packed receipts of the tasks.

    `batch` is None for a batch write, which only has an id. Rows are sorted by task partition and row. If the batch was
    committed before, its file is replaced: the new file keeps rows that only the old one has, and what only the old one
    knows of the same message. Raise `ConfigError` if the folder cannot be read or written to, `ValueError` for an id
    that cannot name a file.
    """
    if not _ID.fullmatch(spark_id):
        raise ValueError(f"{spark_id!r} cannot name a file")
    name = f"{spark_id}.parquet" if batch is None else f"{spark_id}-{batch:010d}.parquet"
    try:
        files = OutputDir(folder, "receipts")
        old_file = files.read(name)
        old_tasks = {} if old_file is None else _tasks_of(old_file, files.shown(name))
        files.write(name, _file(spark_id, batch, _tasks(parts, old_tasks)))
        return files.shown(name)
    except ConfigError as problem:
        raise ConfigError(f"the rows are stored, but not their receipts: {problem}") from None


def _tasks(parts: Iterable[bytes], old_tasks: Mapping[int, pa.Table]) -> Iterator[pa.Table]:
    """Yield the sorted rows of one task after the other. `old_tasks` has those of an earlier commit, by partition."""
    packed: dict[int, list[bytes]] = {}
    for part in parts:  # the rows stay packed until it is their turn
        number = int(pa.ipc.open_stream(part).schema.metadata[_PARTITION])
        packed.setdefault(number, []).append(part)
    for number in sorted(packed.keys() | old_tasks.keys()):
        tables = [pa.ipc.open_stream(part).read_all() for part in packed.get(number, ())]
        rows = pa.concat_tables([_PACKED.empty_table(), *tables])
        partition = pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows)
        rows = pa.Table.from_arrays([partition, *rows.columns], _ROWS.names).cast(_ROWS)
        if number in old_tasks:
            rows = _merged(rows, old_tasks[number])
        yield rows.sort_by("spark_row")


def _file(spark_id: str, batch: int | None, tables: Iterable[pa.Table]) -> pa.Buffer:
    """Return a Parquet file of SCHEMA, made in memory so that no error can leave half a file behind."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression=_CODEC or "none", use_dictionary=_FEW_VALUES) as writer:
        for rows in _groups(tables):
            ids = pa.repeat(pa.scalar(spark_id, pa.string()), rows.num_rows)
            batches = pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows)
            writer.write_table(pa.Table.from_arrays([ids, batches, *rows.columns], schema=SCHEMA))
    return sink.getvalue()


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about _GROUP rows, because Spark may have many small tasks or few large ones."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        for start in range(0, table.num_rows, _GROUP):
            held.append(table.slice(start, _GROUP))
            count += held[-1].num_rows
            if count >= _GROUP:
                yield pa.concat_tables(held)
                held, count = [], 0
    if held:
        yield pa.concat_tables(held)


# A batch that is committed again


def _tasks_of(file: pa.Buffer, name: str) -> dict[int, pa.Table]:
    """Return the rows of an earlier commit by task partition; none if the file is not one of receipts."""
    try:
        table = pq.ParquetFile(pa.BufferReader(file)).read()
        is_one_of_receipts = table.schema.equals(SCHEMA)
        columns = ", ".join(table.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        _log.warning("[receipts-unreadable] replacing %s, which cannot be read: %s", name, problem)
        return {}
    if not is_one_of_receipts:
        _log.warning(
            "[receipts-other-columns] replacing %s, which has other columns than receipts: %s",
            name,
            columns,
        )
        return {}
    rows = table.select(_ROWS.names)
    tasks: dict[int, pa.Table] = {}
    start = 0
    # In the order of the file, where the rows of a task are together.
    for task in rows["spark_partition"].value_counts().to_pylist():
        tasks[task["values"]] = rows.slice(start, task["counts"])
        start += task["counts"]
    return tasks


def _merged(rows: pa.Table, before: pa.Table) -> pa.Table:
    """Return all rows of both. `rows` wins where both have a row, with what only `before` knows of the same message."""
    both = rows.join(before, _KEY, join_type="full outer", right_suffix=" before", use_threads=False)
    now = {name: both[name] for name in _ROWS.names}
    then = {name: both[f"{name} before"] for name in _ROWS.names if name not in _KEY}
    # Message ids are unique only within a broker, so the broker and the partition are compared too.
    same = pc.is_null(now["message_id"])
    same = pc.or_(same, pc.fill_null(pc.equal(now["message_id"], then["message_id"]), False))
    for name in ("broker_id", "partition"):
        same = pc.and_(same, pc.fill_null(pc.equal(now[name], then[name]), False))
    usable = pc.or_(same, pc.is_null(now["broker_id"]))  # each row has a broker; one without is only in `before`
    columns = [
        pc.if_else(usable, pc.coalesce(now[name], then[name]), now[name]) if name in then else now[name]
        for name in _ROWS.names
    ]
    return pa.Table.from_arrays(columns, schema=_ROWS)
