# SPDX-License-Identifier: Apache-2.0
"""Pack format: how rows become a pack of InLong. What both formats share is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tubemq_spark.client.clock import SYSTEM_CLOCK
from tubemq_spark.compression import check_available, compress, max_plain
from tubemq_spark.peer_text import quoted
from tubemq_spark.sink.schema import NOT_UTF8, BadRowError, Cells
from tubemq_spark.sink.value_format import ValueFormat

# The attributes in a pack that columns give, under their present names and those of old senders, and the number of
# messages.
SET_BY_COLUMNS = frozenset({"groupId", "bid", "streamId", "tid", "dt", "t", "cnt"})
# Those of a message, by which readers open its body.
OF_MESSAGES = (
    *("msgEnType", "version", "inlongGroupId", "inlongStreamId", "proxyName", "packTime", "msgCount", "srcLength"),
    "compressType",
)
_REPLACED = frozenset(OF_MESSAGES)
_MAX_ATTRIBUTES = 65_535  # bytes, the longest text that Java writes


@dataclass
class PackGroup:
    """Rows of a pack that differ only in their `values`; `cells` are those of one of them. `text` is that of
    `PackFormat.group_text`, if it is known."""

    cells: Cells
    values: list[bytes]
    text: bytes = b""


@dataclass(frozen=True)
class PackFormat(ValueFormat, ABC):
    """A format whose bodies are packs. `inside` is the compression of InLong itself, which its own readers know."""

    inside: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inside != "none":
            check_available(self.inside)

    @property
    def replaced_attributes(self) -> frozenset[str]:
        return _REPLACED

    def body(self, value: bytes, cells: Cells) -> bytes:
        return self.pack([PackGroup(cells, [value])])

    def attributes(self, value: bytes, cells: Cells) -> bytes:
        return self.pack_attributes([PackGroup(cells, [value])])

    def msg_type(self, cells: Cells) -> tuple[str, str | None]:
        return "inlong_stream", cells.inlong_stream  # as DataProxy does

    @abstractmethod
    def pack(self, groups: Sequence[PackGroup]) -> bytes:
        """Return a pack before `compression`. Raise `BadRowError` for rows that no pack can hold."""

    @abstractmethod
    def group_text(self, cells: Cells) -> bytes:
        """Return bytes in which rows of different groups differ, as many as all but the values take."""

    @abstractmethod
    def sizes_around(self, group_text: bytes) -> tuple[int, int]:
        """Return how many bytes a group takes, and each of its rows, besides the values. A group of no bytes is none:
        rows that differ may follow each other in any order."""

    def pack_attributes(self, groups: Sequence[PackGroup]) -> bytes:
        """Return the attributes of a pack's message, behind a comma, or nothing."""
        return b""

    def max_unpacked(self, limit: int) -> int:
        """Return how many bytes a pack may have before its compression if the body has `limit` at most."""
        return max_plain(self.inside, self.max_uncompressed(limit))

    def compressed_inside(self, data: bytes) -> bytes:
        return data if self.inside == "none" else compress(self.inside, data)


SOME_TIME = 10**12
"""Stands for the present time where only its length matters, in milliseconds."""


def now() -> int:
    """Return the time in milliseconds since the epoch."""
    return int(SYSTEM_CLOCK.time() * 1000)


def with_times(groups: Sequence[PackGroup]) -> list[tuple[PackGroup, int]]:
    present = now()
    return [(one, present if one.cells.inlong_time is None else one.cells.inlong_time) for one in groups]


def fitting(text: bytes) -> bytes:
    """Return the encoded attributes; raise `BadRowError` if they are too long."""
    if len(text) > _MAX_ATTRIBUTES:
        raise BadRowError(
            "inlong_attributes",
            f"{len(text)} bytes of attributes, but a pack holds {_MAX_ATTRIBUTES}: write long texts into the value",
        )
    return text


def ids(cells: Cells, separators: str) -> tuple[str, str]:
    """Return the group and the stream of a row; raise `BadRowError` for a name that has one of the `separators`."""
    return (
        _name("inlong_group", cells.inlong_group, separators),
        _name("inlong_stream", cells.inlong_stream, separators),
    )


def own_texts(cells: Cells, replaced: Collection[str], separators: str = "") -> dict[str, str]:
    """Return the attributes of a row without those that are `replaced`; raise `BadRowError` as `ids`."""
    column = "inlong_attributes"
    own: dict[str, str] = {}
    for key, attribute in dict(cells.inlong_attributes or ()).items():
        if key in replaced:
            continue
        if not key:
            raise BadRowError(column, "an attribute has an empty key: give it a name, or leave it out")
        if attribute is None:
            raise BadRowError(column, f"attribute {quoted(key)} is null; packs have only texts, so leave it out")
        text = _text(column, f"attribute {quoted(key)}", attribute, separators)
        own[_text(column, "the key", key, separators)] = text
    return own


def _name(column: str, name: str | None, separators: str) -> str:
    if not name:
        raise BadRowError(column, f"it is {'null' if name is None else 'empty'}: write the name that InLong has for it")
    return _text(column, "the name", name, separators)


def _text(column: str, what: str, text: str, separators: str) -> str:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadRowError(column, NOT_UTF8) from None
    if any(one in text for one in separators):
        found = " or ".join(map(repr, separators))
        raise BadRowError(
            column,
            f"{what} {quoted(text)} contains {found}, which InLong uses as separators: encode it, for example with "
            "url_encode",
        )
    return text
