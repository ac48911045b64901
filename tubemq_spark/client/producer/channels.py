"""The connections of one producer: those that stand, and those that are being made in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.net.connect_attempt import ConnectAttempt, ConnectAttempts
from tubemq_spark.client.producer.broker_channel import BrokerChannel, wait_for
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Broker

_log = logging.getLogger(__name__)

_DIAL_TOGETHER = 0.3  # seconds that messages for anywhere wait for connections that are being made

Unreachable = Callable[[Broker, "TransportError | ProtocolError"], None]


class Channels:
    """At most one connection to each broker; `standing` has those that can be used, by broker."""

    def __init__(
        self,
        settings: ClientSettings,
        session: ProducerSession,
        router: Partitioner,
        dials: ConnectAttempts,
        max_in_flight: int,
        unreachable: Unreachable,
    ) -> None:
        """`unreachable` is called, by `connect` and `take_over`, for each attempt that failed."""
        self.standing: dict[int, BrokerChannel] = {}
        self._settings = settings
        self._session = session
        self._router = router
        self._all_dials = dials
        self._max_in_flight = max_in_flight
        self._unreachable = unreachable
        self._dials: dict[int, ConnectAttempt] = {}
        self._dialled_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Links {[*self.standing.values()]}, {len(self._dials)} being made>"

    @property
    def unanswered(self) -> bool:
        """Whether any broker owes an answer."""
        return any(link.unanswered for link in self.standing.values())

    @property
    def are_being_made(self) -> bool:
        return bool(self._dials)

    @property
    def are_young(self) -> bool:
        """Whether some are being made that are worth a moment's wait."""
        return bool(self._dials) and time.monotonic() - self._dialled_at <= _DIAL_TOGETHER

    def connect(self, brokers: Iterable[int], *, needed: bool) -> None:
        """Begins to connect to those of `brokers` that are not connected, as far as their trouble allows; `needed` when
        messages wait that can go nowhere else."""
        known = self._session.cluster.brokers
        for broker_id in brokers:
            if (
                broker_id not in self.standing
                and broker_id not in self._dials
                and self._router.may_dial(broker_id, needed=needed)
            ):
                dial = self._all_dials.to(known[broker_id])
                if dial.done:
                    self._take_over(dial)
                else:
                    self._dials[broker_id] = dial
                    if not self._router.is_on_trial(broker_id):
                        self._dialled_at = max(self._dialled_at, dial.begun_at)

    def take_over(self) -> None:
        """Makes use of the connections that were made meanwhile."""
        for broker_id, dial in list(self._dials.items()):
            if dial.done:
                del self._dials[broker_id]
                self._take_over(dial)

    def drop(self, broker_id: int) -> None:
        self.standing.pop(broker_id).close()

    def push(self) -> None:
        """Writes what is queued, as far as that goes without waiting."""
        for link in self.standing.values():
            link.push()

    def wait(self, seconds: float | None) -> None:
        """Waits until an answer comes, or none is to be expected any more; `seconds` at most."""
        busy = [link for link in self.standing.values() if link.unanswered]
        moments = [link.look_at() - time.monotonic() for link in busy]
        if seconds is not None:
            moments.append(seconds)
        left = max(0.0, min(moments, default=0.0))
        if busy:
            wait_for(busy, left)
        else:
            time.sleep(left)

    def close(self) -> None:
        """Lets all go."""
        links, self.standing = self.standing, {}
        dials, self._dials = self._dials, {}
        for link in links.values():
            link.close()
        for dial in dials.values():
            dial.close()

    def _take_over(self, dial: ConnectAttempt) -> None:
        broker = dial.broker
        try:
            taken = dial.take()
        except (TransportError, ProtocolError) as error:
            _log.info("%s cannot be reached: %s", broker, error)
            self._unreachable(broker, error)
            return
        if taken is not None:
            timeout, retry_for = self._settings.rpc_timeout, self._settings.retry_for
            self.standing[broker.broker_id] = BrokerChannel(broker, *taken, timeout, self._max_in_flight, retry_for)
