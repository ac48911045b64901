# SPDX-License-Identifier: Apache-2.0
"""Counters of this process for monitoring. The driver's source process reports them with each micro-batch."""

from __future__ import annotations

from enum import Enum

from tubemq_spark.client import system
from tubemq_spark.client.runtime import PerProcess


class Count(Enum):
    """What is counted, by its key in reports."""

    RETRIES = "retries"  # attempts that were repeated after a failure or an answer that was not final
    CLAIM_WAITS = "claimWaits"  # waits for a partition that another consumer of the group held
    LOSSES = "losses"  # losses that option `failOnDataLoss=false` accepted
    LOST_ENTRIES = "lostEntries"  # index entries of these losses, where the range is known


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
            return {count.value: total for count, total in self._totals.items()}


COUNTERS = PerProcess(Counters)
