# SPDX-License-Identifier: Apache-2.0
"""Packs of InLong with many rows: which rows share one, and when it is sent.

Rows share a pack if they have the same topic, key, message type, time, attributes, and the same group and stream of
InLong. Their other attributes of InLong may differ: neighbours with equal ones are a group of the pack. Readers of
InLongMsg find groups by their attributes, so a row with the attributes of an earlier group begins a new pack: order is
kept. In protobuf each row has its attributes.

A pack is sent when it has the most rows or bytes, when rows come and it has waited for long, when a row with the same
key begins another one, and at the end of the task. Rows with an explicit partition have packs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from tubemq_spark.client.clock import Clock
from tubemq_spark.client.producer.producer import MAX_AROUND_BODY, Producer
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.inlong.pack_format import PackFormat, PackGroup
from tubemq_spark.sink.options import PackLimits
from tubemq_spark.sink.row_encoder import EncodedRow
from tubemq_spark.sink.schema import Cells

_MAX_OPEN = 256  # packs that a task fills at a time; with more, the oldest is sent
_MAX_ATTRIBUTES = MAX_AROUND_BODY // 2  # bytes; with more, a pack as long as the topic allows could be refused
_MAX_GROUP_TEXT = 60_000  # bytes; a number of rows still fits
_AROUND_PACK = 16  # bytes in a pack besides its groups and rows

Key = tuple[object, ...]
"""What the rows of a pack have in common."""


@dataclass
class _OpenPack:
    encoded: EncodedRow  # of the first row
    first_row: int
    opened_at: float
    rows: int = 0
    size: int = 0  # bytes
    groups: list[PackGroup] = field(default_factory=list)


class Packs:
    """The packs that one task fills."""

    def __init__(self, form: PackFormat, limits: PackLimits, clock: Clock, producer: Producer) -> None:
        self._form = form
        self._limits = limits
        self._clock = clock
        self._producer = producer
        self._open: dict[Key, _OpenPack] = {}  # in the order in which they were opened
        self._of_key: dict[tuple[str, bytes], Key] = {}  # the pack that is open for a topic and a key

    def add(self, row: int, encoded: EncodedRow, cells: Cells, values: Sequence[bytes]) -> int:
        """Add rows that differ only in their `values`, and return how many: all or none.

        `encoded` and `cells` are those of the first one, which was encoded alone first: so its errors are its own. None
        are added that may not fit into a pack, that need packs of their own, or that have an unknown topic; the rows
        before them with the same key are sent then. Raise as `Producer.send` for rows before them.
        """
        group = self._form.group_text(cells)
        most = self._most(encoded, group)
        if max(map(len, values)) > most - sum(self._form.sizes_around(group)):
            self._keep_order(encoded, None)
            return 0
        shared = encoded._replace(body=b"", format_attributes=b"")
        key: Key = (*shared, cells.inlong_group, cells.inlong_stream, cells.inlong_time is None)
        self._keep_order(encoded, key)
        at = 0
        while at < len(values):
            pack = self._open.get(key)
            if pack is None:
                pack = self._begin(key, encoded, row + at)
            at += self._fill(pack, most, group, cells, values[at : at + self._limits.rows - pack.rows])
            if at < len(values) or pack.rows >= self._limits.rows:
                self._close(key)
        return at

    def _most(self, encoded: EncodedRow, group: bytes) -> int:
        """Return how many bytes a pack of such rows may have, besides `_AROUND_PACK`; 0 if they can be in none."""
        is_long = len(encoded.attributes + encoded.format_attributes) > _MAX_ATTRIBUTES or len(group) > _MAX_GROUP_TEXT
        if encoded.target is not None or is_long:
            return 0
        try:
            limit = self._producer.limit(encoded.topic)
        except ConfigError:
            return 0
        return min(self._limits.size, self._form.max_unpacked(limit)) - _AROUND_PACK

    def _keep_order(self, encoded: EncodedRow, key: Key | None) -> None:
        """Send the open pack with the record key of `encoded`, unless it is the pack `key`."""
        other = None if encoded.key is None else self._of_key.get((encoded.topic, encoded.key))
        if other is not None and other != key:
            self._close(other)

    def send_due(self) -> None:
        """Send the packs whose first row has waited for long."""
        until = self._clock.monotonic() - self._limits.wait
        for key in list(takewhile(lambda one: self._open[one].opened_at <= until, self._open)):
            self._close(key)

    def send_all(self) -> None:
        for key in list(self._open):
            self._close(key)

    def _begin(self, key: Key, encoded: EncodedRow, row: int) -> _OpenPack:
        if len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        pack = self._open[key] = _OpenPack(encoded, row, self._clock.monotonic())
        if encoded.key is not None:
            self._of_key[encoded.topic, encoded.key] = key
        return pack

    def _fill(self, pack: _OpenPack, most: int, group: bytes, cells: Cells, values: Sequence[bytes]) -> int:
        """Add the first of `values` to `pack`, and return how many. An empty pack has room for one."""
        around, each = self._form.sizes_around(group)
        is_new = not pack.groups or pack.groups[-1].text != group
        if is_new and around and any(one.text == group for one in pack.groups):
            return 0
        sizes = accumulate((len(value) + each for value in values), initial=pack.size + around * is_new)
        next(sizes)
        fitting = list(takewhile(lambda size: size <= most, sizes))
        if not fitting:
            return 0
        if is_new:
            pack.groups.append(PackGroup(cells, [], group))
        pack.groups[-1].values.extend(values[: len(fitting)])
        pack.size = fitting[-1]
        pack.rows += len(fitting)
        return len(fitting)

    def _close(self, pack_key: Key) -> None:
        pack = self._open.pop(pack_key)
        topic, _, attributes, msg_type, msg_time, key, *_ = pack.encoded
        if key is not None:
            self._of_key.pop((topic, key), None)
        body = self._form.compressed(self._form.pack(pack.groups))
        attributes += self._form.pack_attributes(pack.groups)
        self._producer.send(topic, body, attributes, msg_type, msg_time, pack.first_row, key=key)
