"""The visit tokens of the tasks that read in a process.

A plan carries the token of the moment when it was made. A task may start much later, run for long, or be tried again.
So a token that a broker refused is replaced by one that this process gets from the master, as a member of the group.
All tasks that were planned with the refused token then use the new one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken

_MOST = 100  # tokens; a process has few that are in use


@dataclass(frozen=True)
class Member:
    """What a member of a group tells the master: plain values. `filters` are message types by topic."""

    group: str
    topics: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


class TaskTokens:
    """By settings, member and planned token. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<TaskTokens {list(self._tokens.values())}>"

    def forget(self) -> None:
        """Begins empty."""
        self._tokens: OrderedDict[tuple[ClientSettings, Member, int], VisitToken] = OrderedDict()
        self._lock = threading.Lock()

    def planned(self, settings: ClientSettings, member: Member, token: int) -> VisitToken:
        """The token for a task whose plan has `token`."""
        key = settings, member, token
        with self._lock:
            found = self._tokens.setdefault(key, VisitToken(lambda: _ask(settings, member), token))
            self._tokens.move_to_end(key)
            while len(self._tokens) > _MOST:
                self._tokens.popitem(last=False)
            return found


def _ask(settings: ClientSettings, member: Member) -> int:
    """Joins the group for a moment, for the master answers its members only."""
    session = ConsumerSession(settings, member.group, member.topics, member.filters)
    try:
        return session.join_for_token()
    finally:
        session.close()


TASK_TOKENS = TaskTokens()
"""Those of this process: Spark's Python workers live across tasks."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TASK_TOKENS.forget)
