"""Where messages go, as it stands in their requests, and the authorisation in it."""

from __future__ import annotations

import logging
import time

from tubemq_spark.client.cluster.deployed_topics import add_topics, has_partition, is_away
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import MASTER
from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send_request import encode_target

_log = logging.getLogger(__name__)

_FRESH = 5.0  # seconds for which an authorisation may be used again; servers take 20
_REFRESH_PERIOD = 1.0  # seconds between two questions to the master
_REFUSED = 2.0  # seconds for which topics and partitions that the master does not know are not asked for again
_QUESTIONS = 50  # about different wrong partitions in that time; more of them are judged by the last answer


class SendTargets(dict[Partition, bytes]):
    """The encoded target of each partition, made when it is asked for, good while the authorisation in it is."""

    def __init__(self, session: ProducerSession) -> None:
        super().__init__()
        self._session = session
        self._authorization = session.broker_authorization()
        self._renewed_at = time.monotonic()
        self._asked_at = float("-inf")
        self._refreshed = False
        self._wrong: set[Partition] = set()
        self._unknown: dict[str, str] = {}
        self._forget_wrong_at = float("-inf")

    def __missing__(self, partition: Partition) -> bytes:
        target = self[partition] = encode_target(self._session.client_id, partition, self._authorization)
        return target

    def renew(self) -> None:
        """Drops what is too old."""
        now = time.monotonic()
        signed = self._authorization.HasField("authAuthorizedToken")
        if self._authorization.visitAuthorizedToken != self._session.visit_token or (
            signed and now - self._renewed_at > _FRESH
        ):
            self.clear()
            self._authorization = self._session.broker_authorization()
            self._renewed_at = now

    def refresh(self) -> bool:
        """Asks the master for partitions and token, not too often; whether it answered, this time or a moment ago."""
        if time.monotonic() - self._asked_at > _REFRESH_PERIOD:
            try:
                self._session.refresh_once()
            except (TransportError, ServerError) as error:
                problem = str(error)
                OUTAGES.failed(
                    _log, MASTER, lambda: f"the master cannot be asked for partitions and token anew: {problem}"
                )
                self._refreshed = False
            else:
                OUTAGES.worked(_log, MASTER)
                self._refreshed = True
            self._asked_at = time.monotonic()
        return self._refreshed

    def unknown(self, topic: str) -> str | None:
        """What the master said of an unknown topic a moment ago, asked if it did not; None when the topic takes
        messages. Waits for a topic whose brokers are down; raises as `deployed.add_topics`, but for `ConfigError`."""
        self._forget_wrong()
        if topic not in self._unknown:
            try:
                add_topics(self._session, [topic])
            except ConfigError as error:
                self._unknown[topic] = str(error)
        if topic not in self._unknown and not self._session.lists_any(topic):
            _log.warning(
                "the master lists no partition of topic %s now, but did: was the topic closed or removed, or are its "
                "brokers down? Messages go on being sent to those",
                topic,
            )
        return self._unknown.get(topic)

    def has(self, partition: Partition) -> bool:
        """Whether there is such a partition of a known topic. What is not known is asked for now, but not often in a
        row; what is deployed on a broker that is down is waited for. Raises as `deployed.has_partition`."""
        if partition in self._session.cluster.partitions(partition.topic):
            return True
        self._forget_wrong()
        if partition in self._wrong or (len(self._wrong) >= _QUESTIONS and not is_away(self._session, partition)):
            return False
        if has_partition(self._session, partition):
            return True
        self._wrong.add(partition)
        return False

    def _forget_wrong(self) -> None:
        """They may have been created meanwhile."""
        now = time.monotonic()
        if now > self._forget_wrong_at:
            self._wrong.clear()
            self._unknown.clear()
            self._forget_wrong_at = now + _REFUSED
