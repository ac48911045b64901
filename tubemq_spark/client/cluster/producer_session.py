# SPDX-License-Identifier: Apache-2.0
"""A producer at the master: the messages that register it, list the partitions it may send to, and keep it alive."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import count

from tubemq_spark.client import system
from tubemq_spark.client.cluster.cluster_metadata import Cluster, KnownTopics
from tubemq_spark.client.cluster.master_client import MasterSession, MemberState
from tubemq_spark.client.net.connection import FRAMINGS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.constants import (
    DEFAULT_MAX_MESSAGE_SIZE,
    MAX_TOPICS,
    MESSAGE_SIZE_SLACK,
    UNKNOWN_ID,
    Framing,
    Method,
)
from tubemq_spark.protocol.frame import max_body_size
from tubemq_spark.protocol.metadata import Address, Partition, parse_producer_topic
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

_log = logging.getLogger(__name__)

_KNOWN_TOPICS_TIMEOUT = 3.0  # seconds; of asking the master for topics whose partitions the driver knows
_AROUND_BODY = 2 * MESSAGE_SIZE_SLACK  # bytes of a frame besides the body, at most: attributes, target, authorisation


class NotListedError(ConfigError):
    """The `master` lists no partition of `topics` that accepts messages. The topics are unknown, or their brokers are
    down.
    """

    cause = "The master lists no partition of the topic that accepts messages."
    remedy = "Check the topic's name, create the topic, or open it for publishing."

    def __init__(self, master: Address, topics: Iterable[str]) -> None:
        self.master = master
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"the master {master} knows no topic {', '.join(self.topics)} that accepts messages. "
            "Check the topic's name, or create the topic, or open it for publishing"
        )


class ProducerSession(MasterSession):
    """A producer at the master: topics that accept messages, their partitions, and how long a message may be.

    It declares the topics that were added last, as many as a master takes. The partitions of a topic that it does not
    declare any more stay known as long as somebody uses the session.
    """

    def __init__(self, settings: ClientSettings, role: str = "producer") -> None:
        """`role` is a part of the client id, which servers log."""
        super().__init__(settings, role)
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        self._topics: frozenset[str] = frozenset()
        self._uses = count()
        self._last_use: dict[str, int] = {}  # of each topic
        self._broker_check_sum = -1
        self._config_id = UNKNOWN_ID

    def add_topics(self, topics: Iterable[str]) -> None:
        """Declare `topics` and list their partitions. Start the heartbeat.

        Raise `NotListedError` for topics that accept no messages now, `AuthError`, and `TransportError` if no master
        answers.
        """
        wanted = frozenset(topics)
        self._last_use.update(dict.fromkeys(wanted, next(self._uses)))
        if wanted <= self._topics and not self.cluster.missing(wanted):
            return  # without the lock, because a heartbeat to a silent master may hold it for long
        with self._lock:
            self._declare(wanted)
            try:
                self._master.retry(self._list)
                if self.cluster.missing(wanted):  # a master may list a topic one heartbeat after the one that names it
                    self._master.retry(self._list)
                    self._list_until(lambda: self._registry.is_complete or not self.cluster.missing(wanted))
            finally:
                missing = self.cluster.missing(wanted)
                self._topics -= frozenset(missing)
            if missing:
                raise NotListedError(self._master.address, missing)
        self._start_heartbeat(self._heartbeat)

    def known(self, topics: Iterable[str]) -> KnownTopics:
        """Return what this session knows of added topics."""
        wanted = frozenset(topics)
        cluster = self.cluster
        layouts = {key: layout for key, layout in cluster.layouts.items() if layout.topic in wanted}
        listed = {key: layout for key, layout in self._registry.listed.items() if layout.topic in wanted}
        return KnownTopics(wanted, Cluster(cluster.brokers, layouts), listed, self.max_message_size, self.visit_token)

    def add_known_topics(self, known: KnownTopics) -> None:
        """Declare topics that another session knows. Ask each master once for their partitions, and use what
        the other session knew if none answers soon. Start the heartbeat.

        Topics that the answer lacks are not added. Raises as `add_topics`, except `TransportError`.
        """
        self._last_use.update(dict.fromkeys(known.topics, next(self._uses)))
        if known.topics <= self._topics and not self.cluster.missing(known.topics):
            return
        within = min(_KNOWN_TOPICS_TIMEOUT, self.settings.rpc_timeout)
        try:
            with self._locked_within(within), self._master.within_deadline(within):
                self._declare(known.topics)
                try:
                    self._list()
                finally:
                    self._topics -= frozenset(self.cluster.missing(known.topics))
        except TransportError as error:
            _log.warning(
                "[partitions-of-driver] topic %s: using the partitions that the driver knows, because no master "
                "answers: %s",
                ", ".join(sorted(known.topics)),
                error,
            )
            with self._lock:
                self._registry.adopt(known)
                self._declare(known.topics)
                self.max_message_size = known.max_message_size
                self.token.value = known.visit_token
        self._start_heartbeat(self._heartbeat)

    def _declare(self, topics: frozenset[str]) -> None:
        """Declare `topics` from now on. If a master does not take so many, drop those whose last use is longest ago:
        it would refuse all requests of this session."""
        self._topics |= topics
        excess = len(self._topics) - MAX_TOPICS
        if excess > 0:
            uses = self._last_use  # other threads add to it without the lock
            self._topics -= frozenset(sorted(self._topics - topics, key=lambda topic: uses.get(topic, 0))[:excess])
            self._last_use = {topic: uses.get(topic, 0) for topic in self._topics}
            self._registry.keep_listed(self._topics)

    def forget_unused(self) -> None:
        """Forget the partitions of topics that are not declared any more. Nobody may use the session meanwhile."""
        if self._lock.acquire(blocking=False):  # a heartbeat to a silent master may hold it for long
            try:
                self._registry.keep(self._topics)
            finally:
                self._lock.release()

    def find_partition(self, partition: Partition) -> bool:
        """Ask again and return True if `partition` of an added topic exists. Repeat while the master's lists may be
        short. Raises as `refresh` does.
        """
        # A master lists all partitions of a broker at once, so any of them answers for all.
        with self._lock:
            self._master.retry(self._list)
            self._list_until(
                lambda: (
                    self._registry.is_complete
                    or self._registry.excludes_broker(partition.broker_id)
                    or self.lists_any(partition.topic, partition.broker_id)
                )
            )
            return partition in self.cluster.partitions(partition.topic)

    def refresh_once(self) -> None:
        """As `refresh`, but ask each master once at most."""
        with self._lock:
            self._list()

    def lists(self, partition: Partition) -> bool:
        """Return True if `partition` accepts messages, because the master's last list has it."""
        return self._registry.lists(partition)

    def present(self, topic: str) -> list[Partition]:
        """Return the partitions of an added topic that accept messages, as far as the master says; all known ones while
        its lists may be short."""
        known = self.cluster.partitions(topic)
        listed = [partition for partition in known if self.lists(partition)]
        return listed if listed and self._registry.is_complete else known

    def lists_any(self, topic: str, broker_id: int | None = None) -> bool:
        return self._registry.lists_any(topic, broker_id)

    def limits(self, topics: Collection[str], *, is_urgent: bool) -> dict[str, int | None]:
        """Ask a master how long a message of each topic may be, in bytes; None if it tells no limit but the cluster's,
        `max_message_size`. Topics that accept no messages now are left out. For a client that sends nothing: no
        heartbeat starts.

        Retry only if it `is_urgent`; otherwise do not wait long. Raises as `add_topics`, but not `NotListedError`.
        """
        timings, wanted = self.settings.timings, sorted(topics)
        within = min(timings.silent_master_timeout, self.settings.rpc_timeout)
        found: dict[str, int | None] = {}
        for first in range(0, len(wanted), MAX_TOPICS):
            with self._lock:
                self._topics = frozenset(wanted[first : first + MAX_TOPICS])
                if is_urgent:
                    self._master.retry(self._list)
                else:
                    with self._master.within_deadline(within):
                        self._list()
                found |= {one.topic: one.max_message_size for one in self._registry.listed.values()}
        return found

    def message_limit(self, topic: str) -> int:
        """Return how many bytes a message's body may have: the least limit of the topic's brokers, else the cluster's
        setting, and never more than a frame takes.
        """
        sizes = [layout.max_message_size for layout in self.cluster.layouts.values() if layout.topic == topic]
        return min([*(size or self.max_message_size for size in sizes or [0]), self._frame_limit()])

    def _frame_limit(self) -> int:
        """Return how many bytes of a body surely fit into a frame. The brokers speak the framing of the masters."""
        settings = self.settings
        framings = {settings.framing or FRAMINGS().get(master, Framing.STANDARD) for master in settings.masters}
        return min(map(max_body_size, framings)) - _AROUND_BODY

    def close(self) -> None:
        message = pb.CloseRequestP2M(clientId=self.client_id, authInfo=self._master.certificate())
        self._close(Method.PRODUCER_CLOSE, message)

    def _ask_for_token(self) -> int:
        self.refresh_once()
        return self.visit_token

    def _register(self) -> None:
        message = pb.RegisterRequestP2M(
            clientId=self.client_id,
            topicList=sorted(self._topics),
            brokerCheckSum=-1,
            hostName=system.host_address(),
            authInfo=self._master.certificate(),
            appdConfig=pb.ApprovedClientConfig(configId=UNKNOWN_ID),
        )
        reply = self._master.ask(Method.PRODUCER_REGISTER, message, pb.RegisterResponseM2P, "registering a producer")
        self._registry.expect_short_lists()
        self._handle(reply)

    def _list(self) -> None:
        self._as_member(self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat, whose reply lists the topics."""
        message = pb.HeartRequestP2M(
            clientId=self.client_id,
            brokerCheckSum=self._broker_check_sum,
            hostName=system.host_address(),
            topicList=sorted(self._topics),
            authInfo=self._master.certificate(),
            appdConfig=pb.ApprovedClientConfig(configId=self._config_id),
        )
        asked = self._master.address
        what = "a producer's heartbeat"
        reply = self._master.ask(Method.PRODUCER_HEARTBEAT, message, pb.HeartResponseM2P, what)
        if self._master.address != asked:  # a failover, to a master that knew this client already
            self._registry.expect_short_lists()
        self._handle(reply)
        self._registry.set_topics(self._master.address, reply.topicInfos, parse_producer_topic)

    def _heartbeat(self) -> None:
        with self._lock:
            if self._master.state is not MemberState.CLOSED:
                self._list()

    def _handle(self, reply: pb.RegisterResponseM2P | pb.HeartResponseM2P) -> None:
        """Store the brokers, the visit token and the cluster's settings of a reply."""
        self._broker_check_sum = reply.brokerCheckSum
        self._registry.add_brokers(self._master.address, reply.brokerInfos)
        if reply.HasField("authorizedInfo"):
            self.token.value = reply.authorizedInfo.visitAuthorizedToken
        if reply.HasField("appdConfig"):
            self._config_id = reply.appdConfig.configId
            if reply.appdConfig.HasField("maxMsgSize") and reply.appdConfig.maxMsgSize > 0:
                self.max_message_size = reply.appdConfig.maxMsgSize
