# SPDX-License-Identifier: Apache-2.0
"""One consumer group of a master: its members, the settings that all members must share, and access rules.

wire: ConsumeGroupInfo, ConsumerInfo.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing.catalog import GroupRules
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.dispatch import DeclinedError, bad_request
from tubemq_spark.testing.java import hash_order, list_text, map_text, set_text

_DIFFERS = "is inconsistency with other consumers in the group"
_SAME = {
    "session_key": (ErrCode.CLIENT_INCONSISTENT_SESSIONKEY, "sessionKey"),
    "select_big": (ErrCode.CLIENT_INCONSISTENT_SELECTBIG, "isSelectBig"),
    "source_count": (ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT, "sourceCount"),
}
"""Fields that all members must share, with the server's code and name."""


class ConsumeType(Enum):
    """How the members of a group get their partitions, in the words of the server's messages."""

    NORMAL = "unbound"  # the master assigns them
    BOUND = "bound"  # likewise, starting with those for which members gave offsets
    CLIENT_BALANCE = "client-rebalance"


@dataclass
class Member:
    client_id: str
    group: str
    consume_type: ConsumeType
    topics: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]]
    tls: bool = False
    source_count: int = -1
    # client-side balance
    node_id: int = -1
    from_max_id: int = UNKNOWN_ID  # the last order to consume from the latest that it followed
    assigned_at: int = UNKNOWN_ID  # ms
    # bound consumption
    session_key: str = ""
    select_big: bool = True
    offsets: Mapping[str, int] = field(default_factory=dict)  # by partition key

    def learn(self, from_max_id: int, assigned_at: int) -> None:
        """Record the report of a member with client-side balance."""
        if from_max_id >= 0:
            self.from_max_id = from_max_id
        if assigned_at != UNKNOWN_ID:
            self.assigned_at = assigned_at


