"""A metadata refresh for readers: the new addresses of brokers that are not reachable where a plan says.

A plan has the addresses of the moment when it was made. A DataFrame may be read much later, and a broker may have moved
to another host by then. A reader that cannot reach its broker asks the master.
"""

from __future__ import annotations

import logging
import threading

from tubemq_spark.client.cluster.group_member import GroupMember, joined
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Broker

_log = logging.getLogger(__name__)


class MovedBrokers:
    """The master's last answers, for all readers of a process. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<MovedBrokers {self._found}>"

    def forget(self) -> None:
        """Drop all answers."""
        self._found: dict[tuple[ClientSettings, GroupMember], tuple[float, dict[int, Broker]]] = {}
        self._lock = threading.Lock()

    def now(self, settings: ClientSettings, member: GroupMember, broker: Broker) -> Broker:
        """Return the address that the master lists now, or `broker` if the master does not list it or is silent."""
        with self._lock:
            asked_at, listed = self._found.get((settings, member), (float("-inf"), {}))
            if settings.clock.monotonic() - asked_at > settings.timings.moved_broker_ask_again:
                listed = _ask(settings, member)
                self._found[settings, member] = settings.clock.monotonic(), listed
        return listed.get(broker.broker_id, broker)


def _ask(settings: ClientSettings, member: GroupMember) -> dict[int, Broker]:
    try:
        with joined(settings, member) as session:
            return dict(session.cluster.brokers)
    except TubeMQError as error:
        _log.info("the master does not tell where brokers are: %s", error)
        return {}


MOVED_BROKERS = MovedBrokers()
"""The answers that this process got."""

empty_after_fork(MOVED_BROKERS.forget)
close_with_servers(MOVED_BROKERS.forget)
