# SPDX-License-Identifier: Apache-2.0
"""Times, positions, partitions and attributes as users type them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import duration
from tubemq_spark.protocol import message
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import partition_from_text

_ENTRIES = re.compile(r"-(\d{1,18})")
_MOST_DIGITS = 12  # of a position; a number with more is a time

EXPECTED = (
    "earliest, latest, a time (2026-11-22T10:00, 1795341600000, or 15m, 2h, 3d ago), -N for the last N entries of the "
    f"store, or a position (a multiple of {UNIT})"
)

Place = int | datetime
"""A time, a position in bytes, or a negative number of entries before the end."""

EARLIEST, LATEST = 0, sys.maxsize  # positions: those outside of a store become its beginning or end


def parse_place(text: str, name: str) -> Place:
    """Return the place that `text` means; raise `ConfigError` that names the option `name`. A time without a zone is
    UTC; an age such as `15m` counts back from now."""
    bare = text.strip()
    if bare.lower() in ("earliest", "latest"):
        return EARLIEST if bare.lower() == "earliest" else LATEST
    if last := _ENTRIES.fullmatch(bare):
        return -int(last[1]) or LATEST
    if bare.isdecimal() and message.parse_msg_time(bare) is not None:
        raise ConfigError(f"{name} is {text!r}, a yyyyMMddHHmm: write it in the form 2026-01-31T12:00")
    if bare.isdecimal() and len(bare) <= _MOST_DIGITS:
        if int(bare) % UNIT:
            raise ConfigError(f"{name} is {text!r}: a position is a multiple of {UNIT}, the size of an index entry")
        return int(bare)
    try:
        if not bare.isdecimal():
            with suppress(ValueError):
                return datetime.now(timezone.utc) - timedelta(seconds=duration(bare))
        return parse_time(text)
    except OverflowError:
        raise ConfigError(f"{name} is {text!r}, which is before all times") from None
    except ValueError as cause:
        raise ConfigError(f"{name} is {text!r}; expected {EXPECTED} ({cause})") from None


def parse_time(text: str) -> datetime:
    """Return the moment, in UTC if the text has no zone. Raises as `parse_moment`."""
    moment = message.parse_moment(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def parse_partition(text: str, topic: str, name: str) -> Partition:
    """Return the partition that `brokerId:partitionId` means."""
    try:
        return partition_from_text(topic, text.strip())
    except ValueError:
        raise ConfigError(f"{name} is {text!r}; expected brokerId:partitionId, for example 1:0") from None


def parse_attributes(texts: Iterable[str] | None) -> dict[str, str]:
    """Return the attributes that `--attribute KEY=VALUE` names; raise `ConfigError` for others."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"--attribute {text!r} is not KEY=VALUE")
        if key in found:
            raise ConfigError(f"--attribute {key!r} is given twice")
        found[key] = value
    return found


def place_of(partition: Partition) -> dict[str, object]:
    """Return a partition as the commands print it in JSON."""
    return {"topic": partition.topic, "broker_id": partition.broker_id, "partition": partition.partition_id}
