"""Failures of brokers and partitions, counted for the circuit breaker."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from tubemq_spark.protocol.circuit_breaker import FailureStats, judge, judge_partition
from tubemq_spark.protocol.metadata import Partition


class BrokerHealth:
    """The trouble with brokers and partitions since their last success, counted by all producers of a session: each
    lives for a task only, and need not find out anew what others know. Safe to use from several threads."""

    def __init__(self) -> None:
        self.brokers: Mapping[int, FailureStats] = {}  # these two are replaced, never changed
        self.partitions: Mapping[Partition, FailureStats] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Troubles with brokers {self.brokers}, partitions {self.partitions}>"

    def of_broker(self, broker_id: int, kind: str) -> None:
        """`kind` is `lost`, `refused` or `full`; what comes while the broker rests is the same trouble still."""
        with self._lock:
            now = time.monotonic()
            counts = self.brokers.get(broker_id, FailureStats())
            if not counts.total or now >= judge({broker_id: counts}, 1, now)[broker_id].rest_until:
                counts = counts._replace(**{kind: getattr(counts, kind) + 1, "last": now})
                self.brokers = {**self.brokers, broker_id: counts}

    def of_partition(self, partition: Partition) -> None:
        with self._lock:
            now = time.monotonic()
            counts = self.partitions.get(partition, FailureStats())
            if not counts.total or now >= judge_partition(counts).rest_until:
                counts = counts._replace(failed=counts.failed + 1, last=now)
                self.partitions = {**self.partitions, partition: counts}

    def success(self, partition: Partition) -> None:
        """The partition, and so its broker, has stored something."""
        if (self.brokers or self.partitions) and (partition.broker_id in self.brokers or partition in self.partitions):
            with self._lock:
                self.brokers = {one: counts for one, counts in self.brokers.items() if one != partition.broker_id}
                self.partitions = {one: counts for one, counts in self.partitions.items() if one != partition}
