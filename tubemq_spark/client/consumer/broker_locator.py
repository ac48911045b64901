"""The broker of a task's partition, which may move to another address while the task reads."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Broker, Partition

_log = logging.getLogger(__name__)


class BrokerLocator:
    """Knows where the broker of `partition` is. It asks `find_broker` after some seconds without a connection."""

    def __init__(
        self, settings: ClientSettings, partition: Partition, broker: Broker, find_broker: Callable[[Broker], Broker]
    ) -> None:
        self.partition = partition
        self.broker = broker
        self._settings = settings
        self._find_broker = find_broker
        self._unreachable_since: float | None = None

    @property
    def where(self) -> str:
        return f"{self.partition} at {self.broker}"

    def on_connected(self) -> None:
        self._unreachable_since = None

    def on_failed(self) -> None:
        """Record that a connection failed; look for the broker if it is unreachable for some time."""
        now = self._settings.clock.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now
        elif now - self._unreachable_since >= self._settings.timings.broker_lookup_after:
            found = self._find_broker(self.broker)
            if found != self.broker:
                _log.warning("%s: the broker has moved to %s", self.where, found.address)
                self.broker = found
