# SPDX-License-Identifier: Apache-2.0
"""Times, positions, partitions and attributes as users type them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol import message
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

_AGE = re.compile(r"(\d+)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ENTRIES = re.compile(r"-(\d{1,18})")
_PARTITION = re.compile(r"(\d{1,10}):(\d{1,10})")
_MOST_DIGITS = 12  # of a position; a number with more is a time

EXPECTED = (
    "earliest, latest, a time (2026-11-22T10:00, 1795341600000, or 15m, 2h, 3d ago), -N for the last N entries, or a "
    f"position (a multiple of {UNIT})"
)


@dataclass(frozen=True)
class Place:
    """Where to read: exactly one field is set. `entries` counts back from the end; `position` is in bytes."""

    word: str | None = None  # earliest or latest
    moment: datetime | None = None
    entries: int | None = None
    position: int | None = None


EARLIEST, LATEST = Place(word="earliest"), Place(word="latest")


def parse_place(text: str, name: str) -> Place:
    """Return the place that `text` means; raise `ConfigError` that names the option `name`."""
    bare = text.strip()
    if bare.lower() in ("earliest", "latest"):
        return Place(word=bare.lower())
    if last := _ENTRIES.fullmatch(bare):
        return Place(entries=int(last[1]))
    if bare.isdecimal() and message.parse_msg_time(bare) is not None:
        raise ConfigError(f"{name} is {text!r}, a yyyyMMddHHmm: write it in the form 2026-01-31T12:00")
    if bare.isdecimal() and len(bare) <= _MOST_DIGITS:
        if int(bare) % UNIT:
            raise ConfigError(f"{name} is {text!r}: a position is a multiple of {UNIT}, the size of an index entry")
        return Place(position=int(bare))
    return Place(moment=parse_moment(text, name, EXPECTED))


def parse_moment(
    text: str, name: str, expected: str = "a time: 2026-11-22T10:00, 1795341600000, or 15m, 2h, 3d ago"
) -> datetime:
    """Return an aware time. A time without a zone is UTC; an age such as `15m` counts back from now."""
    if age := _AGE.fullmatch(text.strip()):
        try:
            return datetime.now(timezone.utc) - timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
        except (OverflowError, ValueError):
            raise ConfigError(f"{name} is {text!r}, which is before all times") from None
    try:
        moment = message.parse_moment(text)
    except ValueError as cause:
        raise ConfigError(f"{name} is {text!r}; expected {expected} ({cause})") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def parse_partition(text: str, topic: str, name: str) -> Partition:
    """Return the partition that `brokerId:partitionId` means."""
    found = _PARTITION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{name} is {text!r}; expected brokerId:partitionId, for example 1:0")
    return Partition(int(found[1]), topic, int(found[2]))


def parse_attributes(texts: Iterable[str], name: str) -> dict[str, str]:
    """Return `KEY=VALUE` texts as attributes; raise `ConfigError` that names the option."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"{name} {text!r} is not KEY=VALUE")
        if key in found:
            raise ConfigError(f"{name} {key!r} is given twice")
        found[key] = value
    return found


def place_of(partition: Partition) -> dict[str, object]:
    """Return a partition as the commands print it in JSON."""
    return {"topic": partition.topic, "broker_id": partition.broker_id, "partition": partition.partition_id}
