# SPDX-License-Identifier: Apache-2.0
"""Consumers with client-side balance: V2 register and heartbeat, and partition metadata. The clients assign partitions
themselves.

wire: TMaster, ClientSyncInfo, OpsSyncInfo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import AccessCheck
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.dispatch import DeclinedError, bad_request, optional
from tubemq_spark.testing.java import hash_order, is_blank
from tubemq_spark.testing.master.consumer_group import ConsumerGroup, ConsumeType, Member, check_rules
from tubemq_spark.testing.master.consumer_groups import ConsumerGroups, Holding, add_flow_rules
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.request_checks import consumer_topics, parse_held_partitions, topic_filters

_Reply = master_pb.RegisterResponseM2CV2 | master_pb.HeartResponseM2CV2 | master_pb.GetPartMetaResponseM2C


@dataclass(eq=False)
class ClientBalance:
    """The requests of such consumers, and their groups' metadata."""

    _access: AccessCheck
    _groups: ConsumerGroups
    _lists: MetadataLists
    _catalog: Catalog

    def register(
        self, request: master_pb.RegisterRequestC2MV2, reply: master_pb.RegisterResponseM2CV2, tls: bool
    ) -> None:
        """Join the group and return the brokers. Release 1.2 checks its role later than 2.5."""
        member, reported = self._check(request, tls)
        group = self._groups.join(member, not_allocated=False)
        member = group.members[member.client_id]
        self._groups.held[member.client_id] = self._holding(reported)
        self._add_brokers(reply, optional(request.subRepInfo, "brokerConfigId"), tls)
        self._add_settings(request, reply, group, member)

    def heartbeat(self, request: master_pb.HeartRequestC2MV2, reply: master_pb.HeartResponseM2CV2, tls: bool) -> None:
        """Record what the member holds; return broker list and metadata if they changed."""
        client_id, group_name = self._access.consumer(request)
        report = request.subRepInfo
        reported = _reported(report)
        group, member = self._find(group_name, client_id)
        member.learn(optional(request.opsTaskInfo, "csmFrmMaxOffsetCtrlId"), optional(report, "lstAssignedTime"))
        if report.reportSubInfo:
            self._groups.held[client_id] = self._holding(reported)
        self._add_brokers(reply, optional(report, "brokerConfigId"), tls)
        if self._is_overdue(member):
            _add_topics(reply, group, optional(report, "topicMetaInfoId"))
        self._add_settings(request, reply, group, member)

    def partition_meta(
        self, request: master_pb.GetPartMetaRequestC2M, reply: master_pb.GetPartMetaResponseM2C, tls: bool
    ) -> None:
        """Return topic metadata as of the last rebalance. This counts as a heartbeat."""
        client_id, group_name = self._access.consumer(request)
        group, _ = self._find(group_name, client_id)
        if group.meta_id == UNKNOWN_ID:
            self._refresh(group)
        _add_topics(reply, group, request.topicMetaInfoId)
        self._add_brokers(reply, request.brokerConfigId, tls)

    def rebalance(self) -> None:
        """Update the metadata of all groups."""
        for group in self._groups.all(client_balance=True):
            self._refresh(group)

    def _check(self, request: master_pb.RegisterRequestC2MV2, tls: bool) -> tuple[Member, list[Partition]]:
        client_id, group = self._access.new_consumer(request)
        is_old = self._catalog.config.release is Release.V1_2
        topics = consumer_topics(request.topicList, None if is_old else self._lists.deployed)
        filters = topic_filters(request.topicCondition)
        if request.sourceCount > 0 and not 0 <= request.nodeId < request.sourceCount:
            raise bad_request("Request nodeId value must be between in [0, sourceCount-1]!")
        if is_old:
            self._access.check_active(client_id)
        reported = _reported(request.subRepInfo)
        member = Member(
            client_id,
            group,
            ConsumeType.CLIENT_BALANCE,
            topics,
            filters,
            tls,
            request.sourceCount,
            node_id=request.nodeId,
            from_max_id=optional(request.opsTaskInfo, "csmFrmMaxOffsetCtrlId"),
            assigned_at=optional(request.subRepInfo, "lstAssignedTime"),
        )
        check_rules(self._catalog.rules, self._catalog.config.release, member)
        return member, reported

    def _add_brokers(self, reply: _Reply, known: int, tls: bool) -> None:
        """Add the id of the broker list, and the list if the client knows another one."""
        reply.brokerConfigId, texts = self._lists.brokers(tls)
        if reply.brokerConfigId != known:
            reply.brokerConfigList.extend(texts)

    def _find(self, group_name: str, client_id: str) -> tuple[ConsumerGroup, Member]:
        group = self._groups.find(group_name)
        member = group.members.get(client_id)
        if member is None:
            raise DeclinedError(ErrCode.HB_NO_NODE, f"Not found client {client_id} in group({group_name})")
        self._groups.beat(group_name, client_id)
        return group, member

    def _holding(self, reported: list[Partition]) -> Holding:
        """Return the reported partitions that are on running brokers."""
        holding: Holding = {}
        for partition in reported:
            if (broker := self._lists.broker(partition.broker_id)) is not None:
                holding.setdefault(partition.topic, {})[partition] = broker
        return holding

    def _is_overdue(self, member: Member) -> bool:
        """Return True if the member's metadata is so old that the master sends it unasked."""
        age = self._catalog.clock.wall_ms() - member.assigned_at
        limit = self._catalog.config.max_meta_force_update_period * 1000
        return member.assigned_at >= 0 and age > limit and bool(self._groups.held.get(member.client_id))

    def _refresh(self, group: ConsumerGroup) -> None:
        """Update the group's metadata; deleted topics stay in it, as on the server."""
        meta = self._lists.consumer_topics(group.topics, group.name)
        if meta and meta != group.meta:
            group.meta.update(meta)
            group.meta_id = self._lists.new_id(group.meta_id)

    def _add_settings(self, request: Any, reply: Any, group: ConsumerGroup, member: Member) -> None:
        """Add the token, the order to consume from the latest that the member has not followed, and flow rules."""
        reply.authorizedInfo.CopyFrom(self._access.authorized())
        tasks = reply.opsTaskInfo
        tasks.SetInParent()
        order = self._catalog.rules.from_max.get(group.name, UNKNOWN_ID)
        if order not in (UNKNOWN_ID, group.old_from_max_id, member.from_max_id):
            tasks.csmFrmMaxOffsetCtrlId = order
        add_flow_rules(self._catalog, group.name, request.opsTaskInfo, tasks)


def _add_topics(
    reply: master_pb.HeartResponseM2CV2 | master_pb.GetPartMetaResponseM2C, group: ConsumerGroup, known: int
) -> None:
    reply.topicMetaInfoId = group.meta_id
    if group.meta_id != known:
        reply.topicMetaInfoList.extend(group.meta[topic] for topic in hash_order(group.meta))


def _reported(report: master_pb.ClientSubRepInfo) -> list[Partition]:
    """Return the partitions that the member holds; `RefusalError` for texts of a wrong shape."""
    texts = report.partSubInfo if report.reportSubInfo else ()
    return [one for text in texts if not is_blank(text) for one in parse_held_partitions(text)]
