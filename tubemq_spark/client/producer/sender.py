"""Sender of one producer: opens connections in the background, sends records, and returns their outcomes."""

from __future__ import annotations

import logging

from tubemq_spark.client.net.connect_attempt import ConnectAttempt, ConnectAttempts
from tubemq_spark.client.producer.broker_channel import BrokerChannel, wait_for
from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.lifecycle import Outcome
from tubemq_spark.protocol.metadata import Broker

_log = logging.getLogger(__name__)


class Sender:
    """At most one connection to each broker. `connected` has the channels that take records, by broker."""

    def __init__(self, settings: ClientSettings, attempts: ConnectAttempts, max_in_flight: int) -> None:
        """`attempts` are those of all producers of the session."""
        self.connected: dict[int, BrokerChannel] = {}
        self._settings = settings
        self._attempts = attempts
        self._max_in_flight = max_in_flight  # of each connection
        self._connecting: dict[int, ConnectAttempt] = {}
        self._last_attempt_at = float("-inf")
        self._failures: list[tuple[Broker, TransportError | ProtocolError]] = []

    def __repr__(self) -> str:
        return f"<Sender {[*self.connected.values()]}, {len(self._connecting)} connecting>"

    @property
    def any_in_flight(self) -> bool:
        return any(channel.in_flight for channel in self.connected.values())

    @property
    def is_connecting(self) -> bool:
        return bool(self._connecting)

    @property
    def recently_connecting(self) -> bool:
        """Whether records for any partition wait a moment for a connection, so that not all go to the first broker."""
        age = self._settings.clock.monotonic() - self._last_attempt_at
        return bool(self._connecting) and age <= self._settings.timings.connect_batching

    def has_channel(self, broker_id: int) -> bool:
        """Whether the broker is connected, or will be."""
        return broker_id in self.connected or broker_id in self._connecting

    def connect(self, broker: Broker, *, is_awaited: bool) -> None:
        """Start to connect to a broker. Only an attempt that `is_awaited` counts for `recently_connecting`."""
        attempt = self._connecting[broker.broker_id] = self._attempts.to(broker)
        if attempt.done:  # it has found an idle connection
            self.open_channels()
        elif is_awaited:
            self._last_attempt_at = max(self._last_attempt_at, attempt.begun_at)

    def open_channels(self) -> None:
        """Open channels on connections that have been opened meanwhile."""
        for broker_id, attempt in list(self._connecting.items()):
            if attempt.done:
                del self._connecting[broker_id]
                try:
                    taken = attempt.take()
                except (TransportError, ProtocolError) as error:
                    _log.info("%s cannot be reached: %s", attempt.broker, error)
                    self._failures.append((attempt.broker, error))
                    continue
                if taken is not None:
                    channel = BrokerChannel(attempt.broker, *taken, self._settings, self._max_in_flight)
                    self.connected[broker_id] = channel

    def take_failures(self) -> list[tuple[Broker, TransportError | ProtocolError]]:
        """Return the attempts that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def flush(self) -> None:
        """Write what the channels have queued, as far as possible without waiting."""
        for channel in self.connected.values():
            channel.flush()

    def poll(self) -> list[tuple[BrokerChannel, list[tuple[PendingRecord, Outcome]]]]:
        """Write and read without waiting. Return the outcomes by channel, and close channels that broke."""
        polled = [(channel, channel.poll()) for channel in self.connected.values()]
        for channel, _ in polled:
            if channel.is_broken:
                self.connected.pop(channel.broker.broker_id).close()
        return polled

    def wait(self, seconds: float | None) -> None:
        """Wait until an answer arrives or a broker counts as silent, but at most `seconds`."""
        busy = [channel for channel in self.connected.values() if channel.in_flight]
        clock = self._settings.clock
        limits = [channel.poll_at() - clock.monotonic() for channel in busy]
        if seconds is not None:
            limits.append(seconds)
        left = max(0.0, min(limits, default=0.0))
        if busy:
            wait_for(busy, left)
        else:
            clock.sleep(left)

    def close(self) -> None:
        """Return connections to the pool, and give up attempts."""
        while self.connected:
            self.connected.popitem()[1].close()
        while self._connecting:
            self._connecting.popitem()[1].close()
