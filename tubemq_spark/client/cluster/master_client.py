"""The master: where topics and brokers are, and which clients are alive.

A session registers once and then asks and heartbeats. The master that answered last is asked first; when it refuses, is
silent or stands by, the next of the list is, and the session registers again there. A new master's lists are short for
a while after a failover, so what is known is only ever added to.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.backoff import Deadline, RetryBackoff, delays
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.net.tls import warn_of_unverified_names
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken, authorization
from tubemq_spark.errors import ConfigError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.auth import master_certificate
from tubemq_spark.protocol.constants import DEFAULT_MAX_MESSAGE_SIZE, UNKNOWN_ID, Method, ServiceType
from tubemq_spark.protocol.consumer_lifecycle import MEMBER, MemberEvent, MemberState
from tubemq_spark.protocol.errcode import ErrCode, error_for_code
from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.lifecycle import Lifecycle
from tubemq_spark.protocol.metadata import (
    Address,
    Broker,
    Partition,
    TopicOnBroker,
    check_brokers,
    check_sizes,
    parse_brokers,
    parse_consumer_topic,
    parse_layouts,
    parse_producer_topic,
)
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

HOST = "127.0.0.1"  # the servers log it and want an IPv4 address; what it is changes nothing
_FIRST_CONTACT = 3.0  # seconds in which a master must answer a session's first call, lest a typing error take a minute
_LISTS_FILL_UP = 5.0  # seconds within which a topic must appear in a new session's lists

_counter = itertools.count(1)


def new_client_id(role: str) -> str:
    """A client id that no other client has: `spark_<role>_<pid>_<ms>_<n>_<random>`."""
    return f"spark_{role}_{os.getpid()}_{time.time_ns() // 1_000_000}_{next(_counter)}_{random.getrandbits(24):06x}"


@dataclass(frozen=True)
class Cluster:
    """What the master said so far: brokers by id, and layouts by (topic, broker id)."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    layouts: Mapping[tuple[str, int], TopicOnBroker] = field(default_factory=dict)

    def with_more(self, brokers: Mapping[int, Broker], layouts: Iterable[TopicOnBroker]) -> Cluster:
        """The union; the newer word counts, except that partitions do not go away. `ProtocolError` when there come to
        be more than a cluster has."""
        merged = dict(self.layouts)
        for layout in layouts:
            known = merged.get((layout.topic, layout.broker_id))
            if known is None or layout.stores * layout.partitions >= known.stores * known.partitions:
                merged[layout.topic, layout.broker_id] = layout
        known_brokers = {**self.brokers, **brokers}
        check_brokers(len(known_brokers), "; ".join(map(str, list(brokers.values())[:1])))
        check_sizes(merged.values())
        return Cluster(known_brokers, merged)

    @cached_property
    def _by_topic(self) -> Mapping[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        for (topic, broker_id), layout in sorted(self.layouts.items(), key=itemgetter(0)):
            if broker_id in self.brokers:
                found.setdefault(topic, []).extend(layout.all_partitions())
        return found

    def partitions(self, topic: str) -> list[Partition]:
        """The partitions of `topic` on brokers whose address is known, in the order of brokers and ids."""
        return list(self._by_topic.get(topic, ()))

    def in_store_of(self, partition: Partition) -> int:
        """How many partitions share the store of `partition`, itself included; 0 where the master told of none."""
        layout = self.layout(partition)
        return layout.partitions if layout is not None and partition.store_id < layout.stores else 0

    def layout(self, partition: Partition) -> TopicOnBroker | None:
        return self.layouts.get((partition.topic, partition.broker_id))

    def is_sole(self, partition: Partition) -> bool:
        """Whether the partition has its store for itself."""
        layout = self.layout(partition)
        return layout is not None and layout.partitions == 1

    def missing(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if not self.partitions(topic)]


class NotListedError(ConfigError):
    """The `master` lists no partition of `topics` that takes messages. They are unknown, or their brokers are down."""

    def __init__(self, master: Address, topics: Iterable[str]) -> None:
        self.master = master
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"the master {master} knows no topic {', '.join(self.topics)} that takes messages: "
            "check the topic's name, or have it created or opened for publishing on the cluster"
        )


