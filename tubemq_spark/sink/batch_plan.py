# SPDX-License-Identifier: Apache-2.0
"""Plans a batch with `effectivelyOnce` on the driver: was it begun before, and where did its partitions end then?

Spark does not tell a plan which batch it is for. Its tasks and its commit know, so they check it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from tubemq_spark.client.cluster.deployed_topics import add_topics
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.short_claims import read_ends
from tubemq_spark.client.consumer.working_group import sink_base
from tubemq_spark.errors import FencedError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.batch_state import BatchState, Begins, StateFile, StateFileError, check_checkpoint
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.task_attempts import WriteTask
from tubemq_spark.sink.task_mark import can_mark

_log = logging.getLogger(__name__)

_MOST_ROUNDS = 5  # of other drivers that write the file meanwhile


@dataclass(frozen=True)
class BatchPlan:
    """What the driver tells the tasks of a batch: the state in its file when they begin.

    `is_first` is True if no attempt of the batch behind the last committed one was planned before. `made_at` is the
    driver's time in milliseconds since the epoch.
    """

    state: BatchState = field(repr=False)
    is_first: bool
    made_at: int

    @property
    def base(self) -> str:
        """What the names of the query's groups begin with."""
        return sink_base(self.state.id)

    def is_repeated(self, task: WriteTask) -> bool:
        """Return True if the task's batch is committed here, and Spark has not noted that."""
        return task.batch == self.state.committed

    def begins(self, task: WriteTask) -> Begins:
        """Return the begins of the task's batch."""
        return self.state.begins_of(task.batch)

    def check(self, task: WriteTask) -> str | None:
        """Return why it is unknown what is stored of the task's batch, None if it is known.

        Raise `StateFileError` if the file is that of another query.
        """
        committed, query = self.state.committed, self.state.query
        if query is not None and task.id != query:
            raise StateFileError(
                f"the file of effectivelyOnce belongs to query {query}, and this is {task.id}. Each query needs its "
                "own checkpoint, and its own folder in option 'effectivelyOnceLocation' if that is set"
            )
        if task.batch in (committed, 0 if committed is None else committed + 1):
            return None
        if committed is not None and task.batch < committed:
            return (
                f"the checkpoint is at batch {task.batch}, and the file of effectivelyOnce at batch {committed}: it is "
                "unknown which rows of this batch are stored"
            )
        last = "its file knows no batch" if committed is None else f"its file ends at batch {committed}"
        return (
            f"the query is at batch {task.batch}, and {last}: a run without effectivelyOnce, or two runs at once, may "
            "have begun this batch, and its rows would be stored twice"
        )


def plan_batch(session: ProducerSession, options: EffectivelyOnceOptions, *, all_needed: bool) -> BatchPlan:
    """Return the plan of the next attempt of a batch, which is in the file then. To be called before its tasks begin.

    A partition whose broker does not answer soon is left out, unless rows may name it (`all_needed`). Raise
    `ConfigError` if the file cannot be read or written, or a topic is unknown; `FencedError` if other drivers plan
    batches of the query at the same time; `TransportError` if no broker of a topic answers.
    """
    file = StateFile(options)
    add_topics(session, options.topics, wait=False)  # rows need not name each of them
    for _ in range(_MOST_ROUNDS):
        found = file.read()
        if found is None:
            check_checkpoint(options)
        # Two drivers that begin at once ask brokers in the same groups, and their tasks find each other's marks.
        before = found or BatchState(sha256(options.location.encode()).hexdigest()[:16])
        begins = dict(before.begins or {})
        begins |= _ends(session, sink_base(before.id), options.topics, begins, all_needed=all_needed)
        state = before.planned(begins)
        if file.read() != found:
            continue
        file.write(state)
        if not can_mark(begins):
            _log.warning(
                "[no-marks] no partition of topic %s holds enough messages for the marks of tasks: if Spark repeats a "
                "stage of this batch because it lost shuffle files, rows may be stored twice",
                ", ".join(options.topics),
            )
        return BatchPlan(state, before.begins is None, int(session.settings.clock.time() * 1000))
    raise _fenced(file)


def commit_batch(options: EffectivelyOnceOptions, batch: int, query: str | None, plans: Iterable[str]) -> None:
    """Note that a batch is committed; `plans` are those of its tasks.

    Raise `ConfigError` if the file cannot be read or written, and `FencedError` if another run has planned since.
    """
    file = StateFile(options)
    state = file.read()
    if state is None:
        raise StateFileError(
            f"{file.shown} was removed while batch {batch} was written. Its rows are stored. To go on, start the query "
            "once with option 'effectivelyOnceUncertain' set to sendAgain: the rows of this batch are stored twice then"
        )
    if any(plan != state.plan for plan in plans):
        raise _fenced(file)
    file.write(state.with_commit(batch, query))


def _ends(
    session: ProducerSession, base: str, topics: Iterable[str], known: Begins, *, all_needed: bool
) -> Mapping[Partition, int]:
    """Return where the partitions of `topics` end that are not `known`. No attempt has written to these."""
    found: dict[Partition, int] = {}
    away_after = None if all_needed else session.settings.timings.broker_away_after
    for topic in topics:
        partitions = session.present(topic)
        missing = [one for one in partitions if one not in known]
        found |= read_ends(session, base, missing, within=away_after)
        if left_out := [one for one in missing if one not in found]:
            _log.warning(
                "[partitions-not-planned] no answer about %s and %d others: this batch writes nothing to them",
                left_out[0],
                len(left_out) - 1,
            )
        if partitions and not any(one in known or one in found for one in partitions):
            found |= read_ends(session, base, missing)
    return found


def _fenced(file: StateFile) -> FencedError:
    return FencedError(
        f"another run of this query writes {file.shown}: two runs use one checkpoint. This one ends; stop the other "
        "one, or give each its own checkpoint",
        holder="another run of this query",
    )
