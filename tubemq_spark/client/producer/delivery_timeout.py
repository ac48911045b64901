"""Delivery timeout: how long the producer retries a record before it gives up."""

from __future__ import annotations

from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.producer_lifecycle import SendState


class DeliveryTimeout:
    """The records of one producer that failed and are not stored yet, on a clock that runs only while the producer
    does: the caller may pause for longer than `retry_for`, and meanwhile nothing is retried."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._failing: dict[PendingRecord, None] = {}  # the one that failed first comes first
        self._now = 0.0
        self._seen_at = settings.clock.monotonic()

    def __repr__(self) -> str:
        return f"<DeliveryTimeout of {len(self)} records>"

    def __len__(self) -> int:
        return len(self._failing)

    def resume(self) -> None:
        """Run the clock again. A short pause of the caller counts, and as much of a longer one."""
        self._advance(self._settings.timings.idle_producer_counts)

    def suspend(self) -> None:
        """Stop the clock, because the caller takes over."""
        self._advance(float("inf"))

    def now(self) -> float:
        self._advance(float("inf"))
        return self._now

    def watch(self, record: PendingRecord) -> None:
        """Start the timeout of a record that failed for the first time."""
        self._failing[record] = None

    def forget(self, record: PendingRecord) -> None:
        self._failing.pop(record, None)

    @property
    def left(self) -> float | None:
        """Seconds until the first record is given up; None if none failed."""
        for record in self._failing:
            assert record.failing_since is not None
            return max(0.0, record.failing_since + self._settings.retry_for - self._now)
        return None

    def expired(self) -> tuple[PendingRecord, float] | None:
        """Return a record that has failed for too long, and for how many seconds. One in flight may still arrive."""
        for record in self._failing:
            assert record.failing_since is not None
            elapsed = self._now - record.failing_since
            if elapsed < self._settings.retry_for:
                return None
            more = self._settings.timings.min_lookup_time if record.state is SendState.UNRESOLVED else 0.0
            if record.state is not SendState.IN_FLIGHT and elapsed >= self._settings.retry_for + more:
                return record, elapsed
        return None

    def _advance(self, at_most: float) -> None:
        now = self._settings.clock.monotonic()
        self._now += min(now - self._seen_at, at_most)
        self._seen_at = now
