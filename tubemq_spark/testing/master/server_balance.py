"""Consumers to which the master deals partitions out: register, heartbeat and the rounds.

wire: TMaster, DefaultLoadBalancer, ConsumerEventManager.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.metadata import Partition, SubscribeInfo, parse_subscribe_info
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import bad_shape
from tubemq_spark.testing.java import hash_order, is_blank, trim
from tubemq_spark.testing.master.access_check import AccessCheck
from tubemq_spark.testing.master.assignment import Shares, bound_shares, change, first_shares, next_shares
from tubemq_spark.testing.master.consumer_group import ConsumerGroup, ConsumeType, Member
from tubemq_spark.testing.master.consumer_groups import ConsumerGroups, Holding
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.reply_status import bad_request, filling_status
from tubemq_spark.testing.request_checks import (
    Field,
    check_rules,
    consumer_topics,
    required_partitions,
    required_text,
    topic_filters,
)

_MAX_DELAYS = 10  # rounds that a group may be left out for orders that its members do not report as done


class ServerBalance:
    def __init__(
        self, access: AccessCheck, groups: ConsumerGroups, lists: MetadataLists, catalog: Catalog, config: ServerConfig
    ) -> None:
        self._access = access
        self._groups = groups
        self._lists = lists
        self._catalog = catalog
        self._release = config.release
        self._random = random.Random(0)  # the server's is another one each time: here runs repeat
        self._rounds = 0
        self._is_first_round = True
        self._delays: dict[str, int] = {}

    def register(self, request: master_pb.RegisterRequestC2M, tls: bool) -> master_pb.RegisterResponseM2C:
        """Gives no partitions: they come with heartbeats, after a round."""
        reply = master_pb.RegisterResponseM2C()
        with filling_status(reply):
            member, held = self._check(request, tls)
            not_allocated = not held and (request.notAllocated or not request.HasField("notAllocated"))
            group = self._groups.join(member, not_allocated=not_allocated)
            if held:
                self._groups.held[member.client_id] = _holding(held)
            self._add_flow_rules(request, reply, group.name)
            reply.authorizedInfo.CopyFrom(self._access.authorized())
            reply.notAllocated = group.not_allocated
        return reply

    def heartbeat(self, request: master_pb.HeartRequestC2M) -> master_pb.HeartResponseM2C:
        """Takes the report of what the member holds and has done, gives the next order that it was not yet told."""
        reply = master_pb.HeartResponseM2C()
        with filling_status(reply):
            self._access.admit(request.authInfo, produce=False)
            client_id = required_text(Field.CLIENT_ID, request.clientId, self._release)
            group_name = required_text(Field.GROUP_NAME, request.groupName, self._release)
            self._access.check_active(client_id)
            group = self._groups.find(group_name)
            self._groups.beat(group_name, client_id)
            self._groups.held.setdefault(client_id, {})
            if request.reportSubscribeInfo:
                self._groups.held[client_id] = _holding(_subscribe_infos(request.subscribeInfo))
            colleagues = self._colleagues(client_id)
            if request.HasField("event") and request.event.rebalanceId > 0:
                group.not_allocated = False
                self._groups.orders.report(client_id, colleagues)
            order = self._groups.orders.next(client_id, colleagues) if colleagues else None
            if order is not None and not order.is_sent:
                order.is_sent = True
                reply.event.rebalanceId = order.rebalance_id
                reply.event.opType = order.op_type
                reply.event.subscribeInfo.extend(order.subscribe_info)
            self._add_flow_rules(request, reply, group_name)
            reply.authorizedInfo.CopyFrom(self._access.authorized())
            reply.notAllocated = group.not_allocated
        return reply

    def round(self) -> None:
        """Gives orders to the groups whose members have done all they were told."""
        self._rounds += 1
        names = self._groups.names(client_balance=False)
        if not self._is_first_round:
            busy = self._busy_groups()
            names = [name for name in names if name not in busy]
        groups = [group for name in names if (group := self._groups.get(name)) is not None]
        for group in groups:
            self._deal_bound(group)
        for group in groups:
            self._deal(group)
        self._is_first_round = False

    def forget(self) -> None:
        """As a standby that takes over: it has held rounds all the time, for nobody."""
        self._is_first_round = False
        self._delays.clear()

    def restart(self) -> None:
        """As a new process."""
        self._rounds = 0
        self._is_first_round = True
        self._delays.clear()

    def _check(self, request: master_pb.RegisterRequestC2M, tls: bool) -> tuple[Member, list[SubscribeInfo]]:
        self._access.admit(request.authInfo, produce=False)
        client_id = required_text(Field.CLIENT_ID, request.clientId, self._release)
        required_text(Field.HOST_NAME, request.hostName, self._release)
        group = required_text(Field.GROUP_NAME, request.groupName, self._release)
        is_old = self._release is Release.V1_2
        if is_old:
            topics = consumer_topics(request.topicList, None)
            offsets = required_partitions(request.requiredPartition, topics) if request.requireBound else {}
            filters = topic_filters(request.topicCondition)
        else:
            self._access.check_active(client_id)
            topics = consumer_topics(request.topicList, self._lists.deployed)
            filters = topic_filters(request.topicCondition)
            offsets = required_partitions(request.requiredPartition, topics) if request.requireBound else {}
        held = _subscribe_infos(request.subscribeInfo)
        source_count = request.totalCount if request.HasField("totalCount") else -1
        if request.requireBound:
            if is_blank(request.sessionKey):
                raise bad_request("[Parameter error] blank value of sessionKey!")
            if source_count <= 0:
                raise bad_request("[Parameter error] totalSourceCount must over zero!")
        if is_old:
            self._access.check_active(client_id)
        check_rules(self._catalog.rules, self._release, group, client_id, topics, filters)
        member = Member(
            client_id,
            group,
            ConsumeType.BOUND if request.requireBound else ConsumeType.NORMAL,
            topics,
            filters,
            tls,
            source_count,
            session_key=trim(request.sessionKey),
            select_big=request.selectBig or not request.HasField("selectBig"),
            offsets=offsets,
        )
        return member, held

    def _colleagues(self, client_id: str) -> list[str]:
        """The member's group: the one that it registered for last, whatever it calls its group now."""
        group = self._groups.group_of(client_id)
        return [] if group is None else list(group.members)

    def _busy_groups(self) -> set[str]:
        """The groups with orders that are not done. Who is too slow about them has them taken back."""
        busy = set()
        for client_id in hash_order(self._groups.orders.client_ids):
            group = self._groups.group_of(client_id)
            if group is None or not self._groups.is_alive(group.name, client_id):
                continue
            if self._delays.get(group.name, 0) >= _MAX_DELAYS:
                self._groups.orders.drop(client_id)
            else:
                busy.add(group.name)
        self._delays = {name: self._delays.get(name, 0) + 1 for name in busy}
        return busy

    def _deal_bound(self, group: ConsumerGroup) -> None:
        if group.waits_for_bound_round and group.is_full:
            partitions = [one for topic in hash_order(group.topics) for one in self._lists.subscribable(topic)]
            self._give_orders(group, bound_shares(group.booked, partitions))
            group.bound_rounds += 1

    def _deal(self, group: ConsumerGroup) -> None:
        if group.waits_for_bound_round:
            return
        partitions = {topic: self._lists.subscribable(topic) for topic in hash_order(group.topics)}
        if self._is_first_round:
            shares = first_shares(group.members, partitions)
        else:
            found = [one for of_topic in partitions.values() for one in of_topic]
            held = {
                client_id: self._groups.held[client_id] for client_id in group.members if client_id in self._groups.held
            }
            shares = next_shares(group.members, held, found, self._random.randrange)
        self._give_orders(group, shares)

    def _give_orders(self, group: ConsumerGroup, shares: Shares) -> None:
        disabled = [topic for topic in group.topics if self._catalog.rules.is_disabled(topic, group.name)]
        for client_id in hash_order(shares):
            member = group.members.get(client_id)
            if member is not None:
                held = self._groups.held.get(client_id, {})
                step = change(shares[client_id], held, disabled)
                removed = [self._info(member, one, held) for one in step.removed]
                added = [self._info(member, one, held) for one in step.added]
                self._groups.orders.give(client_id, self._rounds, removed, added)

    def _info(self, member: Member, partition: Partition, held: Holding) -> str:
        """What a member holds is named with the address that the member gave."""
        broker = held.get(partition.topic, {}).get(partition) or self._lists.broker(partition.broker_id, tls=member.tls)
        assert broker is not None  # partitions that are dealt out are on brokers that run
        return str(SubscribeInfo(member.client_id, member.group, broker, partition))

    def _add_flow_rules(
        self,
        request: master_pb.RegisterRequestC2M | master_pb.HeartRequestC2M,
        reply: master_pb.RegisterResponseM2C | master_pb.HeartResponseM2C,
        group: str,
    ) -> None:
        """Only for clients that name a rule that they know, if it is that they know none."""
        if not request.HasField("defFlowCheckId") and not request.HasField("groupFlowCheckId"):
            return
        reply.ssdStoreId = reply.defFlowCheckId = reply.groupFlowCheckId = reply.qryPriorityId = UNKNOWN_ID
        reply.defFlowControlInfo = reply.groupFlowControlInfo = " "
        if (rule := self._catalog.default_flow) is not None:
            reply.defFlowCheckId = rule.rule_id
            if request.defFlowCheckId != rule.rule_id:
                reply.defFlowControlInfo = rule.info
        if (rule := self._catalog.group_flows.get(group)) is not None:
            reply.groupFlowCheckId = rule.rule_id
            reply.qryPriorityId = rule.qry_priority_id
            if request.groupFlowCheckId != rule.rule_id:
                reply.groupFlowControlInfo = rule.info


def _subscribe_infos(texts: Iterable[str]) -> list[SubscribeInfo]:
    """`RefusalError` for other shapes than `clientId@group#brokerId:host:port#topic:partitionId`."""
    try:
        return [parse_subscribe_info(text) for text in texts if not is_blank(text)]
    except ProtocolError:
        raise bad_shape() from None


def _holding(infos: Iterable[SubscribeInfo]) -> Holding:
    holding: Holding = {}
    for info in infos:
        holding.setdefault(info.partition.topic, {})[info.partition] = info.broker
    return holding
