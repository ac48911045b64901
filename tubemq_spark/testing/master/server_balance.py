# SPDX-License-Identifier: Apache-2.0
"""Consumers with server-side balance: register, heartbeat and rebalance. The master assigns the partitions.

wire: TMaster, DefaultLoadBalancer, ConsumerEventManager.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.metadata import Partition, partition_info
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import AccessCheck
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.dispatch import bad_request, optional
from tubemq_spark.testing.java import hash_order, is_blank, trim
from tubemq_spark.testing.master.assignment import Shares, bound_shares, change, first_shares, next_shares
from tubemq_spark.testing.master.consumer_group import ConsumerGroup, ConsumeType, Member, check_rules
from tubemq_spark.testing.master.consumer_groups import ConsumerGroups, Holding, add_flow_rules
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.request_checks import (
    consumer_topics,
    parse_subscribe_info,
    required_partitions,
    topic_filters,
)

_Request = master_pb.RegisterRequestC2M | master_pb.HeartRequestC2M
_Reply = master_pb.RegisterResponseM2C | master_pb.HeartResponseM2C
_MAX_DELAYS = 10  # rebalances that skip a group because its members have not reported their orders


class ServerBalance:
    """The requests of such consumers, and the rebalances of their groups."""

    def __init__(self, access: AccessCheck, groups: ConsumerGroups, lists: MetadataLists, catalog: Catalog) -> None:
        self._access = access
        self._groups = groups
        self._lists = lists
        self._catalog = catalog
        self._release = catalog.config.release
        self._random = random.Random(0)  # a fixed seed, so that runs repeat; the real server has none
        self._rebalances = 0
        self._is_first_rebalance = True
        self._delays: dict[str, int] = {}

    def register(self, request: master_pb.RegisterRequestC2M, reply: master_pb.RegisterResponseM2C, tls: bool) -> None:
        """Join the group. Partitions come with heartbeats, after a rebalance.

        Release 1.2 checks its role later than 2.5, and does not check whether the topics exist.
        """
        member, held = self._check(request, tls)
        not_allocated = not held and optional(request, "notAllocated", True)
        group = self._groups.join(member, not_allocated=not_allocated)
        if held:
            self._groups.held[member.client_id] = held
        self._add_settings(request, reply, group)

    def heartbeat(self, request: master_pb.HeartRequestC2M, reply: master_pb.HeartResponseM2C) -> None:
        """Record what the member holds and has done; return its next order that was not sent yet."""
        client_id, group_name = self._access.consumer(request)
        group = self._groups.find(group_name)
        self._groups.beat(group_name, client_id)
        self._groups.held.setdefault(client_id, {})
        if request.reportSubscribeInfo:
            self._groups.held[client_id] = _holding(request.subscribeInfo)
        members = self._members_with(client_id)
        if request.HasField("event") and request.event.rebalanceId > 0:
            group.not_allocated = False
            self._groups.orders.report(client_id, members)
        order = self._groups.orders.next(client_id, members) if members else None
        if order is not None and not order.is_sent:
            order.is_sent = True
            reply.event.rebalanceId = order.rebalance_id
            reply.event.opType = order.op_type
            reply.event.subscribeInfo.extend(order.subscribe_info)
        self._add_settings(request, reply, group)

    def rebalance(self) -> None:
        """Give orders to the groups whose members have done all previous ones."""
        self._rebalances += 1
        busy = () if self._is_first_rebalance else self._busy_groups()
        groups = [group for group in self._groups.all(client_balance=False) if group.name not in busy]
        for group in groups:
            self._assign_bound(group)
        for group in groups:
            self._assign(group)
        self._is_first_rebalance = False

    def forget(self) -> None:
        """Behave as a standby that takes over: it has rebalanced all the time, without any group."""
        self._is_first_rebalance = False
        self._delays.clear()

    def restart(self) -> None:
        """Behave as a new process, which knows no client."""
        self._rebalances = 0
        self._is_first_rebalance = True

    def _check(self, request: master_pb.RegisterRequestC2M, tls: bool) -> tuple[Member, Holding]:
        client_id, group = self._access.new_consumer(request)
        is_old = self._release is Release.V1_2
        topics = consumer_topics(request.topicList, None if is_old else self._lists.deployed)
        required = request.requiredPartition if request.requireBound else ""
        if is_old:
            required_partitions(required, topics)  # checks them before the filters
        filters = topic_filters(request.topicCondition)
        offsets = required_partitions(required, topics)
        held = _holding(request.subscribeInfo)
        source_count = optional(request, "totalCount", -1)
        if request.requireBound:
            if is_blank(request.sessionKey):
                raise bad_request("[Parameter error] blank value of sessionKey!")
            if source_count <= 0:
                raise bad_request("[Parameter error] totalSourceCount must over zero!")
        if is_old:
            self._access.check_active(client_id)
        member = Member(
            client_id,
            group,
            ConsumeType.BOUND if request.requireBound else ConsumeType.NORMAL,
            topics,
            filters,
            tls,
            source_count,
            session_key=trim(request.sessionKey),
            select_big=optional(request, "selectBig", True),
            offsets=offsets,
        )
        check_rules(self._catalog.rules, self._release, member)
        return member, held

    def _members_with(self, client_id: str) -> list[str]:
        """Return the members of the group that the client registered for last, whatever group it names now."""
        group = self._groups.group_of(client_id)
        return [] if group is None else list(group.members)

    def _busy_groups(self) -> Collection[str]:
        """Return the groups with orders that are not done; after too many rebalances the orders are dropped."""
        busy: dict[str, None] = {}
        for client_id in hash_order(self._groups.orders.client_ids):
            group = self._groups.group_of(client_id)
            if group is None or not self._groups.is_alive(group.name, client_id):
                continue
            if self._delays.get(group.name, 0) >= _MAX_DELAYS:
                self._groups.orders.drop(client_id)
            else:
                busy[group.name] = None
        self._delays = {name: self._delays.get(name, 0) + 1 for name in busy}
        return busy

    def _assign_bound(self, group: ConsumerGroup) -> None:
        if group.waits_for_bound_rebalance and group.is_full:
            partitions = [one for topic in hash_order(group.topics) for one in self._lists.subscribable(topic)]
            self._give_orders(group, bound_shares(group.booked, partitions))
            group.bound_rebalances += 1

    def _assign(self, group: ConsumerGroup) -> None:
        if group.waits_for_bound_rebalance:
            return
        partitions = {topic: self._lists.subscribable(topic) for topic in hash_order(group.topics)}
        if self._is_first_rebalance:
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
                released, taken = change(shares[client_id], held, disabled)
                removed = [self._info(member, one, held) for one in released]
                added = [self._info(member, one, held) for one in taken]
                self._groups.orders.give(client_id, self._rebalances, removed, added)

    def _info(self, member: Member, partition: Partition, held: Holding) -> str:
        """Return the text of one partition. A held one carries the broker address that the member reported."""
        broker = held.get(partition.topic, {}).get(partition) or self._lists.broker(partition.broker_id, tls=member.tls)
        assert broker is not None  # assigned partitions are on running brokers
        return f"{member.client_id}@{member.group}#{partition_info(broker, partition)}"

    def _add_settings(self, request: _Request, reply: _Reply, group: ConsumerGroup) -> None:
        """Add the token, and flow rules for clients whose request names the id of a known rule, or of none."""
        reply.authorizedInfo.CopyFrom(self._access.authorized())
        reply.notAllocated = group.not_allocated
        if not request.HasField("defFlowCheckId") and not request.HasField("groupFlowCheckId"):
            return
        reply.ssdStoreId = reply.defFlowCheckId = reply.groupFlowCheckId = reply.qryPriorityId = UNKNOWN_ID
        reply.defFlowControlInfo = reply.groupFlowControlInfo = " "
        add_flow_rules(self._catalog, group.name, request, reply)


def _holding(texts: Iterable[str]) -> Holding:
    """Return the partitions that a member holds; `RefusalError` for texts of a wrong shape."""
    holding: Holding = {}
    for broker, partition in (parse_subscribe_info(text) for text in texts if not is_blank(text)):
        holding.setdefault(partition.topic, {})[partition] = broker
    return holding
