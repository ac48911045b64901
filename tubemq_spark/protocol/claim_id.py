# SPDX-License-Identifier: Apache-2.0
"""Client ids that name claims, and fencing: which of two claims on a partition wins.

A broker lets one client of a group own a partition, and refuses all others with 410. It knows no epochs: an unregister
request in the name of the owner ends its claim, whoever sends it. So the connector decides itself who may end whose
claim. Each client id says which query, run, micro-batch, task and attempt claims the partition, and
`ClaimId.relation` compares two of them:

* The order of the fields (run, batch, driver before tasks, attempt) is the order in which Spark replaces work. A
  greater claim exists because the smaller one is not needed any more: it fences the smaller one, its predecessor. The
  fenced reader gets 411 or 412 and raises `FencedError`; Spark discards what it read.
* Being later does not mean being a successor. Different queries, stages and tasks do not replace each other: a claim
  waits for theirs, or takes turns with them.
* Two claims never fence each other: `test_two_claims_never_fence_each_other`. Otherwise two attempts
  could take the partition from each other forever.
* Runs are ordered by clocks, which may be set back. So a claim fences claims of earlier runs, but does not yield at
  once to those of later runs (`UNCLEAR`): such a holder may be dead, so the client waits until its claim expires.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum, auto

DRIVER = -1  # the task number of a streaming query's driver
PLANNER = -2  # the task number of the planner of a batch read
NO_STAGE = -1  # in claims of earlier releases, and of readers outside of Spark tasks

_HOLDER = re.compile("has been (?:registered|consumed) by ([^;]*)")
_NUMBER = "([0-9]{1,18})"
_CLAIM_ID = re.compile(
    f"spark_([0-9a-z-]+)_r{_NUMBER}_b{_NUMBER}_(driver|planner|(?:s{_NUMBER}_)?p{_NUMBER})_a{_NUMBER}"
    "(?:_n([0-9a-f]+))?(?:_w([0-9A-Za-z.+-]+))?"
)
APPLICATION_PREFIX = "app-"
_APPLICATION = re.compile(f"({APPLICATION_PREFIX}[0-9a-f]{{16}})(?:-{_NUMBER})?")  # see `source.application`
COMMAND_PREFIX = "cli-"  # of the `query` of commands
_LATEST_RUN = 1 << 43  # ms; the year 2248
_NOT_IN_NAMES = re.compile("[^0-9A-Za-z.-]+")
_LONGEST_NAME = 64  # a client id may have 1024 characters


class Relation(Enum):
    """The relation of a partition's holder to a client that wants the partition."""

    FOREIGN = auto()  # another query, or no connector: wait for it, up to a timeout
    PREDECESSOR = auto()  # it is not needed any more: fence it and take the partition
    SUCCESSOR = auto()  # it replaces the client that asks, which is fenced and must stop
    SIBLING = auto()  # another scan of the same micro-batch or application: take turns
    ITSELF = auto()  # the same attempt of the same task, which reads the range twice at the same time
    UNCLEAR = auto()  # a run with a later start: newer, or dead and from before the clock was set back


