"""The life cycles of a consumer: its membership of a group at the master, and its claims at the brokers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tubemq_spark.protocol.exact_range import NotFound

DRIVER = -1  # in place of a task's number

_HOLDER = re.compile("has been (?:registered|consumed) by ([^;]*)")
_NUMBER = "([0-9]{1,18})"
_CLAIM_ID = re.compile(f"spark_([0-9a-z-]+)_r{_NUMBER}_b{_NUMBER}_(?:driver|p{_NUMBER})_a{_NUMBER}")


class MemberState(Enum):
    """A client of a group (or a producer) as the master sees it."""

    NEW = auto()
    REGISTERED = auto()
    FORGOTTEN = auto()  # the master timed it out, or is another one now: register again
    CLOSED = auto()


class MemberEvent(Enum):
    REGISTERED = auto()
    ANSWERED = auto()  # a heartbeat or a question for metadata
    FORGOTTEN = auto()
    CLOSED = auto()


MEMBER: Mapping[tuple[MemberState, MemberEvent], MemberState] = {
    (MemberState.NEW, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.NEW, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.NEW, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.REGISTERED, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.REGISTERED, MemberEvent.ANSWERED): MemberState.REGISTERED,
    (MemberState.REGISTERED, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.REGISTERED, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.FORGOTTEN, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.FORGOTTEN, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.FORGOTTEN, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.CLOSED, MemberEvent.CLOSED): MemberState.CLOSED,
}


class ClaimState(Enum):
    """One partition, as its would-be holder sees it."""

    FREE = auto()
    HELD = auto()
    LENT = auto()  # to the tasks of the query, which claim it under names of their own
    LOST = auto()  # the broker forgot it (a restart, an expiry) or gave it to somebody else
    CLOSED = auto()


class ClaimEvent(Enum):
    REGISTERED = auto()
    LENT = auto()
    REFUSED = auto()
    UNREGISTERED = auto()


CLAIM: Mapping[tuple[ClaimState, ClaimEvent], ClaimState] = {
    (ClaimState.FREE, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.FREE, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.FREE, ClaimEvent.REFUSED): ClaimState.FREE,
    (ClaimState.FREE, ClaimEvent.LENT): ClaimState.LENT,  # after a restart the first batch is read before any claim
    (ClaimState.HELD, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.HELD, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.HELD, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.HELD, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LENT, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LENT, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LENT, ClaimEvent.REFUSED): ClaimState.LENT,  # a task has it: that is what it was lent for
    (ClaimState.LENT, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LOST, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LOST, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.LOST, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LOST, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.CLOSED, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
}


@dataclass(frozen=True)
class ClaimId:
    """Who claims a partition, in a client id that names it: `spark_<query>_r<run>_b<batch>_p<task>_a<attempt>`.

    `query` (of a-z, 0-9 and -) is the id of the query or batch job, `run` when its driver began (ms since the epoch),
    `batch` counts the plans of that run. `task` is Spark's partition number, -1 for the driver, and `attempt` the id of
    the task's attempt, which Spark counts upwards through a run. Of two claims of one query the greater (run, batch, is
    a task, attempt) is newer: only the newer may take the partition from the older.
    """

    query: str
    run: int
    batch: int
    task: int = DRIVER
    attempt: int = 0

    @property
    def _age(self) -> tuple[int, int, bool, int]:
        return self.run, self.batch, self.task != DRIVER, self.attempt

    def may_fence(self, holder: ClaimId) -> bool:
        return self.query == holder.query and self._age > holder._age

    def __str__(self) -> str:
        task = "driver" if self.task == DRIVER else f"p{self.task}"
        return f"spark_{self.query}_r{self.run}_b{self.batch}_{task}_a{self.attempt}"

    @classmethod
    def parse(cls, client_id: str) -> ClaimId | None:
        """The claim that `client_id` names, None when it is no connector's."""
        found = _CLAIM_ID.fullmatch(client_id)
        if found is None:
            return None
        query, run, batch, task, attempt = found.groups()
        return cls(query, int(run), int(batch), DRIVER if task is None else int(task), int(attempt))


def holder_in(message: str) -> str:
    """The client id of the holder as a broker's text tells it, empty when it does not.

    410: `… has been registered by <clientId>`; 412: `… has been consumed by <clientId>;Current consumer …` (wire:
    BrokerServiceServer).
    """
    found = _HOLDER.search(message)
    return found[1].strip() if found else ""


def not_found_kind(message: str) -> NotFound:
    """What a 404 means; the broker says it in words only (wire: MsgFileStore, MsgMemStore, BrokerServiceServer)."""
    if "reached maxOffset" in message:
        return NotFound.END
    return NotFound.PASSED if "found Message by index!" in message else NotFound.WAIT
