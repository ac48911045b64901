"""Visit tokens of the tasks in one process.

A plan carries the token that was valid when it was made. A task may start much later, run for long, or be retried. If a
broker refuses the token, this process joins the group at the master for a new one. All tasks that were planned with the
refused token then use the new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tubemq_spark.client.cluster.group_member import GroupMember, joined
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import VisitToken

_MAX_TOKENS = 100  # a process uses few at a time


class TaskTokens:
    """Tokens by settings, group member and planned token. Several threads may use it."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<TaskTokens {list(self._tokens.values())}>"

    def forget(self) -> None:
        """Drop all tokens."""
        self._tokens: OrderedDict[tuple[ClientSettings, GroupMember, int], VisitToken] = OrderedDict()
        self._lock = threading.Lock()

    def planned(self, settings: ClientSettings, member: GroupMember, token: int) -> VisitToken:
        """Return the token of a task whose plan has `token`."""
        key = settings, member, token
        with self._lock:
            found = self._tokens.setdefault(key, VisitToken(lambda: _ask(settings, member), token))
            self._tokens.move_to_end(key)
            while len(self._tokens) > _MAX_TOKENS:
                self._tokens.popitem(last=False)
            return found


def _ask(settings: ClientSettings, member: GroupMember) -> int:
    with joined(settings, member) as session:
        return session.visit_token


TASK_TOKENS = TaskTokens()
"""The tokens of this process. Spark's Python workers serve many tasks."""

empty_after_fork(TASK_TOKENS.forget)
close_with_servers(TASK_TOKENS.forget)
