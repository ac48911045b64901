# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a row by which users find it, and reasons without its data."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from tubemq_spark.peer_text import quoted
from tubemq_spark.sink.schema import Cells

_MOST = 48  # bytes of a cell


def described(cells: Cells) -> str:
    """Return the first bytes of the row's key, or else of its value, in brackets; nothing if both are null."""
    name, cell = ("value", cells.value) if cells.key is None else ("key", cells.key)
    return "" if cell is None else f" ({name} {_beginning(cell)})"


def _beginning(cell: bytes) -> str:
    """Return the first bytes of `cell` as a literal of Python: a text if they are UTF-8."""
    is_cut = len(cell) > _MOST
    first = cell[:_MOST]
    try:
        text = repr(codecs.getincrementaldecoder("utf-8")().decode(first, final=not is_cut))
    except UnicodeDecodeError:
        text = repr(first)
    return f"{text}…, {len(cell)} bytes" if is_cut else text


def without_cells(reason: str, cells: Cells) -> str:
    """Return `reason`, why the row can never be sent, with `…` for the texts of the row that it quotes."""
    for text in sorted(_quotable(cells), key=len, reverse=True):
        reason = reason.replace(text, "…")
    return reason


def _quotable(cells: Cells) -> Iterator[str]:
    if isinstance(cells.msg_time, int):
        yield f"{cells.msg_time} minutes"
    else:
        yield quoted(cells.msg_time or "")
    for text in (cells.msg_type, cells.inlong_group, cells.inlong_stream):
        yield quoted(text or "")
    for attributes in (cells.attributes, cells.inlong_attributes):
        for pair in dict(attributes or ()).items():
            yield from (quoted(text or "") for text in pair)
