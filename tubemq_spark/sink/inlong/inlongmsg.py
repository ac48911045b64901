# SPDX-License-Identifier: Apache-2.0
"""InLongMsg packs of version 1, as DataProxy writes them for text protocols. Numbers are big-endian.

    pack    0x0F 1 created(8) groups(4) group… 0x0F 1
    group   size(2) attributes size(4) compressed(1) data; the size counts `compressed` too
    data    (size(4) body)…, maybe in snappy

wire: InLongMsg. `source/inlong/inlongmsg.py` reads all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tubemq_spark.sink.inlong.pack_format import (
    SET_BY_COLUMNS,
    SOME_TIME,
    PackFormat,
    PackGroup,
    fitting,
    ids,
    own_texts,
    with_times,
)
from tubemq_spark.sink.schema import Cells

_HEAD = struct.Struct(">BBqI")
_SHORT, _SIZE = struct.Struct(">H"), struct.Struct(">I")
_GROUP = struct.Struct(">IB")
_AROUND_GROUP = 40  # bytes at most, with the digits of its number of messages
_MAGIC = b"\x0f\x01"
_SEPARATORS = "&="


class InLongMsgFormat(PackFormat):
    """Rows with the same attributes are a group, which has them once."""

    def pack(self, groups: Sequence[PackGroup]) -> bytes:
        timed = with_times(groups)
        parts = [_HEAD.pack(*_MAGIC, timed[0][1], len(groups))]
        for group, created in timed:
            text = _group_text(group.cells, created, len(group.values))
            bodies: list[bytes] = [b""] * (2 * len(group.values))
            bodies[::2] = [_SIZE.pack(len(value)) for value in group.values]
            bodies[1::2] = group.values
            is_compressed = self.inside != "none"
            data = [self.compressed_inside(b"".join(bodies))] if is_compressed else bodies
            parts += (_SHORT.pack(len(text)), text, _GROUP.pack(1 + sum(map(len, data)), is_compressed), *data)
        parts.append(_MAGIC)
        return b"".join(parts)

    def group_text(self, cells: Cells) -> bytes:
        return _group_text(cells, SOME_TIME if cells.inlong_time is None else cells.inlong_time, 0)

    def sizes_around(self, group_text: bytes) -> tuple[int, int]:
        return _AROUND_GROUP + len(group_text), _SIZE.size


def _group_text(cells: Cells, created: int, count: int) -> bytes:
    group, stream = ids(cells, _SEPARATORS)
    attributes: dict[str, object] = {"groupId": group, "streamId": stream, "dt": created, "cnt": count}
    attributes |= own_texts(cells, SET_BY_COLUMNS, _SEPARATORS)
    return fitting(_java_text("&".join([f"{key}={text}" for key, text in attributes.items()])))


def _java_text(text: str) -> bytes:
    """Return `text` as `DataOutput.writeUTF` writes it, without its size.

    Zero takes two bytes; a character beyond U+FFFF is two surrogates of three bytes each.
    """
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = (unit for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le")))
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
