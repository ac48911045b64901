"""Short-lived members of a consumer group, because a master answers only members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.settings import ClientSettings


@dataclass(frozen=True)
class GroupMember:
    """What a member of a group tells the master, as plain values. `filters` are message types by topic."""

    group: str
    topics: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@contextmanager
def joined(settings: ClientSettings, member: GroupMember) -> Iterator[ConsumerSession]:
    """Join the group, and leave it at the end. The session has the visit token and the brokers.

    Ask each master once at most. Raises as `ConsumerSession.register` does.
    """
    session = ConsumerSession(settings, member.group, member.topics, member.filters)
    try:
        session.register_once()
        yield session
    finally:
        session.close()
