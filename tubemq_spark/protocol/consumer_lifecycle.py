"""The life cycles of a consumer: its membership of a group at the master, and its claims at the brokers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tubemq_spark.protocol.exact_range import NotFound

DRIVER = -1  # in place of a task's number
PLANNER = -2  # the same for who plans a batch read
NO_STAGE = -1  # in claims of earlier releases, and of readers that are no tasks of Spark

_HOLDER = re.compile("has been (?:registered|consumed) by ([^;]*)")
_NUMBER = "([0-9]{1,18})"
_CLAIM_ID = re.compile(
    f"spark_([0-9a-z-]+)_r{_NUMBER}_b{_NUMBER}_(driver|planner|(?:s{_NUMBER}_)?p{_NUMBER})_a{_NUMBER}"
    "(?:_n([0-9a-f]+))?(?:_w([0-9A-Za-z.+-]+))?"
)
_NOT_IN_NAMES = re.compile("[^0-9A-Za-z.-]+")
_LONGEST_NAME = 64  # a client id may have 1024 characters


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


class Relation(Enum):
    """What the holder of a partition is to a client that wants it."""

    FOREIGN = auto()  # another query, or no connector: wait for it, but not for ever
    PREDECESSOR = auto()  # it is not needed any more: take the partition from it
    SUCCESSOR = auto()  # it replaces the client that asks: that one must stop
    SIBLING = auto()  # another scan of the same micro-batch or application: take turns
    ITSELF = auto()  # the very same attempt of the same task, which reads the range twice at the same time
    UNCLEAR = auto()  # a run with a later start: a newer run, or a dead one that ran before the clock was set back


@dataclass(frozen=True)
class ClaimId:
    """Who claims a partition, in a client id that names it:

    `spark_<query>_r<run>_b<batch>_<role>_a<attempt>[_n<reader>][_w<who>]`, where the role is `driver`, `planner` or
    `s<stage>_p<task>`. Earlier releases wrote `p<task>` without a stage.

    `query` (of a-z, 0-9 and -) is the id of the streaming query, or of the Spark application for batch reads. `run` is
    when the query's driver began (ms since the epoch), `batch` counts the micro-batches of that run. `stage`, `task`
    and `attempt` are Spark's stage id, partition id and task attempt id. `task` is `DRIVER` or `PLANNER` otherwise.
    `reader` (hexadecimal) tells apart the readers of one attempt, and planners. `who` names host and application for
    people, see `who_is`.
    """

    query: str
    run: int
    batch: int
    task: int = DRIVER
    attempt: int = 0
    stage: int = NO_STAGE
    reader: str = ""
    who: str = ""

    def relation(self, holder: ClaimId) -> Relation:
        """What `holder` is to this claim."""
        if self.query != holder.query:
            return Relation.FOREIGN
        if self.run != holder.run:
            return Relation.PREDECESSOR if holder.run < self.run else Relation.UNCLEAR
        if self.batch != holder.batch:
            return Relation.PREDECESSOR if holder.batch < self.batch else Relation.SUCCESSOR
        if DRIVER in (self.task, holder.task):  # the driver lends its partitions to the tasks of the batch
            return Relation.PREDECESSOR if holder.task == DRIVER else Relation.SUCCESSOR
        if PLANNER in (self.task, holder.task) or (self.stage, self.task) != (holder.stage, holder.task):
            return Relation.SIBLING
        if self.attempt == holder.attempt:
            return Relation.ITSELF
        return Relation.PREDECESSOR if holder.attempt < self.attempt else Relation.SUCCESSOR

    def __str__(self) -> str:
        role = {DRIVER: "driver", PLANNER: "planner"}.get(self.task)
        if role is None:
            role = f"p{self.task}" if self.stage == NO_STAGE else f"s{self.stage}_p{self.task}"
        reader = f"_n{self.reader}" if self.reader else ""
        who = f"_w{self.who}" if self.who else ""
        return f"spark_{self.query}_r{self.run}_b{self.batch}_{role}_a{self.attempt}{reader}{who}"

    @classmethod
    def parse(cls, client_id: str) -> ClaimId | None:
        """The claim that `client_id` names, None when it is no connector's."""
        found = _CLAIM_ID.fullmatch(client_id)
        if found is None:
            return None
        query, run, batch, role, stage, task, attempt, reader, who = found.groups()
        number = {"driver": DRIVER, "planner": PLANNER}.get(role)
        return cls(
            query,
            int(run),
            int(batch),
            int(task) if number is None else number,
            int(attempt),
            NO_STAGE if stage is None else int(stage),
            reader or "",
            who or "",
        )


def who_is(*names: str) -> str:
    """Names of a host, an application, a query, made fit for `ClaimId.who`: empty ones are left out, long ones cut."""
    plain = (_NOT_IN_NAMES.sub("-", name).strip("-")[:_LONGEST_NAME] for name in names)
    return "+".join(name for name in plain if name)


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
