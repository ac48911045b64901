# SPDX-License-Identifier: Apache-2.0
"""Counters of this process for monitoring. The driver's source process reports them with each micro-batch."""

from __future__ import annotations

from enum import Enum

from tubemq_spark.client import system
from tubemq_spark.client.runtime import PerProcess


class Count(Enum):
    """What is counted: its key in reports, and its text in metrics."""

    RETRIES = "retries", "Attempts that the driver's source repeated"
    CLAIM_WAITS = "claimWaits", "Waits of the driver for partitions that other consumers held"
    LOSSES = "losses", "Losses that the driver found and failOnDataLoss=false accepted"
    LOST_ENTRIES = "lostEntries", "Index entries of these losses, where the range is known"

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text


class Counters:
    """Totals since the process began. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = system.Lock()
        self._totals = dict.fromkeys(Count, 0)

    def add(self, count: Count, amount: int = 1) -> None:
        with self._lock:
            self._totals[count] += amount

    def totals(self) -> dict[str, int]:
        """Return all totals by their keys."""
        with self._lock:
            return {count.key: total for count, total in self._totals.items()}


COUNTERS = PerProcess(Counters)
