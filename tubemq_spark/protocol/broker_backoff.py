# SPDX-License-Identifier: Apache-2.0
"""Backoff of brokers and partitions: how long one that failed gets no records, and when it is tried again.

The circuit of a broker or partition is closed while it works. A failure opens it: nothing is sent during a pause that
doubles with each further failure. Then it is half open: one record at a time is tried. One that is stored closes it.

Records with a choice, which may go to any partition, go elsewhere for a hundred times as long, and up to two minutes: a
broker that takes a record and never answers keeps it, and the micro-batch, until the request times out. Records without
a choice wait for three seconds at most, so that they are stored soon after the broker is back.

TubeMQ's Java client counts failures of several kinds, and leaves a broker out for 15 to 120 s, or 50 s if it refused,
with at most 30 % of the brokers at a time (wire: ProducerManager, DefaultBrokerRcvQltyStats, TubeClientConfig).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from tubemq_spark.protocol.metadata import Partition

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 3.0  # seconds
_TIMES_WITH_CHOICE, _MAX_PAUSE_WITH_CHOICE = 100, 120.0

Endpoint = int | Partition
"""The id of a broker, or a partition."""


class Circuit(Enum):
    CLOSED = auto()  # it takes records
    OPEN = auto()  # it gets none
    HALF_OPEN = auto()  # it gets one record at a time


class Backoff(NamedTuple):
    """The `failures` of a broker or partition since it stored a record, the last one at the time `since`, in seconds on
    one clock."""

    failures: int = 0
    since: float = 0.0

    def until(self, *, has_choice: bool) -> float:
        """Return when the next record may be tried, one that `has_choice` or not."""
        if not self.failures:
            return 0.0
        pause = _FIRST_PAUSE * 2.0 ** min(self.failures - 1, 30)
        if has_choice:
            return self.since + min(pause * _TIMES_WITH_CHOICE, _MAX_PAUSE_WITH_CHOICE)
        return self.since + min(pause, _MAX_PAUSE)

    def circuit(self, now: float, *, has_choice: bool) -> Circuit:
        """Return the state of the circuit for such records."""
        if not self.failures:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self.until(has_choice=has_choice) else Circuit.HALF_OPEN

    def after_failure(self, now: float) -> Backoff:
        """Return the backoff after another failure. One during the pause is the same still: it comes from records that
        were in flight already."""
        return self if now < self.until(has_choice=False) else Backoff(self.failures + 1, now)
