"""For how long messages fail before they are given up."""

from __future__ import annotations

import time

from tubemq_spark.client.producer.pending_record import PendingRecord
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.producer_lifecycle import SendState

_PAUSE = 1.0  # seconds in which nobody runs the producer that count all the same
_LOOKING = 3.0  # seconds that it takes at least to look for a message in doubt


class DeliveryTimeout:
    """The messages of one producer that failed and are not stored yet, by a clock that runs only as the producer does:
    who feeds it may pause for longer than it tries, and nothing can be tried meanwhile."""

    def __init__(self, retry_for: float) -> None:
        """`retry_for` is in seconds."""
        self._retry_for = retry_for
        self._failing: dict[PendingRecord, None] = {}  # the one that failed first is the first
        self._now = 0.0
        self._seen = time.monotonic()

    def __repr__(self) -> str:
        return f"<Patience with {len(self)} messages>"

    def __len__(self) -> int:
        return len(self._failing)

    def resume(self) -> None:
        """To be called when the producer is run again."""
        now = time.monotonic()
        self._now += min(now - self._seen, _PAUSE)
        self._seen = now

    def worked(self) -> None:
        """To be called before the producer is left: all the time since `resume` counts."""
        now = time.monotonic()
        self._now += now - self._seen
        self._seen = now

    def failed(self, message: PendingRecord, problem: TubeMQError) -> None:
        self.worked()
        message.failed(problem, self._now)
        self._failing[message] = None

    def stored(self, message: PendingRecord) -> None:
        self._failing.pop(message, None)

    @property
    def left(self) -> float | None:
        """Seconds until the message that failed first is given up; None when none failed."""
        for message in self._failing:
            assert message.failing_since is not None
            return max(0.0, message.failing_since + self._retry_for - self._now)
        return None

    def exhausted(self) -> tuple[PendingRecord, float] | None:
        """A message that has failed for too long, and for how many seconds; those on their way may still arrive."""
        for message in self._failing:
            assert message.failing_since is not None
            elapsed = self._now - message.failing_since
            if elapsed < self._retry_for:
                return None
            more = _LOOKING if message.state is SendState.IN_DOUBT else 0.0
            if message.state is not SendState.SENT and elapsed >= self._retry_for + more:
                return message, elapsed
        return None
