"""All partitions of a topic, including those that accept no messages now and those of brokers that are down.

A master tells producers only about partitions that accept messages, and consumers about all that are deployed (wire:
TopicPSInfoManager, TMaster.consumerGetPartMetaInfoC2M). So a consumer joins a group, asks, and leaves at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.deployed_topics import add_topics
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.process_caches import close_with_servers
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_answers: dict[tuple[ClientSettings, str], tuple[float, frozenset[Partition]]] = {}
close_with_servers(_answers.clear)


def all_partitions(session: ProducerSession, group: str, topic: str, *, anew: bool = False) -> frozenset[Partition]:
    """Return all partitions of `topic`, from a cache that is refreshed twice a minute, or `anew` from the master.

    `group` must be used for this topic alone. Raises as `deployed_topics.add_topics` and `ConsumerSession.register` do.
    If the master does not answer, return the partitions known so far; with `anew`, raise the error.
    """
    add_topics(session, [topic])
    if anew:
        session.refresh()
    listed = frozenset(one for one in session.cluster.partitions(topic) if session.lists(one))
    return listed | _partitions_for_consumers(session.settings, group, topic, anew)


def _partitions_for_consumers(settings: ClientSettings, group: str, topic: str, anew: bool) -> frozenset[Partition]:
    answered_at, known = _answers.get((settings, topic), (float("-inf"), frozenset[Partition]()))
    if settings.clock.monotonic() - answered_at < settings.timings.topic_partitions_fresh and not anew:
        return known
    asking = settings
    if known and not anew:  # a short attempt suffices, because the known partitions will do
        seconds = settings.timings.topic_partitions_retry
        asking = replace(
            settings, rpc_timeout=min(seconds, settings.rpc_timeout), retry_for=min(seconds, settings.retry_for)
        )
    session = ConsumerSession(asking, group, [topic])
    try:
        session.register()
    except TransportError as error:
        if anew or not known:
            raise
        _log.warning(
            "topic %s: using the partitions known so far, because the master does not answer: %s", topic, error
        )
        return known
    try:
        found = frozenset(session.cluster.partitions(topic))
    finally:
        session.close()
    _answers[settings, topic] = settings.clock.monotonic(), found
    return found
