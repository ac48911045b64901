# SPDX-License-Identifier: Apache-2.0
"""Names of the consumer groups at the brokers that belong to the connector, not to a user.

The user's group is a record: whoever holds its partitions (`GroupClaims`) moves it only to positions that were
committed. A broker keeps one read cursor for each group and partition, and a seek moves the group. So everything else
happens in *working groups* beside it, whose positions mean nothing. The master does not know them: only the user's
group is registered there, and its permissions, filters and rate limits count for what the working groups read.

The sink keeps *bookmarks* as positions of groups, see `bookmarks`, `partition_scan` and `task_mark`; commands of
`tubemq-spark` read in temporary groups. A test compares all names with docs/howto/monitoring.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from tubemq_spark.protocol.constants import IDENTITY_GROUP

TEMPORARY = "tubemq_cli_"
"""What the names of temporary groups of commands begin with. Brokers keep them until they were idle for weeks."""

_SINK = "spark_sink_"  # with `effectivelyOnce` and without a name of the user's
_LOOK = "_look"
_BOOKMARKS = "0|1|plan|look|look_.+|task_[0-9]+"  # the end of a name

OWN_GROUPS = f"{IDENTITY_GROUP}|{TEMPORARY}.*|{_SINK}.*|.*_(read|batch|look|look_.*|plan|0|1|task_[0-9]+)"
"""A regular expression for the whole names of all groups here. A user's group may have such a name, too."""


class Purpose(str, Enum):
    """What a group of the connector is for, in words for users."""

    IDENTITY = "asks brokers who they are"
    COMMAND = "read by a command"
    READING = "read by Spark's tasks"
    BOOKMARKS = "bookmarks of effectivelyOnce"


def working_groups(group: str) -> set[str]:
    """Return all working groups of a group."""
    return {stream_group(group), batch_group(group), look_group(group)}


def stream_group(group: str) -> str:
    """Return the group in which the tasks of a streaming query read."""
    return f"{group}_read"


def batch_group(group: str) -> str:
    """Return the group in which the tasks of batch reads read."""
    return f"{group}_batch"


def look_group(group: str) -> str:
    """Return the group in which planners look at single positions, see `Visitor`."""
    return f"{group}{_LOOK}"


def sink_base(digest: str) -> str:
    """Return what the names of a query's bookmark groups begin with, where the user names none."""
    return f"{_SINK}{digest}"


def bookmark_group(base: str, batch: int) -> str:
    """Return the group whose positions are the bookmarks of a batch."""
    return f"{base}_{batch % 2}"


def plan_group(base: str) -> str:
    """Return the group that tells whether an attempt of a batch has begun."""
    return f"{base}_plan"


def scan_group(base: str, which: int | str) -> str:
    """Return a group in which tasks search for stored rows, or for a topic the one that asks masters for partitions."""
    return f"{base}{_LOOK}_{which}"


def task_group(base: str, number: int) -> str:
    """Return a group whose positions are marks of tasks."""
    return f"{base}_task_{number}"


def own_groups(names: Iterable[str]) -> dict[str, Purpose]:
    """Return which of `names`, all groups of a cluster, belong to the connector.

    A name that ends as a working group does not suffice, because a user may have chosen it: another group must show
    whose working group it is. Batch reads leave no position of the user's group, but one of its look group.
    """
    known = set(names)
    readers = known | {name.removesuffix(_LOOK) for name in known}
    working = {name for reader in readers for name in working_groups(reader)}
    sinks = {name.removesuffix(plan_group("")) for name in known if name.endswith(plan_group(""))}
    sinks = {base for base in sinks if {bookmark_group(base, 0), bookmark_group(base, 1)} <= known}
    bookmarks = re.compile(f"({'|'.join(map(re.escape, sinks))})_({_BOOKMARKS})") if sinks else None
    found: dict[str, Purpose] = {}
    for name in known:
        if name == IDENTITY_GROUP:
            found[name] = Purpose.IDENTITY
        elif name.startswith(TEMPORARY):
            found[name] = Purpose.COMMAND
        elif name.startswith(_SINK) or (bookmarks is not None and bookmarks.fullmatch(name)):
            found[name] = Purpose.BOOKMARKS
        elif name in working:
            found[name] = Purpose.READING
    return found
