# SPDX-License-Identifier: Apache-2.0
"""Shows attempts of a task to each other if Spark repeats the stage. Nothing else decides this case.

Spark repeats a stage that could not read its shuffle files. Then attempts of its tasks have number 0 again, and Spark
does not pass to Python which attempt of the stage runs. Attempts of the earlier stage may still run.

So each attempt that has rows leaves a mark at a broker before its first message: a position of the group
`<base>_task_<n>`, in which nobody reads. The plan of the batch decides where the mark of a task is and which positions
are marks of this plan: all attempts of the stage have the same plan. An attempt that finds a mark replaces it by the
next one, and searches for rows. The attempt that has left the first mark then finds another position, and stops: a mark
of its plan, of another run, or of a later batch if it was idle for long. An attempt that finds a mark of the next plan
searches, too: another attempt has stored the rows of its batch, and Spark has not ended this one yet.

Positions are clamped to those of the store, so a store that holds less than `_SLOTS` messages takes no marks. The plan
only knows how many it has received; if retention has removed more than half, the task tries another store.

An old position is not a mark: the number of a position in the index, modulo the number of plans that differ, is the
plan. This number of plans is a power of two that grows with the store, so plans of different begins understand each
other. An old mark may be taken for one of this plan by chance. The search then finds nothing.

Marks are an additional proof. If a broker does not answer or refuses the group, the task goes on as if it had found
none. If a crash or retention has removed its mark, the attempt stops as well, and Spark's next one searches.
"""

from __future__ import annotations

import logging
from itertools import cycle, islice
from typing import NamedTuple

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.short_claims import exchange_position
from tubemq_spark.client.consumer.working_group import task_group
from tubemq_spark.errors import FencedError, TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.batch_state import Begins
from tubemq_spark.sink.task_attempts import WriteTask

_log = logging.getLogger(__name__)

_SLOTS, _MOST_SLOTS = 32, 1024  # positions before the end; a part of them belongs to a plan, `_MARKS` at least
# Spark attempts a stage at most 4 times, by default (spark.stage.maxConsecutiveAttempts). Attempts that look at the
# same time replace each other, and leave two or three marks each.
_MARKS = 8
_PLACES = 3  # stores that a task tries


def can_mark(begins: Begins) -> bool:
    """Return True if a partition of a batch with these begins can take marks."""
    return any(map(_takes_marks, begins.values()))


def _takes_marks(end: int) -> bool:
    return end >= _SLOTS * UNIT


class _Place(NamedTuple):
    group: str
    partition: Partition
    marks: list[int]
    plans: int  # that differ


class TaskMark:
    """The mark of one attempt of a task of a stream."""

    def __init__(self, session: ProducerSession, base: str, task: WriteTask, plan: int, begins: Begins) -> None:
        """`base` is what the names of the query's groups begin with, `plan` the number of the plan with `begins`."""
        self._session = session
        self._task = task
        self._clock = session.settings.clock
        self._max_age = session.settings.timings.task_mark_max_age
        self._proven_at = 0.0
        stores = [one for one in sorted(begins) if _takes_marks(begins[one])]
        round_, first = divmod(task.partition, max(1, len(stores)))
        places = [*islice(cycle(stores), first, first + min(_PLACES, len(stores)))]
        self._places = [
            _Place(task_group(base, round_ * _PLACES + number), one, *_marks_before(begins[one], plan))
            for number, one in enumerate(places)
        ]
        self._next_plan = plan + 1
        self._own: set[int] = set()  # the mark; those that were tried if it is unknown which of them the broker has
        self._is_left = False  # a broker has answered that it has the mark

    def take(self) -> bool:
        """Leave the mark. Return True if it replaces that of an earlier attempt, or one of the next plan."""
        has_earlier = False
        while self._places:
            self._proven_at = self._clock.monotonic()
            marks = self._places[0].marks
            mark = marks[self._task.attempt_id % len(marks)]  # attempts without an answer differ, too
            self._own, known = set(), set[int]()
            while True:
                self._own.add(mark)
                if (answer := self._exchange(mark)) is None:
                    if len(self._own) > 1:  # the other attempt may choose the same mark: rather stop than send both
                        self._own.remove(mark)
                    return has_earlier
                found, now = answer
                has_earlier = has_earlier or found in marks or self._is_of_next_plan(found)
                if found not in marks or now != mark or found in known:
                    break
                known |= {found, mark}  # if another one is found next, an attempt has left it meanwhile
                mark = marks[(marks.index(found) + 1) % len(marks)]  # which none of the attempts before has
            self._own, self._is_left = {mark}, now == mark
            if self._is_left:
                if has_earlier:
                    _log.info("%s has an earlier attempt", self._task)
                return has_earlier
            self._places.pop(0)
        return has_earlier

    def _is_of_next_plan(self, position: int) -> bool:
        plans = self._places[0].plans
        return (position // UNIT - self._next_plan) % plans == 0

    def check(self) -> None:
        """Raise `FencedError` if another attempt has replaced the mark. Ask the broker if the last proof is too old."""
        if not (self._places and self._own) or self._clock.monotonic() - self._proven_at < self._max_age:
            return
        answer = self._exchange(None)
        # After the answer: the task waits for a broker that is slow, and must be able to send before it asks again.
        self._proven_at = self._clock.monotonic()
        if answer is None:
            self._max_age = max(1.0, 2 * self._max_age)  # sends to other brokers go on
            return
        self._max_age = self._session.settings.timings.task_mark_max_age
        if answer[0] in self._own:
            self._is_left = True
        elif self._is_left or answer[0] in self._places[0].marks:
            raise FencedError(
                f"{self._task}: Spark has begun another attempt of this task, which stores the remaining rows, or a "
                "broker has lost the position that shows this. Nothing is to be done if that attempt, or the next one, "
                "goes on",
                holder="",
            )

    def _exchange(self, position: int | None) -> tuple[int, int] | None:
        place = self._places[0]
        try:
            within = self._session.settings.timings.broker_away_after
            return exchange_position(self._session, place.group, place.partition, position, within=within)
        except TubeMQError as error:
            _log.warning(
                "[no-mark] %s leaves no mark, so a repeated stage would not find its rows: %s", self._task, error
            )
            self._places.clear()
            return None


def _marks_before(end: int, plan: int) -> tuple[list[int], int]:
    """Return the positions that are marks of the plan, the last ones before `end`, and how many plans differ."""
    last = end // UNIT
    slots = max(_SLOTS, min(_MOST_SLOTS, 1 << last.bit_length() - 2))
    plans = min(slots // _MARKS, 64)
    first = last - (last - plan) % plans
    return [number * UNIT for number in range(first, last - slots, -plans)], plans
