"""Short-lived members of a consumer group, because a master answers only members, and the visit tokens of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken


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


@lru_cache(maxsize=100)  # a process uses few at a time
def planned_token(settings: ClientSettings, member: GroupMember, token: int) -> VisitToken:
    """Return the visit token of a task whose plan has `token`.

    A task may start much later than its plan, run for long, or be retried. If a broker refuses the token, this process
    joins the group for a new one. All tasks that were planned with the refused token then use the new one.
    """

    def ask() -> int:
        with joined(settings, member) as session:
            return session.visit_token

    return VisitToken(ask, token)


empty_after_fork(planned_token.cache_clear)
close_with_servers(planned_token.cache_clear)
