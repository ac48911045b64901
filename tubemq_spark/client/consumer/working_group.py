# SPDX-License-Identifier: Apache-2.0
"""Working groups: consumer groups at the brokers in which the connector seeks and fetches.

The user's group is a record: whoever holds its partitions (`GroupClaims`) moves it only to positions that were
committed. A broker keeps one read cursor for each group and partition, and a seek moves the group. So everything else
happens in groups beside it, whose positions mean nothing. The master does not know them: only the user's group is
registered there, and its permissions, filters and rate limits count for what the working groups read.
"""

from __future__ import annotations


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
    return f"{group}_look"
