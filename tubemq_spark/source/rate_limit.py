"""How much a micro-batch may take: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and `maxTriggerDelay`."""

from __future__ import annotations

import time
from collections.abc import Callable

from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.range_planner import entries_between, limited


class RateLimit:
    """The read limits of one run of a query. `clock` is monotonic, in seconds."""

    def __init__(
        self, least: int | None, most: int | None, max_delay: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`least` and `most` are in index entries; `max_delay`, in seconds, is how long `least` may hold back."""
        self._least = least
        self._most = most
        self._max_delay = max_delay
        self._clock = clock
        self._served: Store | None = None  # what rounding left over, last
        self._begun: Positions | None = None  # where the batch begins whose end was told last
        self._last_batch: float | None = None  # when it was told first

    def end(self, start: Positions, ends: Positions, *, to_the_end: bool) -> Positions:
        """Where a batch from `start` ends when the stores do at `ends`; `start` itself when it is to wait for more.

        A run `to_the_end` waits for nothing, for nothing more is to come. The first batch of a run does not wait
        either, as in Spark's Kafka source.
        """
        if self._least is not None and not to_the_end and self._waits(start, ends, self._least):
            return start
        if self._begun != start:
            self._begun, self._last_batch = start, self._clock()
        if self._most is None:
            return ends
        taken, self._served = limited(start, ends, self._most, self._served)
        return taken

    def _waits(self, start: Positions, ends: Positions, least: int) -> bool:
        if self._last_batch is None or self._clock() - self._last_batch >= self._max_delay:
            return False
        return entries_between(start, ends) < least
