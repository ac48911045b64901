# SPDX-License-Identifier: Apache-2.0
"""The invariant of effectivelyOnce: each row is stored once, with the exceptions that docs/sink.md lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tests.simulation.promises import UNIT, BrokenError
from tests.simulation.servers import DELETED, RETENTION, Message
from tests.simulation.written import LONGEST_SEND, Attempt, Copy, Entry
from tubemq_spark.client.consumer import partition_scan

if TYPE_CHECKING:
    from tests.simulation.writing_promises import Writing

AT_ONCE = 1.0  # seconds in which the driver writes its file
SETTLING = 3.0  # seconds that a run gives to the attempts of an earlier one


class StoredOnce:
    """Each exception is a condition with a comment that names the sentence."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._schedule = writing, writing.schedule

    def check(self, entry: Entry) -> None:
        """Each row of a batch that a run with effectivelyOnce has committed is stored once.

        Nobody promises to remove what runs without the option have stored twice: runs with it add nothing to that.
        """
        live = entry.live
        if len(live) <= max(1, len(entry.rows)):
            return
        before = [copy.attempt for copy in live if copy.attempt is not None and not copy.attempt.once]
        if len(live) <= len(before):
            return
        if self._excuse(entry, live) is None:
            copies = "; ".join(map(str, live))
            on = f", {len(before)} times before effectivelyOnce was switched on" if before else ""
            raise BrokenError(
                "stored_once",
                f"{entry} is stored {len(live)} times{on}, and was written {len(entry.rows)} times: {copies}",
            )

    def _excuse(self, entry: Entry, live: Sequence[Copy]) -> str | None:
        """Return the exception of docs/sink.md that allows further copies, None if there is none."""
        origin = entry.origin
        attempts = [one for one in self._writing.attempts_of(origin) if entry.body in one.bodies]
        # "or with `effectivelyOnceUncertain=sendAgain` sends the rows it did not find"
        if any(one.send_again for one in attempts):
            return "sendAgain"
        # "with `spark.speculation`: TubeMQ cannot prevent two attempts … that run at the same time from both writing"
        if any(one.is_speculative for one in attempts):
            return "speculation"
        # "The option needs a new checkpoint": a run without it has begun the first batch
        if origin[1] == 0 and any(c.attempt is not None and not c.attempt.once for c in live):
            return "switched on"
        # "for a broker that handles a send more than 10 s after it answered another request"
        if any(copy.late_for > LONGEST_SEND for copy in live):
            return "late broker"
        # "for an executor whose sends still arrive more than 3 s after Spark gave it up": another run has begun since
        for copy in live:
            mine = copy.attempt
            if mine is not None and any(
                one.run != mine.run and mine.at < one.at < copy.message.at - SETTLING for one in attempts
            ):
                return "late executor"
        # "two runs …, if both plan the batch in the same moment": one that comes later finds the other one's plan
        plans = sorted(one.at for (_, of), one in self._writing.plans.items() if of == origin)
        if len(plans) > 1 and plans[1] - plans[0] < AT_ONCE:
            return "planned at once"
        # "if Spark repeats a stage because shuffle files were lost, and the tasks could not leave marks"
        if self.is_unmarked(attempts):
            return "no mark"
        # "… or a broker lost its disk, and others have written more than 16 384 messages to a partition since"
        lost = {loss.store for loss in self._schedule.truth.losses if loss.how == DELETED}
        last = max(copy.message.at for copy in live)
        if any(c.message.partition.store in lost and self._is_far_back(c.message, last) for c in live):
            return "lost disk"
        return None

    def _is_far_back(self, message: Message, at: float) -> bool:
        """Return True if a search then began behind the message."""
        ends = [one.position for one in self._schedule.truth.messages[message.partition.store] if one.at < at]
        margin: int = vars(partition_scan)["MARGIN"]
        return message.position < max(ends, default=0) + UNIT * (1 - margin)

    def is_unmarked(self, attempts: Iterable[Attempt]) -> bool:
        """Return True if some of the attempts are of a repeated stage and perhaps could not leave marks."""
        for attempt in attempts:
            plan = self._writing.plans.get((attempt.run, attempt.origin))
            if plan is None or not attempt.is_of_repeated_stage:
                continue
            # "no partition of the topics that the driver has written to held 16 messages when the batch began, or …"
            if not plan.could_mark:
                return True
            # "… or retention has removed more than half of them"
            if any(loss.how == RETENTION and loss.at >= plan.at for loss in self._schedule.truth.losses):
                return True
            # "an attempt of an earlier stage, of this batch or of one before it, gets its first row …"
            if self._outlived(attempt, plan.at):
                return True
            # "the broker of the mark fails meanwhile"
            if self._schedule.broker_failed_since(plan.at):
                return True
        return False

    def _outlived(self, attempt: Attempt, planned_at: float) -> bool:
        """Return True if an attempt of this or an earlier batch got its first rows after its next batch had begun, and
        since this batch was planned: it leaves its mark then."""
        attempts = self._writing.attempts
        return any(
            one.had_rows_at is not None
            and one.had_rows_at >= planned_at
            and one.is_of_repeated_stage
            and any(
                later.run == one.run == attempt.run and later.at < one.had_rows_at
                for later in attempts.get(((name, batch + 1), attempt.task), ())
            )
            for (name, batch), task in list(attempts)
            if name == attempt.origin[0] and batch <= attempt.origin[1] and task == attempt.task
            for one in attempts[(name, batch), task]
        )
