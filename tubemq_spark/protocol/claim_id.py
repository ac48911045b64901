"""Client ids that name who claims a partition, and which of two claims fences the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

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

    `spark_<query>_r<run>_b<batch>_<role>_a<attempt>[_n<reader>][_w<label>]`, where the role is `driver`, `planner` or
    `s<stage>_p<task>`. Earlier releases wrote `p<task>` without a stage.

    `query` (of a-z, 0-9 and -) is the id of the streaming query, or of the Spark application for batch reads. `run` is
    when the query's driver began (ms since the epoch), `batch` counts the micro-batches of that run. `stage`, `task`
    and `attempt` are Spark's stage id, partition id and task attempt id. `task` is `DRIVER` or `PLANNER` otherwise.
    `reader` (hexadecimal) tells apart the readers of one attempt, and planners. `label` names host and application for
    people, see `label_of`.
    """

    query: str
    run: int
    batch: int
    task: int = DRIVER
    attempt: int = 0
    stage: int = NO_STAGE
    reader: str = ""
    label: str = ""

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
        label = f"_w{self.label}" if self.label else ""
        return f"spark_{self.query}_r{self.run}_b{self.batch}_{role}_a{self.attempt}{reader}{label}"

    @classmethod
    def parse(cls, client_id: str) -> ClaimId | None:
        """The claim that `client_id` names, None when it is no connector's."""
        found = _CLAIM_ID.fullmatch(client_id)
        if found is None:
            return None
        query, run, batch, role, stage, task, attempt, reader, label = found.groups()
        number = {"driver": DRIVER, "planner": PLANNER}.get(role)
        return cls(
            query,
            int(run),
            int(batch),
            int(task) if number is None else number,
            int(attempt),
            NO_STAGE if stage is None else int(stage),
            reader or "",
            label or "",
        )


def label_of(*names: str) -> str:
    """Return names of a host, an application or a query as a `ClaimId.label`, without empty names, long ones cut."""
    plain = (_NOT_IN_NAMES.sub("-", name).strip("-")[:_LONGEST_NAME] for name in names)
    return "+".join(name for name in plain if name)


def holder_in(message: str) -> str:
    """The client id of the holder as a broker's text tells it, empty when it does not.

    410: `… has been registered by <clientId>`; 412: `… has been consumed by <clientId>;Current consumer …` (wire:
    BrokerServiceServer).
    """
    found = _HOLDER.search(message)
    return found[1].strip() if found else ""
