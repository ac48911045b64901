"""Tells topics and partitions that do not exist from those whose brokers are down, and waits for the latter.

Producers are told only of what takes messages now: a topic whose brokers are down looks like one that nobody created.
Consumers are told of all that is deployed, whether its brokers run or not, also by a master that was just started
(wire: TMaster.consumerGetPartMetaInfoC2M; tried on 1.2.0 and 2.5). So a consumer asks here, in a group of its own.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tubemq_spark.client.backoff import Deadline, delays
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import NotListedError, ProducerSession
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import AuthError, ConfigError, ProtocolError, ServerError, TransportError
from tubemq_spark.protocol.metadata import Partition, TopicOnBroker

_log = logging.getLogger(__name__)

_LONGEST_PAUSE = 2.0  # seconds between two questions to the master
_WITHIN = 3.0  # seconds in which the master, which answered just now, or a broker must answer
_SHOWN = 3  # brokers of a topic that an error names

Layouts = Mapping[int, TopicOnBroker]
"""Where one topic is deployed, by broker. Empty for a topic that is not."""


class AwayError(TransportError):
    """What is deployed took no messages for too long."""


def layouts_of(settings: ClientSettings, topic: str) -> Layouts | None:
    """Where `topic` is deployed, whether these brokers run or not, as the master says now. None when the master does
    not tell, for example because consumers need a permission for the topic."""
    asking = replace(settings, are_proven=True, retry_for=min(_WITHIN, settings.retry_for))
    session = ConsumerSession(asking, f"spark_look_{random.getrandbits(48):012x}", [topic])
    try:
        return {layout.broker_id: layout for layout in session.deployed().values() if layout.topic == topic}
    except ConfigError:  # the group is new and has no other member, so the topic alone can be the reason
        return {}
    except (AuthError, ServerError, TransportError) as error:
        _log.info("whether topic %s is deployed cannot be told: %s", topic, error)
        return None
    finally:
        session.close()


def add_topics(session: ProducerSession, topics: Iterable[str]) -> None:
    """As `ProducerSession.add_topics`, but waits up to `settings.retry_for` for topics that are deployed and take no
    messages now. `ConfigError` only for a topic that is not deployed, `AwayError` when the time is up."""
    wanted = tuple(topics)

    def problem() -> NotListedError | None:
        try:
            session.add_topics(wanted)
        except NotListedError as error:
            return error
        return None

    error = problem()
    if error is None:
        return
    found = {topic: layouts_of(session.settings, topic) for topic in error.topics}
    if unknown := [topic for topic, layouts in found.items() if layouts is not None and not layouts]:
        raise ConfigError(str(NotListedError(error.master, unknown))) from None
    told = {broker_id: layout for layouts in found.values() if layouts for broker_id, layout in layouts.items()}
    _wait(session, lambda: problem() is None, f"topic {', '.join(found)}", told)


def has_partition(session: ProducerSession, partition: Partition) -> bool:
    """Whether there is this partition of a topic that was added. One that is deployed on a broker that takes no
    messages now is waited for as in `add_topics`. Raises as `ProducerSession.find_partition`."""
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
    """Whether its broker is known, and the master does not list it among those that take messages of the topic."""
    broker_id = partition.broker_id
    return broker_id in session.cluster.brokers and not session.lists_any(partition.topic, broker_id)


def _wait(session: ProducerSession, is_there: Callable[[], bool], what: str, brokers: Iterable[int]) -> None:
    """For what is deployed on these brokers, as far as that is known."""
    deadline = Deadline(session.settings.retry_for)
    pauses = delays(ceiling=_LONGEST_PAUSE)
    while not is_there():
        if deadline.passed:
            raise AwayError(
                f"the master did not list {what} among those that take messages within "
                f"{session.settings.retry_for:g} s; {_where(session, brokers)}. Start the brokers, or open the topic "
                "for publishing where it is closed, or wait longer with option 'tubemq.retry.maxElapsedMs'"
            )
        OUTAGES.failed(_log, what, lambda: f"{what} takes no messages now; {_where(session, brokers)}", deadline.left)
        deadline.pause(next(pauses))
    OUTAGES.worked(_log, what)


def _where(session: ProducerSession, brokers: Iterable[int]) -> str:
    chosen = sorted(brokers)
    if not chosen:
        return "the master does not tell whether it is deployed"
    more = f", and {len(chosen) - _SHOWN} more" if len(chosen) > _SHOWN else ""
    return f"it is deployed on {', '.join(_state(session, broker_id) for broker_id in chosen[:_SHOWN])}{more}"


def _state(session: ProducerSession, broker_id: int) -> str:
    broker = session.cluster.brokers.get(broker_id)
    if broker is None:
        return f"broker {broker_id}, whose address the master does not tell"
    try:
        with POOL.lease(broker.address, session.settings, min(_WITHIN, session.settings.rpc_timeout)):
            return f"{broker}, which runs"
    except (TransportError, ProtocolError) as error:
        return f"{broker}, which is down ({error})"
