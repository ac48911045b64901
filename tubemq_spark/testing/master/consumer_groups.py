# SPDX-License-Identifier: Apache-2.0
"""All consumer groups of a master, the liveness of their members, and the partitions that each member last reported.

wire: ConsumerInfoHolder, HeartbeatManager, TMaster.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import AccessCheck
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.dispatch import DeclinedError, RefusalError, bad_shape, optional
from tubemq_spark.testing.java import hash_order, split
from tubemq_spark.testing.master.assignment import Orders
from tubemq_spark.testing.master.consumer_group import ConsumerGroup, ConsumeType, Member
from tubemq_spark.testing.master.heartbeats import Heartbeats

Holding = dict[str, dict[Partition, Broker]]
"""A member's partitions by topic, each with its broker as the member named it."""


class ConsumerGroups:
    def __init__(self, access: AccessCheck, catalog: Catalog) -> None:
        self._access = access
        self._catalog = catalog
        self._heartbeats = Heartbeats(catalog.clock, catalog.config.consumer_heartbeat_timeout)
        self._groups: dict[str, ConsumerGroup] = {}
        self._group_of: dict[str, str] = {}  # client id -> the group it registered for last
        self.held: dict[str, Holding] = {}  # by client id
        self.orders = Orders()

    def all(self, *, client_balance: bool) -> list[ConsumerGroup]:
        """Return the groups with client-side or with server-side balance."""
        found = {
            name: group
            for name, group in self._groups.items()
            if (group.consume_type is ConsumeType.CLIENT_BALANCE) is client_balance
        }
        return [found[name] for name in hash_order(found)]

    def find(self, name: str) -> ConsumerGroup:
        """Return a group; `DeclinedError` with 411 when there is none of that name."""
        group = self._groups.get(name)
        if group is None:
            raise DeclinedError(ErrCode.HB_NO_NODE, f"Not found groupName {name} in holder!")
        return group

    def group_of(self, client_id: str) -> ConsumerGroup | None:
        return self._groups.get(self._group_of.get(client_id, ""))

    def join(self, member: Member, *, not_allocated: bool) -> ConsumerGroup:
        """Add a member to its group; `DeclinedError` with 424 to 430 when its settings differ from the group's."""
        name = member.group
        group = self._groups.get(name)
        if group is None:
            old_order = self._catalog.rules.from_max.get(name, UNKNOWN_ID)
            group = ConsumerGroup(member, self._catalog.config.release, old_order)
        group.add(member)
        self._groups[name] = group
        if not not_allocated:
            group.not_allocated = False
        self._group_of[member.client_id] = name
        self._heartbeats.start(_key(name, member.client_id))
        return group

    def beat(self, group: str, client_id: str) -> None:
        """Record a heartbeat; `DeclinedError` with 411 when the member is unknown."""
        self._heartbeats.beat(_key(group, client_id), "Update consumer node exception:")

    def is_alive(self, group: str, client_id: str) -> bool:
        return _key(group, client_id) in self._heartbeats

    def close(self, request: master_pb.CloseRequestC2M, reply: master_pb.CloseResponseM2C) -> None:
        """Remove a member of either kind; succeed for unknown ones too."""
        client_id, group = self._access.consumer(request)
        self._release(_key(group, client_id))
        self._heartbeats.stop(_key(group, client_id))

    def tick(self) -> None:
        for key in self._heartbeats.scan():
            with suppress(RefusalError):
                self._release(key)

    def forget(self) -> None:
        self._heartbeats.clear()
        self._groups.clear()
        self._group_of.clear()
        self.held.clear()
        self.orders.clear()

    def _release(self, key: str) -> None:
        parts = split(key, "@")  # as the server, which mistakes names that contain an @
        if len(parts) < 2:
            raise bad_shape()
        client_id, name = parts[:2]
        group = self._groups.get(name)
        if group is not None:
            group.remove(client_id)
            if not group.members:
                del self._groups[name]
        self._group_of.pop(client_id, None)
        self.held.pop(client_id, None)
        self.orders.drop(client_id)


def add_flow_rules(catalog: Catalog, group: str, known: Any, reply: Any) -> None:
    """Add the default flow rule and that of the group to `reply`: their ids, and the texts of those whose ids `known`,
    a part of the request, does not name."""
    if (rule := catalog.default_flow) is not None:
        reply.defFlowCheckId = rule.rule_id
        if rule.rule_id != optional(known, "defFlowCheckId"):
            reply.defFlowControlInfo = rule.info
    if (rule := catalog.group_flows.get(group)) is not None:
        reply.groupFlowCheckId = rule.rule_id
        reply.qryPriorityId = rule.qry_priority_id
        if rule.rule_id != optional(known, "groupFlowCheckId"):
            reply.groupFlowControlInfo = rule.info


def _key(group: str, client_id: str) -> str:
    return f"{client_id}@{group}"