class MasterSession:
    """What producers and consumers have in common at the master."""

    def __init__(self, settings: ClientSettings, role: str) -> None:
        warn_of_unverified_names(settings.tls)
        self.settings = settings
        self.client_id = new_client_id(role)
        self.cluster = Cluster()
        self.token = VisitToken(self._ask_for_token)
        self._masters = list(settings.masters)
        self._member = Lifecycle(f"{self.client_id} at the master", MemberState.NEW, MEMBER)
        self._lock = threading.RLock()  # the heartbeat thread and the session's owner take turns
        self._stop_beating: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client_id} {self._member.state.name} at {self._masters[0]}>"

    @property
    def is_forgotten(self) -> bool:
        """Whether no master knows it at the moment, as far as heard."""
        return self._member.state is MemberState.FORGOTTEN

    @property
    def visit_token(self) -> int:
        """The last one that a master gave."""
        return self.token.value

    def broker_authorization(self) -> broker_pb.AuthorizedInfo:
        return authorization(self.settings.credentials, self.visit_token)

    def _ask_for_token(self) -> int:
        """Asks each master once at most; the token of its answer."""
        raise NotImplementedError

    def _certificate(self) -> master_pb.MasterCertificateInfo | None:
        if self.settings.credentials is None:
            return None
        return master_certificate(self.settings.credentials, time.time_ns() // 1_000_000, random.getrandbits(31))

    def _ask(self, method: Method, message: Message, kind: type[M], what: str) -> M:
        """One call to the first master that is in service; those before it go to the end of the list."""
        failures = []
        for _ in self._masters:
            address = self._masters[0]
            said = f"{what} at the master {address}"
            try:
                outcome = send_requests(
                    self.settings, [ServerRequest(address, ServiceType.MASTER, method, message, said)]
                )[0]
                return unwrap_reply(outcome, kind, said)
            except TransportError as error:
                failures.append(str(error))
                self._masters.append(self._masters.pop(0))
                if self._member.state is MemberState.REGISTERED:
                    self._member.on(MemberEvent.FORGOTTEN)
            except ServerError as error:
                if error.name != "Exception":
                    raise
                raise ConfigError(
                    f"{address} answers like a TubeMQ broker, not like a master ({error.message}): "
                    "check option 'tubemq.master', masters listen on 8715 by default"
                ) from None
        raise TransportError(
            f"no master answered: {'; '.join(failures)}. Check option 'tubemq.master' and that the master runs"
        )

    def _insist(self, what: Callable[[], M], *, once: bool = False) -> M:
        """`what` again and again while no master is in service: for long, once one was."""
        fresh = self._member.state is MemberState.NEW and not self.settings.are_proven
        masters = ", ".join(map(str, self.settings.masters))
        patience = min(_FIRST_CONTACT, self.settings.retry_for) if fresh else self.settings.retry_for
        retries = Retries(_log, f"asking the master {masters}", 0.0 if once else patience)
        while True:
            try:
                reply = what()
            except TransportError as error:
                if once or not retries.failed(error):
                    raise
            else:
                retries.progress()
                return reply

    def _check(self, code: int, message: str, what: str) -> None:
        if code == ErrCode.NOT_READY:
            raise TransportError(f"{what}: the master is not ready")
        if code != ErrCode.SUCCESS:
            raise error_for_code(code, message, f"{what} at the master {self._masters[0]}")

    def _known(self) -> None:
        """The master that answered knows this client, be it another one than the last."""
        known = self._member.state is MemberState.REGISTERED
        self._member.on(MemberEvent.ANSWERED if known else MemberEvent.REGISTERED)

    def _learn(self, brokers: Sequence[str], layouts: Iterable[TopicOnBroker]) -> None:
        with self._judging_lists():
            self.cluster = self.cluster.with_more(parse_brokers(brokers, self.settings.default_broker_port), layouts)

    def _layouts(self, texts: Sequence[str], parse: Callable[[str], list[TopicOnBroker]]) -> list[TopicOnBroker]:
        with self._judging_lists():
            return parse_layouts(texts, parse)

    @contextmanager
    def _judging_lists(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            raise ProtocolError(
                f"the master {self._masters[0]} sent lists that cannot be used: {error}. Check that option "
                "'tubemq.master' names the masters of a TubeMQ cluster, and what they list"
            ) from None

    def _start_beating(self, beat: Callable[[], None]) -> None:
        with self._lock:  # two threads may come with the first topics at once
            if self._stop_beating is None:
                self._stop_beating = HEARTBEAT.keep(beat)

    def _close(self, method: Method, message: Message) -> None:
        """Says good-bye, once; a master that does not hear it finds out by itself."""
        with self._lock:
            if self._stop_beating is not None:
                self._stop_beating()
            was = self._member.state
            self._member.on(MemberEvent.CLOSED)
            if was is MemberState.REGISTERED:
                said = f"closing at the master {self._masters[0]}"
                send_requests(
                    self.settings,
                    [ServerRequest(self._masters[0], ServiceType.MASTER, method, message, said)],
                    timeout=min(2.0, self.settings.rpc_timeout),
                )


class ConsumerSession(MasterSession):
    """A member of a consumer group with client-side balance: it sees all partitions and claims what it likes.

    `flow_rules` is how fast the group may read, as the master said last: at the registration, then with each heartbeat.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`filters` are message types by topic; all members of a group must have the same ones."""
        super().__init__(settings, "consumer")
        self.group = group
        self.topics = tuple(topics)
        self._filters = dict(filters)
        self.flow_rules = FlowRules()
        self._listed: Mapping[tuple[str, int], TopicOnBroker] = {}  # the last answer of a master alone

    def register(self) -> None:
        """Joins the group and learns the partitions of its topics; heartbeats follow by themselves.

        `ConfigError` when a topic is unknown or the group is in use by other kinds of consumers, `AuthError` when the
        credentials or the group's permissions do not do, `TransportError` when no master answers.
        """
        try:
            with self._lock:
                self._insist(self._register)
                self._insist(self._ask_meta)
                self._wait_for_topics()
        except TubeMQError:
            self.close()
            raise
        self._start_beating(self._beat)

    def refresh(self) -> Cluster:
        """Asks for the partitions again, registering anew where that is needed. Raises as `register` does."""
        with self._lock:
            self._insist(self._ask_meta)
            return self.cluster

    def listed(self, *, once: bool = False) -> set[Partition]:
        """The partitions that the master lists now, asked anew; `cluster` has those of earlier answers too. Each master
        is asked `once` at most, or as long as the settings say."""
        with self._lock:
            self._insist(self._ask_meta, once=once)
            return {partition for layout in self._listed.values() for partition in layout.all_partitions()}

    def look_up(self) -> Mapping[tuple[str, int], TopicOnBroker]:
        """Where the topics are deployed, whether these brokers run or not, for who will not read: without heartbeats.
        Raises as `register`, but for topics that are not there; `close` is needed all the same."""
        with self._lock:
            self._insist(self._ask_meta)
            return self._listed

    def believe_the_lists(self) -> None:
        """What the master did not list when it was last asked is gone."""
        with self._lock:
            self.cluster = Cluster(self.cluster.brokers, self._listed)

    def broker(self, partition: Partition) -> Broker:
        """Where `partition` is; `ConfigError` when the master does not know its broker."""
        if partition.broker_id not in self.cluster.brokers:
            self.refresh()
        try:
            return self.cluster.brokers[partition.broker_id]
        except KeyError:
            raise ConfigError(
                f"the master {self._masters[0]} knows no broker {partition.broker_id}, which has {partition}: was it "
                "taken out of the cluster, or is 'tubemq.master' another cluster's?"
            ) from None

    def join_for_token(self) -> int:
        """Joins the group without heartbeats; the visit token that the master gives. Asks each master once at most, and
        raises as `register` does.
        """
        with self._lock:
            self._register()
            return self.visit_token

    def _ask_for_token(self) -> int:
        self._beat()
        return self.visit_token

    def close(self) -> None:
        message = master_pb.CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=self._certificate())
        self._close(Method.CONSUMER_CLOSE, message)

    def _register(self) -> master_pb.RegisterResponseM2CV2:
        message = master_pb.RegisterRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            hostName=HOST,
            sourceCount=-1,  # the group does not count its members
            nodeId=0,
            topicList=self.topics,
            topicCondition=[f"{topic}#{','.join(types)}" for topic, types in sorted(self._filters.items())],
            opsTaskInfo=self.flow_rules.known(),
            authInfo=self._certificate(),
        )
        what = f"registering group {self.group} for {', '.join(self.topics)}"
        reply = self._ask(Method.CONSUMER_REGISTER_V2, message, master_pb.RegisterResponseM2CV2, what)
        self._check(reply.errCode, reply.errMsg, what)
        self._member.on(MemberEvent.REGISTERED)
        self._note(reply)
        self._learn(reply.brokerConfigList, ())
        return reply

    def _ask_meta(self) -> master_pb.GetPartMetaResponseM2C:
        if self._member.state is not MemberState.REGISTERED:
            self._register()
        message = master_pb.GetPartMetaRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            brokerConfigId=UNKNOWN_ID,
            topicMetaInfoId=UNKNOWN_ID,
            authInfo=self._certificate(),
        )
        what = f"asking for the partitions of {', '.join(self.topics)}"
        reply = self._ask(Method.GET_PARTITION_META, message, master_pb.GetPartMetaResponseM2C, what)
        if reply.errCode == ErrCode.HB_NO_NODE:
            self._member.on(MemberEvent.FORGOTTEN)
            raise TransportError(f"{what}: the master has forgotten this client")
        self._check(reply.errCode, reply.errMsg, what)
        self._known()
        layouts = self._layouts(reply.topicMetaInfoList, parse_consumer_topic)
        self._learn(reply.brokerConfigList, layouts)
        self._listed = {(layout.topic, layout.broker_id): layout for layout in layouts}
        return reply

    def _wait_for_topics(self) -> None:
        """Releases before 1.3 do not refuse an unknown topic, and a new master does not know its topics at once."""
        stamina = RetryBackoff(min(_LISTS_FILL_UP, self.settings.retry_for))
        while missing := self.cluster.missing(self.topics):
            if not stamina.pause():
                raise ConfigError(
                    f"the master {self._masters[0]} knows no topic {', '.join(missing)}: "
                    "check option 'subscribe', or have the topic created on the cluster"
                )
            self._insist(self._ask_meta)

    def _beat(self) -> None:
        with self._lock:
            if self._member.state is MemberState.CLOSED:
                return
            if self._member.state is not MemberState.REGISTERED:
                self._register()
            message = master_pb.HeartRequestC2MV2(
                clientId=self.client_id,
                groupName=self.group,
                opsTaskInfo=self.flow_rules.known(),
                authInfo=self._certificate(),
            )
            what = f"the heartbeat of group {self.group}"
            reply = self._ask(Method.CONSUMER_HEARTBEAT_V2, message, master_pb.HeartResponseM2CV2, what)
            if reply.errCode == ErrCode.HB_NO_NODE:
                self._member.on(MemberEvent.FORGOTTEN)
                self._register()
                return
            self._check(reply.errCode, reply.errMsg, what)
            self._known()
            self._note(reply)
            self._learn(reply.brokerConfigList, ())

    def _note(self, reply: master_pb.RegisterResponseM2CV2 | master_pb.HeartResponseM2CV2) -> None:
        if reply.HasField("authorizedInfo"):
            self.token.value = reply.authorizedInfo.visitAuthorizedToken
        if reply.HasField("opsTaskInfo"):
            before, self.flow_rules = self.flow_rules, self.flow_rules.told(reply.opsTaskInfo)
            for old, new in zip(before, self.flow_rules, strict=True):
                if new.problem and new != old:
                    _log.warning("group %s: the %s rule is not obeyed: %s", self.group, new.owner, new.problem)
                elif new != old:
                    _log.info("group %s: the %s %s", self.group, *((new, "holds") if new.is_known else (old, "ended")))


