"""All partitions of a topic, those included that take no messages now, and those of brokers that are away.

Producers are told only of partitions that take messages at the moment; consumers of all that are configured (wire:
TopicPSInfoManager, TMaster.consumerGetPartMetaInfoC2M). So a member of a group asks, and leaves at once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tubemq_spark.client.master import ConsumerSession
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_SOON = 2.0  # seconds
_FRESH = 30.0  # seconds for which an answer is used again

_answers: dict[tuple[ClientSettings, str], tuple[float, frozenset[Partition]]] = {}


def all_partitions(settings: ClientSettings, group: str, topic: str) -> frozenset[Partition]:
    """As the master says, or said a moment ago; `group` must be used for this topic alone. Raises as
    `ConsumerSession.register`."""
    answered_at, known = _answers.get((settings, topic), (float("-inf"), frozenset[Partition]()))
    if time.monotonic() - answered_at < _FRESH:
        return known
    if known:  # then it is enough to ask, and not to wait
        quick = min(_SOON, settings.rpc_timeout), min(_SOON, settings.retry_for)
        asking = replace(settings, rpc_timeout=quick[0], retry_for=quick[1])
    else:
        asking = settings
    session = ConsumerSession(asking, group, [topic])
    try:
        session.register()
    except TransportError as error:
        if not known:
            raise
        _log.warning("topic %s: only the partitions known so far, for %s", topic, error)
        return known
    try:
        found = frozenset(session.cluster.partitions(topic))
    finally:
        session.close()
    _answers[settings, topic] = time.monotonic(), found
    return found


def forget() -> None:
    _answers.clear()