class ConsumerGroup:
    """A group. Its first member's settings bind the later ones."""

    def __init__(self, first: Member, release: Release, old_from_max_id: int = UNKNOWN_ID) -> None:
        self.name = first.group
        self.consume_type = first.consume_type
        self.topics = first.topics
        self.members: dict[str, Member] = {}
        self.not_allocated = True  # no member has reported an order as done yet
        self.bound_rebalances = 0
        self.booked: dict[str, str] = {}  # partition key -> the member whose offset wins
        self.old_from_max_id = old_from_max_id  # an order from before the first member joined
        self.meta_id = UNKNOWN_ID
        self.meta: dict[str, str] = {}  # topic -> text
        self._release = release
        self._first = first

    @property
    def client_ids(self) -> list[str]:
        return hash_order(self.members)

    @property
    def waits_for_bound_rebalance(self) -> bool:
        """True while partitions with given offsets are not assigned yet."""
        return (
            self.consume_type is ConsumeType.BOUND
            and self.not_allocated
            and bool(self.booked)
            and self.bound_rebalances < 2
        )

    @property
    def is_full(self) -> bool:
        return len(self.members) >= self._first.source_count

    def add(self, member: Member) -> None:
        """Add a member, or update a known one; `DeclinedError` when its settings are not those of the group."""
        if self.members:
            self._check(member)
        known = self.members.get(member.client_id)
        if known is None:
            self.members[member.client_id] = member
            self._book(member)
        elif member.consume_type is ConsumeType.CLIENT_BALANCE:
            known.tls, known.node_id = member.tls, member.node_id
            known.learn(member.from_max_id, member.assigned_at)

    def remove(self, client_id: str) -> None:
        self.members.pop(client_id, None)
        self.booked = {key: holder for key, holder in self.booked.items() if holder != client_id}

    def _book(self, member: Member) -> None:
        if self.consume_type is not ConsumeType.BOUND:
            return
        for key in hash_order(member.offsets):
            holder = self.members.get(self.booked.get(key, ""))
            other = None if holder is None else holder.offsets.get(key)
            offset = member.offsets[key]
            if other is None or (offset >= other if self._first.select_big else offset < other):
                self.booked[key] = member.client_id

    def _check(self, member: Member) -> None:
        who = f"[Inconsistency subscribe] {member.client_id}"
        if member.consume_type is not self.consume_type:
            raise DeclinedError(
                ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE,
                f"{who} using {member.consume_type.value} subscribe is inconsistency with other consumers using "
                f"{self.consume_type.value} subscribe in the group",
            )
        if set(member.topics) != set(self.topics):
            raise DeclinedError(
                ErrCode.CLIENT_INCONSISTENT_TOPICSET,
                f"{who} subscribed topics {set_text(member.topics)} {_DIFFERS}, existedTopics: {set_text(self.topics)}",
            )
        self._check_filters(member, who)
        if self.consume_type is ConsumeType.BOUND:
            self._check_same(member, who, "session_key", "select_big", "source_count")
        elif self.consume_type is ConsumeType.CLIENT_BALANCE and self._first.source_count > 0:
            self._check_same(member, who, "source_count")
            self._check_node_id(member, who)

    def _check_filters(self, member: Member, who: str) -> None:
        if member.filters == self._first.filters:
            return
        given, required = member.filters, self._first.filters
        asked = f"with filter condition {map_text(given)}" if given else "without filter condition "
        existed = f", existed topic conditions is {map_text(required)}" if required else ": topic without conditions"
        raise DeclinedError(ErrCode.CLIENT_INCONSISTENT_FILTERSET, f"{who} subscribe {asked} {_DIFFERS}{existed}")

    def _check_same(self, member: Member, who: str, *names: str) -> None:
        for name in names:
            required, given = (_java_text(getattr(one, name)) for one in (self._first, member))
            if given != required:
                code, shown = _SAME[name]
                raise DeclinedError(code, f"{who}'s {shown} {_DIFFERS}, required is {required}, request is {given}")

    def _check_node_id(self, member: Member, who: str) -> None:
        for client_id in self.client_ids:
            other = self.members[client_id]
            if other.node_id == member.node_id and client_id != member.client_id:
                value = "" if self._release is Release.V1_2 else f"'s nodeId value({other.node_id})"
                raise DeclinedError(
                    ErrCode.CLIENT_DUPLICATE_INDEXID,
                    f"{who}'s nodeId value({member.node_id}) is occupied by {client_id}{value} in the group!",
                )


def check_rules(rules: GroupRules, release: Release, member: Member) -> None:
    """Apply the administrators' access rules to a consumer (wire: DefaultMetaDataService)."""
    group, topics = member.group, hash_order(member.topics)
    if strange := [topic for topic in hash_order(member.filters) if topic not in topics]:
        raise bad_request(f"Filter's Topic not subscribed :{list_text(strange)}")
    controlled = [topic for topic in topics if topic in rules.authorised_topics]
    forbidden = [topic for topic in controlled if not rules.may_consume.get((topic, group))]
    if forbidden:
        space = " " if release is Release.V1_2 else ""
        raise DeclinedError(
            ErrCode.CONSUME_GROUP_FORBIDDEN,
            f"[unAuthorized Group] {member.client_id}'s consumerGroup not authorized by administrator, "
            f"unAuthorizedTopics{space}: {set_text(forbidden)}",
        )
    for topic in controlled:
        if (topic, group) in rules.filters:
            _check_restriction(rules.filters[topic, group], member, topic)


def _check_restriction(allowed: Collection[str], member: Member, topic: str) -> None:
    asked = member.filters.get(topic, ())
    strange = [item for item in asked if item not in allowed]
    if not allowed:
        text = f"{member.group} not allowed to consume any data of topic {topic}"
    elif not asked:
        text = f"{member.group} must set the filter conditions of topic {topic}"
    elif strange:
        text = f"unAuthorized filter conditions {map_text({topic: strange})}"
    else:
        return
    raise DeclinedError(ErrCode.CONSUME_CONTENT_FORBIDDEN, f"[Restricted Group] {member.client_id} : {text}")


def _java_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
