# SPDX-License-Identifier: Apache-2.0
"""Counters of this process for monitoring. The driver's source process reports them with each micro-batch; those of
tasks reach the user's program by `task_counts`."""

from __future__ import annotations

from enum import Enum

from tubemq_spark.client import system
from tubemq_spark.client.runtime import PerProcess


class Count(Enum):
    """What is counted: its key in reports, its text in metrics, and whether tasks alone count it."""

    RETRIES = "retries", "Attempts that were repeated"
    CLAIM_WAITS = "claimWaits", "Waits for partitions that other consumers held"
    LOSSES = "losses", "Losses that were found and that failOnDataLoss=false accepted"
    LOST_ENTRIES = "lostEntries", "Index entries of these losses, where the range is known"
    FETCHES = "fetches", "Fetches that succeeded", True
    FETCHED_BYTES = "fetchedBytes", "Bytes of their messages, attributes and bodies", True
    RATE_LIMITS = "rateLimits", "Times that the cluster demanded a wait before the next fetch", True
    CORRUPT = "corrupt", "Corrupt messages that were skipped or kept", True
    RESENT = "resent", "Messages that were sent again", True
    UNRESOLVED = "unresolved", "Sent messages that were not answered, and that must not be sent again at once", True

    def __init__(self, key: str, text: str, tasks_only: bool = False) -> None:
        self.key = key
        self.text = text
        self.tasks_only = tasks_only


class Counters:
    """Totals since the process began. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = system.Lock()
        self._totals = dict.fromkeys(Count, 0)

    def add(self, count: Count, amount: int = 1) -> None:
        with self._lock:
            self._totals[count] += amount

    def totals(self, *, of_tasks: bool = False) -> dict[str, int]:
        """Return totals by their keys: all `of_tasks`, or those that the driver counts too."""
        with self._lock:
            return {one.key: total for one, total in self._totals.items() if of_tasks or not one.tasks_only}


COUNTERS = PerProcess(Counters)
