"""Sample data: sensors of an imaginary plant that send readings to a topic."""

from __future__ import annotations

import json
import random
import threading
from datetime import datetime, timezone
from types import TracebackType

from tubemq_spark.testing import EmbeddedTubeMQ

_INTERVAL = 0.1  # seconds between two bursts
_KINDS = {
    "temperature": ("celsius", 60, 95),
    "pressure": ("bar", 2, 5),
    "vibration": ("mm_s", 0, 9),
}  # unit, lowest, highest
_SITES = ("north", "south", "harbour")


class Sensors:
    """A thread that sends readings in bursts of various sizes while the `with` block runs."""

    def __init__(self, tubemq: EmbeddedTubeMQ, topic: str) -> None:
        self.sent = 0
        self._tubemq = tubemq
        self._topic = topic
        self._random = random.Random(20)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)

    def __enter__(self) -> Sensors:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending; may be called again."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL):
            for _ in range(self._random.choice((4, 8, 12, 40))):
                self._send()

    def _send(self) -> None:
        kind = self._random.choice(list(_KINDS))
        unit, lowest, highest = _KINDS[kind]
        reading = {"sensor": self._random.randrange(1, 100), unit: round(self._random.uniform(lowest, highest), 1)}
        self._tubemq.send(
            self._topic,
            json.dumps(reading).encode(),
            attributes={"site": self._random.choice(_SITES)},
            msg_type=kind,
            msg_time=f"{datetime.now(timezone.utc):%Y%m%d%H%M}",
        )
        self.sent += 1
