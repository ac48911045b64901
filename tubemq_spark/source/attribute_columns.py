# SPDX-License-Identifier: Apache-2.0
"""The attributes of many messages as columns, without a Python object for each of them.

`protocol.message.decode_attributes` is the specification; `tests/source/test_attribute_columns.py` compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol.message import (
    COMPRESSION_KEY,
    MILLIS_KEY,
    MSG_TIME_KEY,
    MSG_TYPE_KEY,
    Attributes,
    parse_millis,
    parse_msg_time,
)
from tubemq_spark.source import arrow_arrays
from tubemq_spark.source.arrow_arrays import indexes, int64s, maps_of, slices
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP

if TYPE_CHECKING:
    from numpy import bool_, int64, uint8
    from numpy.typing import NDArray

_COMMA, _EQUALS = b",="


class AttributeColumns(NamedTuple):
    """One element for each header: what `Attributes` has of one message."""

    own: pa.MapArray
    msg_type: pa.StringArray
    msg_time: pa.TimestampArray


def columns_of(attributes: Sequence[Attributes]) -> AttributeColumns:
    return AttributeColumns(
        arrow_arrays.maps([found.own for found in attributes], ATTRIBUTES),
        arrow_arrays.texts([found.msg_type for found in attributes]),
        arrow_arrays.numbers([found.msg_time for found in attributes], TIMESTAMP),
    )


def count_attributes(headers: pa.BinaryArray) -> NDArray[int64]:
    """Return how many attributes each header may have, 0 for an empty one."""
    begins, ends, data = _texts(headers)
    commas = np.flatnonzero(data == _COMMA)
    counts = np.searchsorted(commas, ends) - np.searchsorted(commas, begins)
    return counts + (begins < ends)


def decode_headers(headers: pa.BinaryArray, zone: tzinfo) -> AttributeColumns | None:
    """Return the attributes in `headers`. Return None if one has bytes that are not UTF-8, or names a codec: such
    messages need more work."""
    try:
        headers.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return None
    begins, ends, data = _texts(headers)
    commas = np.flatnonzero(data == _COMMA)
    is_filled = begins < ends
    # The parts between the commas, in their order
    starts = np.sort(np.concatenate((begins[is_filled], commas + 1)), kind="stable")
    stops = np.sort(np.concatenate((commas, ends[is_filled])), kind="stable")
    is_part = starts < stops
    starts, stops = starts[is_part], stops[is_part]
    header = np.searchsorted(ends, starts, "right")
    signs = np.append(np.flatnonzero(data == _EQUALS), len(data))
    middles = np.minimum(signs[np.searchsorted(signs, starts)], stops)  # a part without a sign is a key
    keys = slices(data, starts, middles).dictionary_encode()
    values = slices(data, np.minimum(middles + 1, stops), stops).view(pa.string())
    names = keys.dictionary.to_pylist()
    if COMPRESSION_KEY.encode() in names:
        return None
    named = indexes(keys.indices)

    def parts_with(key: str) -> NDArray[int64]:
        encoded = key.encode()
        return np.flatnonzero(named == names.index(encoded)) if encoded in names else np.zeros(0, np.int64)

    types, timed = parts_with(MSG_TYPE_KEY), parts_with(MSG_TIME_KEY)
    moments, is_moment = _parsed(values, timed, lambda text: parse_msg_time(text, zone))
    timed, moments = timed[is_moment], moments[is_moment]
    is_own = np.ones(len(starts), np.bool_)
    is_own[types] = is_own[timed] = False
    own = _firsts(np.flatnonzero(is_own), header * len(names) + named)
    counts = np.bincount(header[own], minlength=len(headers)).tolist()
    texts = keys.dictionary.view(pa.string()).take(keys.indices).take(int64s(own)), values.take(int64s(own))
    type_at, has_type = _first_in(header[types], types, len(headers))
    time, has_time = _first_in(header[timed], moments, len(headers))
    millis = parts_with(MILLIS_KEY)
    if len(millis):
        millis = _firsts(millis, header)
        added, is_usual = _parsed(values, millis, parse_millis)
        time[header[millis[is_usual]]] += 1000 * added[is_usual]
    return AttributeColumns(
        maps_of(*texts, [count or None for count in counts], ATTRIBUTES),
        values.take(int64s(type_at, has_type)),
        pa.Array.from_buffers(TIMESTAMP, len(time), int64s(time, has_time).buffers()),
    )


def _texts(headers: pa.BinaryArray) -> tuple[NDArray[int64], NDArray[int64], NDArray[uint8]]:
    """Return where each header begins and ends in the data, which begins with the first one."""
    _, bounds, data = headers.buffers()
    places = np.frombuffer(bounds, np.int32, len(headers) + 1, 4 * headers.offset).astype(np.int64)
    found = np.frombuffer(data, np.uint8, places[-1]) if places[-1] else np.zeros(0, np.uint8)
    return places[:-1], places[1:], found


def _parsed(
    values: pa.StringArray, parts: NDArray[int64], parse: Callable[[str], int | None]
) -> tuple[NDArray[int64], NDArray[bool_]]:
    """Return the numbers in the values of some parts, and for which of them `parse` has returned one."""
    texts = values.take(int64s(parts)).dictionary_encode()
    known = [parse(text) for text in texts.dictionary.to_pylist()]
    each = indexes(texts.indices)
    parsed, is_parsed = [one or 0 for one in known], [one is not None for one in known]
    return np.array(parsed, np.int64)[each], np.array(is_parsed, bool)[each]


def _firsts(parts: NDArray[int64], keys: NDArray[int64]) -> NDArray[int64]:
    """Return `parts` without those whose key an earlier one has."""
    ordered = np.sort(keys[parts])
    if not (ordered[1:] == ordered[:-1]).any():
        return parts
    _, firsts = np.unique(keys[parts], return_index=True)
    return parts[np.sort(firsts)]


def _first_in(headers: NDArray[int64], values: NDArray[int64], count: int) -> tuple[NDArray[int64], NDArray[bool_]]:
    """Return the first of the values in each of `count` headers, and whether there is one."""
    found, is_found = np.zeros(count, np.int64), np.zeros(count, bool)
    found[headers[::-1]] = values[::-1]  # the last assignment to an element counts
    is_found[headers] = True
    return found, is_found
