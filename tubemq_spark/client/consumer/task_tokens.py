"""The visit tokens of the tasks that read in a process.

A plan carries the token of the moment when it was made. A task may start much later, run for long, or be tried again.
So a token that a broker refused is replaced by one that this process gets from the master, as a member of the group.
All tasks that were planned with the refused token then use the new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tubemq_spark.client.cluster.group_member import GroupMember, joined
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken

_MOST = 100  # tokens; a process has few that are in use


class TaskTokens:
    """By settings, member and planned token. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<TaskTokens {list(self._tokens.values())}>"

    def forget(self) -> None:
        """Begins empty."""
        self._tokens: OrderedDict[tuple[ClientSettings, GroupMember, int], VisitToken] = OrderedDict()
        self._lock = threading.Lock()

    def planned(self, settings: ClientSettings, member: GroupMember, token: int) -> VisitToken:
        """The token for a task whose plan has `token`."""
        key = settings, member, token
        with self._lock:
            found = self._tokens.setdefault(key, VisitToken(lambda: _ask(settings, member), token))
            self._tokens.move_to_end(key)
            while len(self._tokens) > _MOST:
                self._tokens.popitem(last=False)
            return found


def _ask(settings: ClientSettings, member: GroupMember) -> int:
    with joined(settings, member) as session:
        return session.visit_token


TASK_TOKENS = TaskTokens()
"""Those of this process: Spark's Python workers live across tasks."""

empty_after_fork(TASK_TOKENS.forget)
close_with_servers(TASK_TOKENS.forget)
