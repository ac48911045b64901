# SPDX-License-Identifier: Apache-2.0
"""Python sources that do nothing: what remains is the cost of Spark itself.

`NothingSource` offers rows without reading them from anywhere, in 3 input partitions. Option ``file``: the file's size
is the number of rows offered, so a program offers more by appending bytes. Options ``rate`` and ``since``: so many rows
per second since a moment (seconds since 1970). Without options it never has a row.

Spark passes each question more data if a source takes read limits, as ours does, so this one takes them too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

_PARTITIONS = 3
_SCHEMA = pa.schema([("value", pa.binary())])


class _Rows(InputPartition):
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


class NothingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _NothingReader(dict(self.options))


class _NothingReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._file = options.get("file")
        self._rate = float(options.get("rate", 0))
        self._since = float(options.get("since", 0))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._file is not None:
            return {"rows": os.path.getsize(self._file)}
        return {"rows": max(0, int((time.time() - self._since) * self._rate)) if self._rate else 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        begin, count = start["rows"], end["rows"] - start["rows"]
        cuts = [begin + count * part // _PARTITIONS for part in range(_PARTITIONS + 1)]
        return [_Rows(cuts[part], cuts[part + 1]) for part in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        bodies = [str(number).encode() for number in range(partition.begin, partition.end)]
        yield pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], schema=_SCHEMA)


class ReadySource(DataSource):
    """Yields the Arrow batch of option ``file`` again and again, without work: ``rows`` rows, in batches of at most
    ``batch`` rows."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> Any:
        return from_arrow_schema(_stored(self.options["file"]).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        return _ReadyReader(dict(self.options))


class _ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)] * _PARTITIONS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ready = _stored(self._options["file"])
        ready = ready.slice(0, int(self._options.get("batch", len(ready))))
        left = int(self._options["rows"]) // _PARTITIONS
        while left:
            yield (some := ready.slice(0, left))
            left -= len(some)


def _stored(file: str) -> pa.RecordBatch:
    with pa.OSFile(file) as source:
        return pa.ipc.open_file(source).get_batch(0)
