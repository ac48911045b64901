"""Where brokers are that cannot be reached where a plan says.

A plan carries the addresses of the moment when it was made. A DataFrame may be used much later, and a broker may have
moved to another host by then. A reader that cannot reach its broker asks the master.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.task_tokens import Member
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Broker

_log = logging.getLogger(__name__)

_AGAIN_AFTER = 10.0  # seconds between two questions of a process


class MovedBrokers:
    """What the master last said, for all readers of a process. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<MovedBrokers {self._found}>"

    def forget(self) -> None:
        """Begins empty."""
        self._found: dict[tuple[ClientSettings, Member], tuple[float, dict[int, Broker]]] = {}
        self._lock = threading.Lock()

    def now(self, settings: ClientSettings, member: Member, broker: Broker) -> Broker:
        """Where the master lists `broker` now; `broker` itself when it does not, or does not answer."""
        with self._lock:
            asked_at, listed = self._found.get((settings, member), (None, {}))
            if asked_at is None or time.monotonic() - asked_at > _AGAIN_AFTER:
                listed = _ask(settings, member)
                self._found[settings, member] = time.monotonic(), listed
        return listed.get(broker.broker_id, broker)


def _ask(settings: ClientSettings, member: Member) -> dict[int, Broker]:
    """Joins the group for a moment, for the master answers its members only."""
    session = ConsumerSession(settings, member.group, member.topics, member.filters)
    try:
        session.join_for_token()
        return dict(session.cluster.brokers)
    except TubeMQError as error:
        _log.info("the master does not tell where brokers are: %s", error)
        return {}
    finally:
        session.close()


MOVED_BROKERS = MovedBrokers()
"""Those that this process knows of."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MOVED_BROKERS.forget)