class ProducerSession(MasterSession):
    """A producer at the master: the publishable topics, where their partitions are, and how long messages may be."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings, "producer")
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        self._topics: frozenset[str] = frozenset()
        self._listed: Mapping[tuple[str, int], TopicOnBroker] = {}
        self._broker_check_sum = -1
        self._lists_full_at = float("-inf")  # on the monotonic clock, at the latest
        self._has_brokers = False  # whether the master has listed brokers since
        self._config_id = UNKNOWN_ID

    def add_topics(self, topics: Iterable[str]) -> None:
        """Declares `topics` and learns their partitions. `NotListedError` for those that take no messages now,
        `AuthError`, `TransportError` when no master answers."""
        wanted = frozenset(topics)
        if wanted <= self._topics and not self.cluster.missing(wanted):
            return  # without the lock: a heartbeat to a silent master must not hold up who knows enough
        with self._lock:
            self._topics |= wanted
            try:
                self._insist(self._heartbeat)
                if self.cluster.missing(wanted):  # one may be listed with the heartbeat after that which names it
                    self._ask_until(lambda: not self.cluster.missing(wanted))
            finally:
                missing = self.cluster.missing(wanted)
                self._topics -= frozenset(missing)
            if missing:
                raise NotListedError(self._masters[0], missing)
        self._start_beating(self._beat)

    def look_for(self, partition: Partition) -> bool:
        """Whether there is this partition of a topic that was added, as a master says that is asked now, once or as
        long as it may not know yet. Raises as `refresh` does."""

        def is_told() -> bool:
            is_strange = self._has_brokers and partition.broker_id not in self.cluster.brokers
            return is_strange or self.lists_any(
                partition.topic, partition.broker_id
            )  # it lists all of a broker at once

        with self._lock:
            self._ask_until(is_told)
            return partition in self.cluster.partitions(partition.topic)

    def _ask_until(self, is_told: Callable[[], bool]) -> None:
        """Asks once, and then again for what a master that took over a moment ago may not know yet."""
        longest = Deadline(self.settings.retry_for + _LISTS_FILL_UP)  # lest a master that forgets us holds us for ever
        pauses = delays()
        while True:
            self._insist(self._heartbeat)
            left = min(self._lists_full_at - time.monotonic(), longest.left)
            if left <= 0 or is_told() or self._is_list_full():
                return
            time.sleep(min(next(pauses), left))

    def _is_list_full(self) -> bool:
        """Whether all brokers have come to the master: it knows them by its configuration, their topics from them."""
        return self._has_brokers and self.cluster.brokers.keys() <= {broker_id for _, broker_id in self._listed}

    def _lists_may_be_short(self) -> None:
        """For a while at most. It is the same for all who ask, so that it is waited for once."""
        self._has_brokers = False
        self._lists_full_at = time.monotonic() + min(_LISTS_FILL_UP, self.settings.retry_for)

    def refresh(self) -> Cluster:
        """Asks for partitions and token, until a master answers. Raises as `add_topics` does."""
        with self._lock:
            self._insist(self._heartbeat)
            return self.cluster

    def refresh_once(self) -> Cluster:
        """Asks each master once at most for partitions and token; raises as `add_topics` does."""
        with self._lock:
            self._heartbeat()
            return self.cluster

    def lists(self, partition: Partition) -> bool:
        """Whether the master, when it was asked last, had the partition among those that take messages."""
        layout = self._listed.get((partition.topic, partition.broker_id))
        return layout is not None and partition in layout.all_partitions()

    def lists_any(self, topic: str, broker_id: int | None = None) -> bool:
        """Whether that list had any partition of `topic`, on this broker if one is given."""
        return any(topic == name and broker_id in (None, listed) for name, listed in self._listed)

    def message_limit(self, topic: str) -> int:
        """How many bytes a message's body may have: what the topic's brokers take, else the cluster's setting."""
        sizes = (layout.max_message_size for layout in self.cluster.layouts.values() if layout.topic == topic)
        return min((size or self.max_message_size for size in sizes), default=self.max_message_size)

    def _ask_for_token(self) -> int:
        self.refresh_once()
        return self.visit_token

    def close(self) -> None:
        message = master_pb.CloseRequestP2M(clientId=self.client_id, authInfo=self._certificate())
        self._close(Method.PRODUCER_CLOSE, message)

    def _register(self) -> None:
        message = master_pb.RegisterRequestP2M(
            clientId=self.client_id,
            topicList=sorted(self._topics),
            brokerCheckSum=-1,
            hostName=HOST,
            authInfo=self._certificate(),
            appdConfig=master_pb.ApprovedClientConfig(configId=UNKNOWN_ID),
        )
        what = "registering a producer"
        reply = self._ask(Method.PRODUCER_REGISTER, message, master_pb.RegisterResponseM2P, what)
        self._check(reply.errCode, reply.errMsg, what)
        self._member.on(MemberEvent.REGISTERED)
        self._lists_may_be_short()
        self._note(reply)

    def _heartbeat(self) -> master_pb.HeartResponseM2P:
        if self._member.state is not MemberState.REGISTERED:
            self._register()
        message = master_pb.HeartRequestP2M(
            clientId=self.client_id,
            brokerCheckSum=self._broker_check_sum,
            hostName=HOST,
            topicList=sorted(self._topics),
            authInfo=self._certificate(),
            appdConfig=master_pb.ApprovedClientConfig(configId=self._config_id),
        )
        what = "a producer's heartbeat"
        reply = self._ask(Method.PRODUCER_HEARTBEAT, message, master_pb.HeartResponseM2P, what)
        if reply.errCode == ErrCode.HB_NO_NODE:
            self._member.on(MemberEvent.FORGOTTEN)
            raise TransportError(f"{what}: the master has forgotten this client")
        self._check(reply.errCode, reply.errMsg, what)
        if self._member.state is not MemberState.REGISTERED:  # it has gone to another master, which knows it already
            self._lists_may_be_short()
        self._known()
        self._note(reply)
        layouts = self._layouts(reply.topicInfos, parse_producer_topic)
        listed = {(layout.topic, layout.broker_id): layout for layout in layouts}
        if self._listed.keys() - listed.keys():
            self._lists_may_be_short()
        # In this order: who sees the new cluster judges by the new list.
        self._listed = listed
        self._learn((), layouts)
        return reply

    def _beat(self) -> None:
        with self._lock:
            if self._member.state is not MemberState.CLOSED:
                self._heartbeat()

    def _note(self, reply: master_pb.RegisterResponseM2P | master_pb.HeartResponseM2P) -> None:
        self._broker_check_sum = reply.brokerCheckSum
        self._learn(reply.brokerInfos, ())
        self._has_brokers |= bool(reply.brokerInfos)
        if reply.HasField("authorizedInfo"):
            self.token.value = reply.authorizedInfo.visitAuthorizedToken
        if reply.HasField("appdConfig"):
            self._config_id = reply.appdConfig.configId
            if reply.appdConfig.HasField("maxMsgSize") and reply.appdConfig.maxMsgSize > 0:
                self.max_message_size = reply.appdConfig.maxMsgSize
