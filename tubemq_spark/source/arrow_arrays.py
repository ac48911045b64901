# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays from Python values, without `pyarrow.array` and `pyarrow.scalar`.

Those import pandas if it is installed, even for a list of numbers. That costs each Python worker about 0.2 s of CPU
time and 40 MB when it starts, so the tasks build their arrays from buffers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol import speedups

if TYPE_CHECKING:
    from numpy import bool_, int32, int64, uint8
    from numpy.typing import NDArray

_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}  # type codes of `array`, by bits


def numbers(values: Iterable[int | None], kind: pa.DataType) -> pa.Array:
    """Return integers or moments (in the units of `kind`)."""
    known = list(values)
    data = pa.py_buffer(array(_CODES[kind.bit_width], [0 if value is None else value for value in known]))
    return pa.Array.from_buffers(kind, len(known), [_validity(known), data])


def booleans(values: Sequence[bool]) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(values: Sequence[str | None]) -> pa.StringArray:
    return _of_bytes([None if value is None else value.encode() for value in values], pa.string())


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    return _of_bytes(values, pa.binary())


def maps(values: Sequence[Mapping[str, str] | None], kind: pa.MapType) -> pa.MapArray:
    """Return maps of texts."""
    entries = [entry for value in values if value is not None for entry in value.items()]
    sizes = [None if value is None else len(value) for value in values]
    return maps_of(texts([key for key, _ in entries]), texts([value for _, value in entries]), sizes, kind)


def maps_of(keys: pa.Array, values: pa.Array, sizes: Sequence[int | None], kind: pa.MapType) -> pa.MapArray:
    """Return maps of neighbours in `keys` and `values`, of these sizes."""
    inside = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(sizes), lists(inside, sizes).buffers()[:2], children=[inside])


def lists(values: pa.Array, sizes: Sequence[int | None]) -> pa.ListArray:
    """Return lists of neighbours in `values`, of these sizes."""
    ends = pa.py_buffer(array("i", accumulate((size or 0 for size in sizes), initial=0)))
    return pa.Array.from_buffers(pa.list_(values.type), len(sizes), [_validity(sizes), ends], children=[values])


def slices(data: bytes | NDArray[uint8], starts: NDArray[int64], ends: NDArray[int64]) -> pa.BinaryArray:
    """Return `data[starts[n]:ends[n]]` for each n; they follow each other in `data`, with gaps."""
    count = max(0, 2 * len(starts) - 1)  # every second element is a gap
    bounds = np.zeros(max(1, 2 * len(starts)), np.int32)
    bounds[: 2 * len(starts) : 2], bounds[1::2] = starts, ends
    together = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return together.take(int64s(np.arange(0, count, 2)))


def gathered(parts: Sequence[tuple[bytes, NDArray[int64], NDArray[int64]]]) -> pa.BinaryArray:
    """Return `slices` of all parts, one after the other."""
    if speedups.compiled is None:
        return pa.concat_arrays([slices(*part) for part in parts])
    given = [(data, starts.tobytes(), ends.tobytes()) for data, starts, ends in parts]
    offsets, block = speedups.compiled.gather(given)
    values = pa.foreign_buffer(block.address, len(block), block)
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) // 4 - 1, [None, pa.py_buffer(offsets), values])


def int64s(values: NDArray[int64], valid: NDArray[bool_] | None = None) -> pa.Int64Array:
    """Return the values, null where they are not `valid`."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(values)])


def indexes(numbers: pa.Int32Array) -> NDArray[int32]:
    """Return numbers without nulls. `pyarrow.Array.to_numpy` would import pandas."""
    return np.frombuffer(numbers.buffers()[1], np.int32, len(numbers), 4 * numbers.offset)


def repeated(one: pa.Array, count: int) -> pa.Array:
    """Return the only element of `one`, `count` times."""
    return one.take(zeros(count))


def zeros(count: int) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


def _of_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(array("i", ends)), data])


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    return _bits([value is not None for value in values]) if None in values else None


def _bits(values: Sequence[bool]) -> pa.Buffer:
    """Return one bit for each value, the first in the lowest bit of the first byte."""
    digits = "".join("1" if value else "0" for value in reversed(values))
    return pa.py_buffer(int(digits or "0", 2).to_bytes(len(values) // 8 + 1, "little"))
