# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions that records are sent to: whether they exist, and their encoded targets with authorisation."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tubemq_spark.client import system
from tubemq_spark.client.cluster.deployed_topics import add_topics, has_partition, is_away
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import MASTER
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.message import encode_target
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_AUTHORIZATION_FRESH = 5.0  # seconds; time for which a signed authorisation is reused; servers accept 20 s
_METADATA_REFRESH = 1.0  # seconds; between two requests of one producer to the master
_UNKNOWN_FRESH = 2.0  # seconds; time for which an unknown topic or partition is not asked for again
_MAX_UNKNOWN = 50  # partitions asked for in that time; the last answer decides about further ones


class SendTargets(dict[Partition, bytes]):
    """The encoded target of each partition. It is made when first used, and valid as long as its authorisation."""

    def __init__(self, session: ProducerSession, *, are_looked_up: bool = False) -> None:
        """Messages that the producer may have to look up keep to the cluster's limit, also in a topic with a higher
        one: a broker leaves longer ones out while they are in its memory."""
        super().__init__()
        self._are_looked_up = are_looked_up
        self.limits: dict[str, int] = {}  # bytes that a message's body may have, by topic that exists
        self.verified: set[Partition] = set()  # explicit partitions that the producer has found usable
        self._session = session
        self._authorization = session.broker_authorization()
        self._renewed_at = self._now()
        self._refreshed_at = float("-inf")
        self._is_refreshed = False
        self._unknown: dict[str | Partition, str] = {}  # topics and partitions, with the problem of a topic
        self._forget_unknown_at = float("-inf")

    def __missing__(self, partition: Partition) -> bytes:
        host = system.host_address()
        target = self[partition] = encode_target(self._session.client_id, partition, self._authorization, host)
        return target

    def renew(self) -> None:
        """Drop targets whose authorisation is too old."""
        signed = self._authorization.HasField("authAuthorizedToken")
        if self._authorization.visitAuthorizedToken != self._session.visit_token or (
            signed and self._now() - self._renewed_at > _AUTHORIZATION_FRESH
        ):
            self.clear()
            self._authorization = self._session.broker_authorization()
            self._renewed_at = self._now()

    def refresh(self) -> bool:
        """Ask the master for partitions and visit token, but not often. Return True if it answered now or last time."""
        if self._now() - self._refreshed_at > _METADATA_REFRESH:
            try:
                self._session.refresh_once()
            except (TransportError, ServerError) as error:
                text = f"the master does not list partitions and token: {error}"
                OUTAGES().failed(_log, MASTER, lambda: text, clock=self._session.settings.clock)
                self._is_refreshed = False
            else:
                OUTAGES().worked(_log, MASTER)
                self._is_refreshed = True
            self._refreshed_at = self._now()
        return self._is_refreshed

    def learn_topic(self, topic: str) -> None:
        """Add `topic` to `limits`. Wait for a topic whose brokers are down. Raise as `deployed_topics.add_topics`; for
        an unknown topic, the master's answer is reused for a while."""
        if (problem := self._asked_for().get(topic)) is not None:
            raise ConfigError(problem)
        try:
            add_topics(self._session, [topic])
        except ConfigError as error:
            self._unknown[topic] = str(error)
            raise
        subject = f"the masters' list of topic {topic}"
        if self._session.lists_any(topic):
            OUTAGES().worked(_log, subject)
        else:
            text = (
                f"{subject} has no partition any more: was the topic closed or removed, or are its brokers down? "
                "Messages are still sent to the partitions listed before"
            )
            OUTAGES().failed(_log, subject, lambda: text, clock=self._session.settings.clock, at_once=True)
        limit = self._session.message_limit(topic)
        self.limits[topic] = min(limit, self._session.max_message_size) if self._are_looked_up else limit

    def exists(self, partition: Partition) -> bool:
        """Return True if a known topic has `partition`. Ask the master for one that is not listed, but not often; wait
        for one that is deployed on a broker that is down. Raise as `deployed_topics.has_partition`."""
        if partition in self._session.cluster.partitions(partition.topic):
            return True
        unknown = self._asked_for()
        asked = sum(isinstance(one, Partition) for one in unknown)
        if partition in unknown or (asked >= _MAX_UNKNOWN and not is_away(self._session, partition)):
            return False
        if has_partition(self._session, partition):
            return True
        self._unknown[partition] = ""
        return False

    def _asked_for(self) -> Mapping[str | Partition, str]:
        """Return what was unknown a moment ago; what was longer ago may have been created since."""
        if self._now() > self._forget_unknown_at:
            self._unknown.clear()
            self._forget_unknown_at = self._now() + _UNKNOWN_FRESH
        return self._unknown

    def _now(self) -> float:
        return self._session.settings.clock.monotonic()
