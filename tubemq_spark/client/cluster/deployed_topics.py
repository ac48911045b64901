# SPDX-License-Identifier: Apache-2.0
"""Unknown topics and partitions, as opposed to those whose brokers are down: a producer waits only for the latter.

A master lists to producers only partitions that accept messages now: a topic whose brokers are down looks like a
topic that nobody created. It lists to consumers all that is deployed, on running brokers and on others, even just
after its start (wire: TMaster.consumerGetPartMetaInfoC2M; tried on 1.2.0 and 2.5). So this module asks as a consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import NotListedError, ProducerSession
from tubemq_spark.client.cluster.unknown_topics import WRITE_ADVICE, UnknownTopicError
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.retries import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import AuthError, ConfigError, ProtocolError, ServerError, TransportError
from tubemq_spark.protocol.constants import OFFSET_HISTORY
from tubemq_spark.protocol.metadata import Partition, TopicOnBroker

_log = logging.getLogger(__name__)

_DEPLOYED_TOPIC_ANSWER_TIMEOUT = 3.0  # seconds; of the master, which answered just now, and of a broker
_TRIMMED = "".join(map(chr, range(33)))  # characters that servers remove around names (wire: String.trim)
_MAX_SHOWN = 3  # brokers of a topic in an error


class TopicUnavailableError(TransportError):
    """A deployed topic or partition has accepted no messages for too long."""

    cause = (
        "A topic or a partition of the sink exists, but has accepted no messages for too long: its brokers are down "
        "or closed for publishing."
    )
    remedy = (
        "Start the brokers, or open the topic. Then start the query again. To wait for longer, raise "
        "`tubemq.retry.maxElapsedMs`."
    )


def layouts_of(settings: ClientSettings, topic: str) -> Mapping[int, TopicOnBroker] | None:
    """Return where `topic` is deployed, by broker id; nothing if it does not exist. Return None if the master does not
    say, for example because consumers need a permission for the topic."""
    retry_for = min(_DEPLOYED_TOPIC_ANSWER_TIMEOUT, settings.retry_for)
    asking = replace(settings, master_reachable=True, retry_for=retry_for)
    session = ConsumerSession(asking, f"spark_look_{system.randomizer.getrandbits(48):012x}", [topic])
    try:
        return {layout.broker_id: layout for layout in session.deployed().values() if layout.topic == topic}
    except ConfigError:  # the group is new and has no other member, so only the topic can be the reason
        return {}
    except (AuthError, ServerError, TransportError) as error:
        _log.info("the master does not say whether topic %s is deployed: %s", topic, error)
        return None
    finally:
        session.close()


def add_topics(session: ProducerSession, topics: Iterable[str], *, wait: bool = True) -> None:
    """As `ProducerSession.add_topics`, but wait up to `settings.retry_for` for deployed topics that accept no messages
    now, or leave them out. Raise `UnknownTopicError` for topics that are not deployed, `ConfigError` for one that only
    servers may write, `TopicUnavailableError` when the time is over."""
    wanted = tuple(topics)
    if any(topic.strip(_TRIMMED) == OFFSET_HISTORY for topic in wanted):  # the master refuses all topics with it
        raise ConfigError(
            f"topic {OFFSET_HISTORY} belongs to the brokers, and no producer may write it: name another one"
        )

    def problem() -> NotListedError | None:
        try:
            session.add_topics(wanted)
        except NotListedError as error:
            return error
        return None

    if (error := problem()) is None:
        return
    found = {topic: layouts_of(session.settings, topic) for topic in error.topics}
    if unknown := [topic for topic, layouts in found.items() if layouts is not None and not layouts]:
        raise UnknownTopicError(unknown, WRITE_ADVICE) from None
    if not wait:
        return
    brokers = {broker_id for layouts in found.values() if layouts for broker_id in layouts}
    _wait(session, lambda: problem() is None, f"topic {', '.join(found)}", brokers)


def has_partition(session: ProducerSession, partition: Partition) -> bool:
    """Return True if `partition` of an added topic exists. Wait as `add_topics` does if it is deployed on a broker that
    accepts no messages now."""
    if session.find_partition(partition):
        return True
    if not is_away(session, partition):
        return False
    layouts = layouts_of(session.settings, partition.topic)
    if layouts is not None:
        layout = layouts.get(partition.broker_id)
        if layout is None or partition not in layout.all_partitions():
            return False
    _wait(session, lambda: session.find_partition(partition), f"partition {partition}", [partition.broker_id])
    return True


def is_away(session: ProducerSession, partition: Partition) -> bool:
    """Return True if the partition's broker is known, but accepts no messages of the topic now."""
    broker_id = partition.broker_id
    return broker_id in session.cluster.brokers and not session.lists_any(partition.topic, broker_id)


def _wait(session: ProducerSession, is_there: Callable[[], bool], what: str, brokers: Iterable[int]) -> None:
    """Wait until `is_there`. `what` is deployed on `brokers`, as far as the master says."""
    settings, where = session.settings, _Deployment(session, sorted(brokers))
    ceiling = settings.timings.deployed_topic_max_pause
    retries = Retries(settings.retry_for, settings.clock, f"sending to {what}", _log, ceiling=ceiling)
    while not is_there():
        if not retries.failed(where):
            raise TopicUnavailableError(
                f"{what} accepted no messages for {settings.retry_for:g} s; {where}. Start the brokers, or open the "
                "topic for publishing if it is closed, or wait longer with option 'tubemq.retry.maxElapsedMs'"
            )
    retries.progress()


@dataclass(frozen=True)
class _Deployment:
    """Where a topic or partition is deployed, as a text that connects to the brokers."""

    session: ProducerSession
    brokers: Sequence[int]

    def __str__(self) -> str:
        if not self.brokers:
            return "the master does not say whether it is deployed"
        shown = ", ".join(_state(self.session, broker_id) for broker_id in self.brokers[:_MAX_SHOWN])
        more = f", and {len(self.brokers) - _MAX_SHOWN} more" if len(self.brokers) > _MAX_SHOWN else ""
        return f"it is deployed on {shown}{more}"


def _state(session: ProducerSession, broker_id: int) -> str:
    broker = session.cluster.brokers.get(broker_id)
    if broker is None:
        return f"broker {broker_id}, whose address the master does not list"
    settings = session.settings
    timeout = min(_DEPLOYED_TOPIC_ANSWER_TIMEOUT, settings.rpc_timeout)
    try:
        with POOL().lease(ExpectedBroker(broker, session.token), settings, timeout):
            return f"{broker}, which runs"
    except (TransportError, ProtocolError) as error:
        return f"{broker}, which is down ({error})"
