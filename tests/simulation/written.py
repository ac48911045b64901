# SPDX-License-Identifier: Apache-2.0
"""What is written: the rows that the query wants, the attempts of its tasks, and the copies that brokers store."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.promises import granted_by
from tests.simulation.servers import RETENTION, Message
from tests.simulation.world import Process
from tests.without_spark.sink import Cells
from tubemq_spark.compression import decompress
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.options import PACK_CODECS

_BODY = re.compile(rb"[bwx]\d+/t\d+/r\d+;x*\.")  # of a row, within a pack
_PACK = b"\x0f\x01"  # the begin of a pack of InLong

LONGEST_SEND = 10.0  # seconds

Origin = tuple[str, int]
"""A batch: `batch` and its number, or `write` and the number of a batch write."""


def is_bad(body: bytes | None) -> bool:
    """Return True for a row that can never be sent."""
    return body is None or body.startswith(b"x")


class Wanted(NamedTuple):
    """A row that the query or a batch write gives to the connector."""

    origin: Origin
    task: int
    number: int
    cells: Cells

    def __str__(self) -> str:
        kind, number = self.origin
        return f"row {self.number} of task {self.task} of {kind} {number}"


@dataclass
class Attempt:
    """An attempt of a task that writes. `stamped` and `once` are its options."""

    process: Process
    run: str
    origin: Origin
    task: int
    stage: int
    number: int
    at: float
    rows: Sequence[Cells]
    stamped: bool
    once: bool
    send_again: bool
    most_bytes: int  # in flight
    bodies: frozenset[bytes | None] = field(init=False)
    is_speculative: bool = False  # another attempt of the same stage ran as well
    is_of_repeated_stage: bool = False  # another attempt of the stage had an attempt of the task as well
    had_rows_at: float | None = None  # when it got its first rows

    def __post_init__(self) -> None:
        self.bodies = frozenset(row["value"] for row in self.rows)

    def __str__(self) -> str:
        return f"attempt {self.number} of stage {self.stage} in {self.process}"


@dataclass
class Copy:
    """A message that has a row. `held_for` and `late_for` are those of the connection."""

    message: Message
    attempt: Attempt | None
    held_for: float
    late_for: float
    index: int = 0  # in a pack

    def __str__(self) -> str:
        late = f", {self.held_for:.1f} s after its send" if self.held_for > 0.1 else ""
        return (
            f"at {self.message.at:.3f} s at {self.message.position} of {self.message.partition} by {self.attempt}{late}"
        )


@dataclass
class Entry:
    """All rows with one body in one topic, and all messages that ever had it."""

    topic: str
    body: bytes
    origin: Origin
    rows: list[Wanted] = field(default_factory=list)  # none if the batch has other tasks in the next attempt
    copies: list[Copy] = field(default_factory=list)

    @property
    def live(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.message.lost is None]

    def __str__(self) -> str:
        return f"{self.body[:24].decode('latin-1')} ({self.rows[0] if self.rows else self.origin})"


class Plan(NamedTuple):
    """What the topics had when a run began to plan a batch, and when it had planned it."""

    at: float
    could_mark: bool  # a store of the topics holds enough messages, and held them when the batch was first planned
    until: float = 0.0


def attributes_of(message: Message) -> dict[str, str]:
    parts = (part.partition("=") for part in message.header.decode("latin-1").split(","))
    return {name: value for name, _, value in parts if name}


def bodies_in(message: Message, attributes: Mapping[str, str]) -> Iterable[bytes]:
    """Return the bodies of the rows of a message: of one, or of those in a pack."""
    body, codec = message.body, attributes.get("spark_compression")
    if codec is not None:
        body = decompress(codec, body)
    if (packed_with := attributes.get("compressType", "0")) != "0":
        body = decompress(PACK_CODECS[int(packed_with)], body)
    if body[:2] == _PACK or "msgCount" in attributes:
        return _BODY.findall(body)
    return [body]


@granted_by("limits.md", "a proxy may deliver it, or a broker that has read it handles it late")
def is_late(copy: Copy) -> bool:
    """Return True if the broker handled the send long after it answered another request."""
    return copy.late_for > LONGEST_SEND


def places_of(entry: Entry) -> dict[Partition, list[tuple[float, int, int]]]:
    """Return when and where the copies were stored, by partition, but for those that a crash removed and late ones.

    The time comes first, because a broker that lost its disk gives positions again.
    """
    found: dict[Partition, list[tuple[float, int, int]]] = defaultdict(list)
    for copy in entry.copies:
        if copy.message.lost in (None, RETENTION) and not is_late(copy):
            found[copy.message.partition].append((copy.message.at, copy.message.position, copy.index))
    return found