@dataclass(frozen=True)
class ClaimId:
    """A claim, as the client id that the broker shows to others:

    `spark_<query>_r<run>_b<batch>_<role>_a<attempt>[_n<reader>][_w<label>]`, where the role is `driver`, `planner` or
    `s<stage>_p<task>`. Earlier releases wrote `p<task>` without a stage.

    `query` (a-z, 0-9 and -) is the id of the streaming query, or of the Spark application for batch reads. `run` is the
    start time of the query's driver (ms since the epoch); `batch` counts the micro-batches of the run. `stage`, `task`
    and `attempt` are Spark's stage id, partition id and task attempt id; without a task, `task` is `DRIVER` or
    `PLANNER`. `reader` (hexadecimal) distinguishes the readers of one attempt, and planners. `label` names host and
    application for people, see `label_of`.
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
        """Return the relation of `holder` to this claim, which wants the partition. See the module for the theory."""
        if self.query != holder.query:
            return Relation.FOREIGN
        if self.run != holder.run:
            return Relation.PREDECESSOR if holder.run < self.run else Relation.UNCLEAR
        if self.batch != holder.batch:
            return Relation.PREDECESSOR if holder.batch < self.batch else Relation.SUCCESSOR
        if DRIVER in (self.task, holder.task):  # tasks take over from the driver of their batch
            return Relation.PREDECESSOR if holder.task == DRIVER else Relation.SUCCESSOR
        if PLANNER in (self.task, holder.task) or (self.stage, self.task) != (holder.stage, holder.task):
            return Relation.SIBLING
        if self.attempt == holder.attempt:
            return Relation.ITSELF
        return Relation.PREDECESSOR if holder.attempt < self.attempt else Relation.SUCCESSOR

    def query_beside(self, holder: ClaimId) -> int | None:
        """Return the process id of the driver of `holder`, if it is another streaming query of this claim's Spark
        application, else None."""
        names = map(_APPLICATION.fullmatch, (self.query, *self._names))
        applications = {found[1] for found in names if found}
        if holder.task != DRIVER or holder.query == self.query:
            return None
        processes = (_APPLICATION.fullmatch(name) for name in holder._names)
        return next((int(one[2]) for one in processes if one and one[2] and one[1] in applications), None)

    @property
    def _names(self) -> list[str]:
        return self.label.split("+")

    @property
    def description(self) -> str:
        """Who has made the claim, as far as it says: what reads, names, since when and where."""
        readable = [name for name in self._names if not _APPLICATION.fullmatch(name)]
        host, names = "".join(readable[:1]), readable[1:]
        if self.query.startswith(COMMAND_PREFIX):
            what = "a command"
        elif self.task in (DRIVER, PLANNER):
            what = f"streaming query {self.query}" if self.task == DRIVER else "the planner of a batch read"
        else:
            what = "a task"
        began = ""
        if self.task == DRIVER and 0 < self.run < _LATEST_RUN:
            began = f", begun at {datetime.fromtimestamp(self.run / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        return f"{what}{' of ' + ', '.join(names) if names else ''}{f' on {host}' if host else ''}{began}"

    def __str__(self) -> str:
        role = {DRIVER: "driver", PLANNER: "planner"}.get(self.task)
        if role is None:
            role = f"p{self.task}" if self.stage == NO_STAGE else f"s{self.stage}_p{self.task}"
        reader = f"_n{self.reader}" if self.reader else ""
        label = f"_w{self.label}" if self.label else ""
        return f"spark_{self.query}_r{self.run}_b{self.batch}_{role}_a{self.attempt}{reader}{label}"

    @classmethod
    def parse(cls, client_id: str) -> ClaimId | None:
        """Return the claim that `client_id` names, None if it is not a client id of this connector."""
        found = _CLAIM_ID.fullmatch(client_id)
        if found is None:
            return None
        query, run, batch, role, stage, task, attempt, reader, label = found.groups()
        number = int(task or {"driver": DRIVER, "planner": PLANNER}[role])
        at_stage = NO_STAGE if stage is None else int(stage)
        return cls(query, int(run), int(batch), number, int(attempt), at_stage, reader or "", label or "")


def label_of(*names: str) -> str:
    """Return names of a host, an application or a query as a `ClaimId.label`, without empty names, long ones cut."""
    plain = (_NOT_IN_NAMES.sub("-", name).strip("-")[:_LONGEST_NAME] for name in names)
    return "+".join(name for name in plain if name)


def holder_in(message: str) -> str:
    """Return the client id of the holder in a broker's text, empty if there is none.

    410: `… has been registered by <clientId>`; 412: `… has been consumed by <clientId>;Current consumer …` (wire:
    BrokerServiceServer).
    """
    found = _HOLDER.search(message)
    return found[1].strip() if found else ""
