# SPDX-License-Identifier: Apache-2.0
"""Short-lived members of a consumer group, because a master answers only members: tasks get visit tokens and the new
addresses of brokers from it (a metadata refresh).

A plan has the token and the addresses of the moment when it was made. A DataFrame may be read much later: the token may
be too old then, and a broker may have moved to another host.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Broker

_log = logging.getLogger(__name__)

# Seconds between two requests of one process for a broker's new address. If another broker is at the known one, the
# broker has moved.
_LOST_BROKER_ASK_AGAIN, _MOVED_BROKER_ASK_AGAIN = 10.0, 1.0


@dataclass(frozen=True)
class GroupMembership:
    """What a member of a group reports to the master, as plain values. `filters` are message types by topic."""

    group: str
    topics: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


def _ask(settings: ClientSettings, member: GroupMembership) -> ConsumerSession:
    """Join the group and leave it. Return the closed session, which has the visit token and the brokers.

    Ask each master once at most. Raises as `ConsumerSession.register` does.
    """
    session = ConsumerSession(settings, member.group, member.topics, member.filters, may_lack_topics=True)
    with closing(session):
        session.register_once()
        return session


def _planned_token(settings: ClientSettings, member: GroupMembership, token: int) -> VisitToken:
    """Return the visit token of a task whose plan has `token`.

    If a broker refuses the token, this process joins the group for a new one. All tasks that were planned with the
    refused token then use the new one.
    """
    return VisitToken(lambda: _ask(settings, member).visit_token, token)


planned_token = PerProcess(
    lambda: lru_cache(maxsize=100)(_planned_token),  # a process uses few at a time
    lambda cached: cached.cache_clear(),
)


def current_broker(settings: ClientSettings, member: GroupMembership, broker: Broker) -> Broker:
    """Return `broker` with the address that the master lists now, or `broker` if the master does not list it or is
    silent. Answers are reused for some seconds.
    """
    ask_again = _MOVED_BROKER_ASK_AGAIN if POOL().is_elsewhere(broker) else _LOST_BROKER_ASK_AGAIN
    listings = _listed()
    with _lock():  # so that readers that fail together ask the master once
        asked_at, listed = listings.get((settings, member), (float("-inf"), {}))
        if settings.clock.monotonic() - asked_at > ask_again:
            try:
                listed = dict(_ask(settings, member).cluster.brokers)
            except TubeMQError as error:
                _log.info("the master does not say where brokers are: %s", error)
                listed = {}
            listings[settings, member] = settings.clock.monotonic(), listed
    return listed.get(broker.broker_id, broker)


_listed: PerProcess[dict[tuple[ClientSettings, GroupMembership], tuple[float, dict[int, Broker]]]] = PerProcess(
    dict, dict.clear
)
_lock = PerProcess(lambda: system.Lock())
