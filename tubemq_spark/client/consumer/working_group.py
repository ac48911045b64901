# SPDX-License-Identifier: Apache-2.0
"""Names of the consumer groups at the brokers that belong to the connector, not to a user.

The user's group is a record: whoever holds its partitions (`GroupClaims`) moves it only to positions that were
committed. A broker keeps one read cursor for each group and partition, and a seek moves the group. So everything else
happens in *working groups* beside it, whose positions mean nothing. The master does not know them: only the user's
group is registered there, and its permissions, filters and rate limits count for what the working groups read.

The sink with `effectivelyOnce` leaves marks of tasks as positions of groups (`task_mark`), and scans partitions in
others (`partition_scan`); commands of `tubemq-spark` read in temporary groups. A test compares all names with
docs/howto/monitoring.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from tubemq_spark.protocol.constants import IDENTITY_GROUP

TEMPORARY = "tubemq_cli_"
"""What the names of temporary groups of commands begin with. Brokers keep them until they were idle for weeks."""

_SINK = "spark_sink_"

OWN_GROUPS = f"{IDENTITY_GROUP}|{TEMPORARY}.+|{_SINK}.+|.+_spark_(read|batch|look)"
"""A regular expression for the whole names of all groups here."""
_OWN = re.compile(OWN_GROUPS)


class Purpose(str, Enum):
    """What a group of the connector is for, in words for users."""

    IDENTITY = "asks brokers who they are"
    COMMAND = "read by a command"
    READING = "read by Spark's tasks"
    SINK = "marks and searches of effectivelyOnce"


def stream_group(group: str) -> str:
    """Return the group in which the tasks of a streaming query read."""
    return f"{group}_spark_read"


def batch_group(group: str) -> str:
    """Return the group in which the tasks of batch reads read."""
    return f"{group}_spark_batch"


def look_group(group: str) -> str:
    """Return the group in which planners look at single positions, see `Visitor`."""
    return f"{group}_spark_look"


def sink_base(query: str) -> str:
    """Return what the names of a query's groups begin with; `query` is the id in its state file."""
    return f"{_SINK}{query}"


def ends_group(base: str) -> str:
    """Return the group in which a sink asks where partitions end."""
    return f"{base}_ends"


def scan_group(base: str, number: int) -> str:
    """Return a group in which tasks search for stored rows."""
    return f"{base}_scan_{number}"


def task_group(base: str, number: int) -> str:
    """Return a group whose positions are marks of tasks."""
    return f"{base}_task_{number}"


def own_groups(names: Iterable[str]) -> dict[str, Purpose]:
    """Return which of `names`, all groups of a cluster, belong to the connector."""
    return {name: _purpose(name) for name in names if _OWN.fullmatch(name)}


def _purpose(name: str) -> Purpose:
    if name == IDENTITY_GROUP:
        return Purpose.IDENTITY
    if name.startswith(TEMPORARY):
        return Purpose.COMMAND
    return Purpose.SINK if name.startswith(_SINK) else Purpose.READING
