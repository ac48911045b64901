# SPDX-License-Identifier: Apache-2.0
"""The invariant of effectivelyOnce: each row is stored once, with the exceptions that docs/limits.md lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulation.promises import UNIT, BrokenError, granted_by
from tests.simulation.servers import DELETED, RETENTION, Message
from tests.simulation.written import Attempt, Copy, Entry, Plan, is_late
from tubemq_spark.client.consumer import partition_scan

if TYPE_CHECKING:
    from tests.simulation.writing_promises import Writing

AT_ONCE = 1.0  # seconds in which the driver writes its file
SETTLING = 3.0  # seconds that a run gives to the attempts of an earlier one


class StoredOnce:
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
        if not self._is_excused(entry, live):
            copies = "; ".join(map(str, live))
            on = f", {len(before)} times before effectivelyOnce was switched on" if before else ""
            raise BrokenError(
                "stored_once",
                f"{entry} is stored {len(live)} times{on}, and was written {len(entry.rows)} times: {copies}",
            )

    def _is_excused(self, entry: Entry, live: Sequence[Copy]) -> bool:
        """Return True if docs/limits.md allows further copies."""
        attempts = [one for one in self._writing.attempts_of(entry.origin) if entry.body in one.bodies]
        return (
            _may_send_again(attempts)
            or _is_speculated(attempts)
            or _was_begun_without_the_option(entry, live)
            or _is_late_at_the_broker(live)
            or _is_late_in_the_executor(attempts, live)
            or self._is_planned_at_once(entry)
            or self.is_unmarked(attempts)
            or self._has_lost_disk(live)
        )

    @granted_by("limits.md", "two runs of the query are active and plan a batch at the same time")
    def _is_planned_at_once(self, entry: Entry) -> bool:
        """Return True if two runs planned the batch at once: a run that comes later finds the plan of the other."""
        plans = sorted(one for (_, of), one in self._writing.plans.items() if of == entry.origin)
        return any(later.at < max(one.at, one.until) + AT_ONCE for one, later in pairwise(plans))

    @granted_by("limits.md", "a broker crashes with more messages of a store in memory only, or loses its disk")
    def _has_lost_disk(self, live: Sequence[Copy]) -> bool:
        """Return True if so much was written to a new store since then that a search begins behind a message."""
        lost = {loss.store for loss in self._schedule.truth.losses if loss.how == DELETED}
        last = max(copy.message.at for copy in live)
        return any(c.message.partition.store in lost and self._is_far_back(c.message, last) for c in live)

    def _is_far_back(self, message: Message, at: float) -> bool:
        """Return True if a search then began behind the message."""
        ends = [one.position for one in self._schedule.truth.messages[message.partition.store] if one.at < at]
        margin: int = vars(partition_scan)["MARGIN"]
        return message.position < max(ends, default=0) + UNIT * (1 - margin)

    def is_unmarked(self, attempts: Iterable[Attempt]) -> bool:
        """Return True if some of the attempts are of a repeated stage and perhaps could not leave marks."""
        return any(
            _could_leave_no_mark(plan)
            or self._has_lost_messages_since(plan.at)
            or self._outlived(attempt, plan.at)
            or self._broker_of_a_mark_failed(plan.at)
            for attempt in attempts
            if attempt.is_of_repeated_stage
            and (plan := self._writing.plans.get((attempt.run, attempt.origin))) is not None
        )

    @granted_by("limits.md", "retention has removed more than half of them")
    def _has_lost_messages_since(self, planned_at: float) -> bool:
        return any(loss.how == RETENTION and loss.at >= planned_at for loss in self._schedule.truth.losses)

    @granted_by("limits.md", "the broker of a mark failed meanwhile")
    def _broker_of_a_mark_failed(self, planned_at: float) -> bool:
        return self._schedule.broker_failed_since(planned_at)

    @granted_by("limits.md", "an attempt of an earlier batch that Spark gave up replaced a mark")
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


@granted_by("limits.md", "no partition had received 32 messages (the log has `[no-marks]` before the batch)")
def _could_leave_no_mark(plan: Plan) -> bool:
    return not plan.could_mark


@granted_by("sink.md", "it sends the rows that it did not find, and may store rows of one batch twice")
def _may_send_again(attempts: Sequence[Attempt]) -> bool:
    return any(one.send_again for one in attempts)


@granted_by("limits.md", "`spark.speculation` is on")
def _is_speculated(attempts: Sequence[Attempt]) -> bool:
    return any(one.is_speculative for one in attempts)


@granted_by("limits.md", "a run without the option is killed in the first batch of a checkpoint")
def _was_begun_without_the_option(entry: Entry, live: Sequence[Copy]) -> bool:
    is_first = entry.origin[1] == 0
    return is_first and any(copy.attempt is not None and not copy.attempt.once for copy in live)


@granted_by("limits.md", "a broker handles a send more than 10 s after it answered another request")
def _is_late_at_the_broker(live: Sequence[Copy]) -> bool:
    return any(map(is_late, live))


@granted_by("limits.md", "the older one still sends more than 3 s after the newer one began")
def _is_late_in_the_executor(attempts: Sequence[Attempt], live: Sequence[Copy]) -> bool:
    return any(
        other.run != sender.run and sender.at < other.at < copy.message.at - SETTLING
        for copy in live
        if (sender := copy.attempt) is not None
        for other in attempts
    )
