# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group at the master: the messages that register it, list partitions and keep it alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType

from tubemq_spark.client import system
from tubemq_spark.client.cluster.master_client import MasterSession, MemberState
from tubemq_spark.client.cluster.unknown_topics import READ_ADVICE, UnknownTopicError
from tubemq_spark.client.retries import Deadline, Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.constants import UNKNOWN_ID, Method
from tubemq_spark.protocol.errcode import Reaction, reaction_to, undeployed_topics
from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.metadata import Broker, Partition, TopicOnBroker, parse_consumer_topic
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

_log = logging.getLogger(__name__)


class ConsumerSession(MasterSession):
    """A member of a consumer group with client-side balance: it sees all partitions and claims those it wants.

    `flow_rules` is the rate limit of the group. The master sends it with the registration and each heartbeat.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, Sequence[str]] = MappingProxyType({}),
        *,
        may_lack_topics: bool = False,
    ) -> None:
        """`filters` are message types by topic. All members of a group must have the same filters. A member that
        `may_lack_topics` registers without those that the master does not have, and takes them back later."""
        super().__init__(settings, "consumer")
        self.group = group
        self.topics = tuple(topics)
        self._filters = dict(filters)
        self._may_lack_topics = may_lack_topics
        self._left_out: frozenset[str] = frozenset()  # topics of which the master said that it does not have them
        self.flow_rules = FlowRules()
        self.held: Callable[[], list[Partition]] = list  # the partitions that heartbeats report to the master

    def register(self, wait: float = 0.0) -> None:
        """Join the group, list the partitions of its topics, and start the heartbeat. If members have other topics or
        filters, or are another kind of consumer, `wait` so many seconds: one that was killed is a member for 30 s more.

        Raise `UnknownTopicError` for topics that must not lack, `ConfigError` if such members stay, `AuthError` if the
        credentials or the group's permissions do not suffice, `TransportError` if no master answers.
        """
        try:
            with self._lock:
                self._join(wait)
                self._master.retry(self._list)
                self._wait_for_topics()
        except UnknownTopicError as error:
            self.close()
            raise error.with_similar_names(self.settings) from None
        except BaseException:  # also if Spark stops the process now
            self.close()
            raise
        self._start_heartbeat(self._heartbeat)

    def _join(self, wait: float) -> None:
        retries = Retries(wait, self.settings.clock, f"joining group {self.group}", _log)
        while True:
            try:
                self._master.retry(self._register)
            except ConfigError as error:
                if reaction_to(error.code) is not Reaction.OTHER_MEMBERS or not retries.failed(error):
                    raise
            else:
                return retries.progress()

    @property
    def missing_topics(self) -> list[str]:
        """The topics of which no partition is known."""
        return self.cluster.missing(self.topics)

    def change_topics(self, topics: Sequence[str], filters: Mapping[str, Sequence[str]]) -> None:
        """Leave the group, so that the next request joins it with these topics and filters."""
        with self._lock:
            self.topics, self._filters = tuple(topics), dict(filters)
            self._leave()

    def refresh_soon(self) -> None:
        """As `refresh`, for a caller that goes on without an answer: ask each master once at most, and do not wait long
        for it, above all if no master has answered before. Raise `TransportError` if none answers in that time."""
        within = self.settings.rpc_timeout
        if not self._master.is_registered:
            within = min(self.settings.timings.silent_master_timeout, within)
        deadline = Deadline(within)
        with self._locked_within(within), self._master.within_deadline(deadline.left):
            self._list()

    def listed(self, at_most: float = inf) -> set[Partition]:
        """Ask again, for `at_most` seconds, and return only the partitions that the master lists now; `cluster` has
        earlier ones, too."""
        with self._lock:
            self._master.retry(self._list, at_most)
            return {one for layout in self._registry.listed.values() for one in layout.all_partitions()}

    def deployed(self) -> Mapping[tuple[str, int], TopicOnBroker]:
        """Return where the topics are deployed, on running brokers and on others, by (topic, broker id).

        For a client that does not read: no heartbeat starts. The caller must `close`. Raises as `register` does, but
        not for unknown topics.
        """
        with self._lock:
            self._master.retry(self._list)
            return self._registry.listed

    def forget_unlisted(self) -> None:
        """Drop the partitions that the master did not list when it was asked last."""
        with self._lock:
            self._registry.forget_unlisted()

    def broker(self, partition: Partition) -> Broker:
        """Return the broker of `partition`. Raise `ConfigError` if the master does not know it."""
        if partition.broker_id not in self.cluster.brokers:
            self.refresh()
        broker = self.known_broker(partition.broker_id)
        if broker is None:
            raise ConfigError(
                f"the master {self._master.address} knows no broker {partition.broker_id}, which has {partition}. "
                "Check that it was not removed, and that option 'tubemq.master' names the right cluster"
            )
        return broker

    def register_once(self) -> None:
        """Join the group without a heartbeat, for a moment. Ask each master once at most. Raises as `register` does."""
        with self._lock:
            self._register()

    def close(self) -> None:
        self._close(Method.CONSUMER_CLOSE, self._close_request())

    def _close_request(self) -> pb.CloseRequestC2M:
        return pb.CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=self._master.certificate())

    def _ask_for_token(self) -> int:
        self._heartbeat()
        return self.visit_token

    def _register(self) -> None:
        """Join the group. A member that `may_lack_topics` joins with those that the master has; with none it stays
        outside, and tries again with its next request."""
        left_out: frozenset[str] = frozenset()
        while topics := [topic for topic in self.topics if topic not in left_out]:
            try:
                self._register_for(topics)
                break
            except ConfigError as error:
                refused = undeployed_topics(error.code, str(error)).intersection(topics)
                if not refused:
                    raise
                if not self._may_lack_topics:
                    raise UnknownTopicError(refused, READ_ADVICE) from None
                left_out |= refused
        self._warn_of_missing(left_out - self._left_out)
        if left_out:
            self._registry.keep(topics)
        self._left_out = left_out

    def _register_for(self, topics: Sequence[str]) -> None:
        conditions = [(topic, types) for topic, types in sorted(self._filters.items()) if topic in topics]
        message = pb.RegisterRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            hostName=system.host_address(),
            sourceCount=-1,  # the group does not count its members
            nodeId=0,
            topicList=topics,
            topicCondition=[f"{topic}#{','.join(types)}" for topic, types in conditions],
            opsTaskInfo=self.flow_rules.known(),
            authInfo=self._master.certificate(),
        )
        what = f"registering group {self.group} for {', '.join(topics)}"
        try:
            reply = self._master.ask(Method.CONSUMER_REGISTER_V2, message, pb.RegisterResponseM2CV2, what)
        except ConfigError as error:
            # Another client may have joined while this one was away, or a task's member has topics from before.
            if reaction_to(error.code) is not Reaction.OTHER_MEMBERS or self._stop_heartbeat is None:
                raise
            raise TransportError(str(error)) from None
        self._registry.expect_short_lists()
        self._handle(reply)

    def _leave(self) -> None:
        """Leave the group, so that the next request joins it with all topics: a member cannot change them."""
        if self._master.is_registered:
            self._master.close(Method.CONSUMER_CLOSE, self._close_request())
            self._master.state = MemberState.FORGOTTEN

    def _list(self) -> None:
        if self._left_out:
            self._leave()
        self._as_member(self._ask_for_partitions)

    def _ask_for_partitions(self) -> None:
        if self._left_out.issuperset(self.topics):
            self._registry.set_topics(self._master.address, [], parse_consumer_topic)
            return
        message = pb.GetPartMetaRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            brokerConfigId=UNKNOWN_ID,
            topicMetaInfoId=UNKNOWN_ID,
            authInfo=self._master.certificate(),
        )
        what = f"asking for the partitions of {', '.join(self.topics)}"
        reply = self._master.ask(Method.GET_PARTITION_META, message, pb.GetPartMetaResponseM2C, what)
        self._registry.add_brokers(self._master.address, reply.brokerConfigList)
        self._registry.set_topics(self._master.address, reply.topicMetaInfoList, parse_consumer_topic)

    def _wait_for_topics(self) -> None:
        """Wait until all topics are listed. Releases before 1.3 do not refuse an unknown topic, and a new master does
        not know all topics at once.
        """

        def missing() -> list[str]:
            return [topic for topic in self.missing_topics if topic not in self._left_out]

        self._list_until(lambda: not missing())
        if (topics := missing()) and not self._may_lack_topics:
            raise UnknownTopicError(topics, READ_ADVICE)
        self._warn_of_missing(topics)

    def _warn_of_missing(self, topics: Collection[str]) -> None:
        if topics:
            _log.warning(
                "[topics-missing] the master %s lists no topic %s, which group %s is to read",
                self._master.address, ", ".join(sorted(topics)), self.group,
            )  # fmt: skip

    def _heartbeat(self) -> None:
        with self._lock:
            if self._master.state is not MemberState.CLOSED:
                self._as_member(self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        if self._left_out.issuperset(self.topics):
            return
        report = pb.ClientSubRepInfo(
            brokerConfigId=UNKNOWN_ID,
            topicMetaInfoId=UNKNOWN_ID,
            reportSubInfo=True,
            partSubInfo=[f"{one.topic}#{one.broker_id}:{one.partition_id}" for one in self.held()],
        )
        message = pb.HeartRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            subRepInfo=report,
            opsTaskInfo=self.flow_rules.known(),
            authInfo=self._master.certificate(),
        )
        what = f"the heartbeat of group {self.group}"
        self._handle(self._master.ask(Method.CONSUMER_HEARTBEAT_V2, message, pb.HeartResponseM2CV2, what))

    def _handle(self, reply: pb.RegisterResponseM2CV2 | pb.HeartResponseM2CV2) -> None:
        """Store the visit token, the flow rules and the brokers of a reply."""
        if reply.HasField("authorizedInfo"):
            self.token.value = reply.authorizedInfo.visitAuthorizedToken
        if reply.HasField("opsTaskInfo"):
            before, self.flow_rules = self.flow_rules, self.flow_rules.updated(reply.opsTaskInfo)
            for old, new in zip(before, self.flow_rules, strict=True):
                if new.problem and new != old:
                    _log.warning(
                        "[flow-rule-ignored] group %s: the %s rule is not obeyed: %s",
                        self.group,
                        new.owner,
                        new.problem,
                    )
                elif new != old:
                    _log.info("group %s: the %s %s", self.group, *((new, "holds") if new.is_known else (old, "ended")))
        self._registry.add_brokers(self._master.address, reply.brokerConfigList)
