"""Failures of brokers and partitions, counted for the circuit breaker of all producers of a session."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.protocol.circuit_breaker import FailureStats, breaker_states, partition_breaker_state
from tubemq_spark.protocol.metadata import Partition


class Failures(NamedTuple):
    """Brokers and partitions that failed and have stored nothing since."""

    brokers: Mapping[int, FailureStats]
    partitions: Mapping[Partition, FailureStats]


NO_FAILURES = Failures({}, {})


class BrokerHealth:
    """The failures that all producers of a session count together, because each lives for one task only. Safe to use
    from several threads."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.failures = NO_FAILURES  # replaced, never changed
        self._clock = clock
        self._lock = threading.Lock()

    def broker_failed(self, broker_id: int, kind: str) -> None:
        """Count a failure; `kind` is `lost`, `refused` or `full`. A failure during the backoff is the same one still:
        it comes from records that were already in flight."""
        with self._lock:
            now, (brokers, partitions) = self._clock.monotonic(), self.failures
            stats = brokers.get(broker_id, FailureStats())
            if not stats.total or now >= breaker_states({broker_id: stats}, 1, now)[broker_id].backoff_until:
                stats = stats._replace(**{kind: getattr(stats, kind) + 1, "last": now})
                self.failures = Failures({**brokers, broker_id: stats}, partitions)

    def partition_failed(self, partition: Partition) -> None:
        with self._lock:
            now, (brokers, partitions) = self._clock.monotonic(), self.failures
            stats = partitions.get(partition, FailureStats())
            if not stats.total or now >= partition_breaker_state(stats).backoff_until:
                stats = stats._replace(failed=stats.failed + 1, last=now)
                self.failures = Failures(brokers, {**partitions, partition: stats})

    def succeeded(self, partition: Partition) -> None:
        """Forget the failures of `partition` and its broker, because it has stored a record."""
        brokers, partitions = self.failures
        if partition.broker_id in brokers or partition in partitions:
            with self._lock:
                brokers, partitions = self.failures
                brokers = {one: stats for one, stats in brokers.items() if one != partition.broker_id}
                partitions = {one: stats for one, stats in partitions.items() if one != partition}
                self.failures = Failures(brokers, partitions) if brokers or partitions else NO_FAILURES
