"""All partitions of a topic, those included that take no messages now, and those of brokers that are away.

Producers are told only of partitions that take messages at the moment; consumers of all that are configured (wire:
TopicPSInfoManager, TMaster.consumerGetPartMetaInfoC2M). So a member of a group asks, and leaves at once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.deployed_topics import add_topics
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.process_caches import close_with_servers
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_SOON = 2.0  # seconds
_FRESH = 30.0  # seconds for which an answer is used again

_answers: dict[tuple[ClientSettings, str], tuple[float, frozenset[Partition]]] = {}


def all_partitions(session: ProducerSession, group: str, topic: str, *, anew: bool = False) -> frozenset[Partition]:
    """As the master says, or said a moment ago; said now, if asked `anew`. `group` must be used for this topic alone.

    Raises as `deployed.add_topics` and `ConsumerSession.register`; unless asked anew not for a master that does
    not answer, when the partitions are known.
    """
    add_topics(session, [topic])
    if anew:
        session.refresh()
    listed = frozenset(one for one in session.cluster.partitions(topic) if session.lists(one))
    return listed | _of_consumers(session.settings, group, topic, anew)


def _of_consumers(settings: ClientSettings, group: str, topic: str, anew: bool) -> frozenset[Partition]:
    answered_at, known = _answers.get((settings, topic), (float("-inf"), frozenset[Partition]()))
    if time.monotonic() - answered_at < _FRESH and not anew:
        return known
    asking = settings
    if known and not anew:  # then it is enough to ask, and not to wait
        asking = replace(
            settings, rpc_timeout=min(_SOON, settings.rpc_timeout), retry_for=min(_SOON, settings.retry_for)
        )
    session = ConsumerSession(asking, group, [topic])
    try:
        session.register()
    except TransportError as error:
        if anew or not known:
            raise
        _log.warning("topic %s: only the partitions known so far, for %s", topic, error)
        return known
    try:
        found = frozenset(session.cluster.partitions(topic))
    finally:
        session.close()
    _answers[settings, topic] = time.monotonic(), found
    return found


close_with_servers(_answers.clear)
