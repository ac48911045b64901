# SPDX-License-Identifier: Apache-2.0
"""Attempts of a task that Spark begins with number 0 again, because it repeats the stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.clocks import ManualClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.waiting import wait_until
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Cells, Task, batches, options, schema
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import FencedError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.task_attempts import WriteTask
from tubemq_spark.sink.task_mark import TaskMark
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan, plan_write

ROWS = [{"value": b"%d" % row} for row in range(50)]
EARLIER = [b"earlier"] * 80
Exchange = Callable[..., tuple[int, int] | None]
Make = Callable[..., TaskMark]


@pytest.fixture
def cluster(use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    use_timings(task_settling=0.0, task_mark_max_age=0.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}) as running:
        for body in EARLIER:
            running.tubemq.send("demo", body)
        yield running


@pytest.fixture
def plan(cluster: EmbeddedCluster) -> WritePlan:
    """The plan of a batch, which all attempts of its stage get."""
    # The task takes a row when the row before it is acknowledged.
    raw = options(
        cluster, "demo", effectivelyOnce=True, checkpointLocation=new_checkpoint(), tubemq_producer_maxInFlightBytes=1
    )
    return plan_write(raw, schema(ROWS), False).for_tasks()


@pytest.fixture(params=[True, False], ids=["begun before", "first attempt"])
def task(request: pytest.FixtureRequest, plan: WritePlan) -> Task:
    assert plan.batch is not None
    if request.param:
        object.__setattr__(plan, "batch", replace(plan.batch, is_first=False))
    return Task()


def attempt(plan: WritePlan, task: Task, rows: Iterable[Cells] = ROWS) -> int:
    """Return how many rows an earlier attempt had stored."""
    with task.running():
        return write_batches(plan, (batch for row in rows for batch in batches([row], schema([row])))).already_stored


def assert_each_stored_once(cluster: EmbeddedCluster) -> None:
    assert bodies_in(cluster) == Counter(row["value"] for row in ROWS) + Counter(EARLIER)


@pytest.mark.parametrize("begun", [1, 20])
@pytest.mark.parametrize("rest", [1, 30])
def test_an_attempt_of_the_earlier_stage_stops(
    cluster: EmbeddedCluster, plan: WritePlan, task: Task, begun: int, rest: int
) -> None:
    """Spark does not end the attempts that run when it repeats a stage."""

    def rows() -> Iterator[Cells]:
        yield from ROWS[:begun]
        wait_until(lambda: bodies_in(cluster).total() == len(EARLIER) + begun)
        assert attempt(plan, task.in_repeated_stage()) == begun
        yield from ROWS[begun : begun + rest]

    with pytest.raises(FencedError, match="Spark has begun another attempt of this task"):
        attempt(plan, task, rows())
    assert_each_stored_once(cluster)


# Marks without a broker


class Group:
    """The position of the group of the marks, as a broker exchanges it."""

    def __init__(self, begin: int = 0) -> None:
        self.at, self.begin = 0, begin

    def exchange(self, *asked: Any, within: float) -> tuple[int, int]:
        before, self.at = self.at, self.at if asked[-1] is None else max(self.begin, asked[-1])
        return before, self.at


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Make:
    """Return a function that makes the mark of an attempt, for which `exchange` answers instead of the broker."""
    session = ProducerSession(replace(ClientSettings.from_options({"tubemq.master": "master:8715"}), clock=clock))

    def make(exchange: Exchange, attempt: int = 0, *, plan: int = 1, stored: int = 100) -> TaskMark:
        monkeypatch.setattr("tubemq_spark.sink.task_mark.exchange_position", exchange)
        begins = {Partition(1, "demo", 0): stored * UNIT}
        return TaskMark(session, "group", WriteTask("query", 1, 0, 0, attempt), plan, begins)

    return make


def test_a_broker_that_stops_to_answer_does_not_take_all_the_time(clock: ManualClock, make: Make) -> None:
    """An attempt asks whether it may go on before it sends, and waits 2 s for a broker that does not answer."""
    group, asked, slow = Group(), [0], [False]

    def exchange(*of: Any, within: float) -> tuple[int, int] | None:
        asked[0] += 1
        if slow[0]:
            clock.advance(within)
            return None
        return group.exchange(*of, within=within)

    mark = make(exchange)

    def checks(count: int) -> list[int]:
        """Check every half second, and return how often the broker was asked."""
        before, asks = asked[0], []
        for _ in range(count):
            clock.advance(0.5)
            mark.check()
            asks.append(asked[0] - before)
        return asks

    mark.take()
    slow[0] = True
    assert checks(6) == [0, 1, 1, 1, 1, 2]
    slow[0] = False
    assert checks(12) == [0] * 7 + [1, 1, 2, 2, 3]  # after an answer once a second again


@pytest.mark.parametrize("unanswered", [1, 2])
def test_an_attempt_whose_mark_got_no_answer_stops_too(clock: ManualClock, make: Make, unanswered: int) -> None:
    """It does not know whether its request was executed, but sees that another attempt has left a mark."""
    group, answers = Group(), iter([False] * unanswered)

    def exchange(*asked: Any, within: float) -> tuple[int, int] | None:
        answer = group.exchange(*asked, within=within)
        return answer if next(answers, True) else None

    first, second = (make(exchange, attempt) for attempt in range(2))
    assert not first.take()
    clock.advance(2.0)
    if unanswered == 1:
        first.check()
    assert second.take() == (unanswered == 1)
    clock.advance(2.0)
    second.check()
    with pytest.raises(FencedError):
        first.check()


@pytest.mark.parametrize("others", [[1], [1, 1], [1, 1, 1], [1, 2], [1, 2, 3]])
def test_an_attempt_notices_any_of_the_later_ones(clock: ManualClock, make: Make, others: list[int]) -> None:
    """Also if it looks again only after several others, as many as Spark makes by default, and some of them are of
    later plans. Retention has removed half of the messages."""
    group = Group(50 * UNIT)
    plans = [1, *others]
    marks = [make(group.exchange, plan=plan) for plan in plans]
    assert [mark.take() for mark in marks] == [False, *(plan == before for before, plan in pairwise(plans))]
    clock.advance(2.0)
    marks[-1].check()
    with pytest.raises(FencedError):
        marks[0].check()


@pytest.mark.parametrize(("stored", "stored_later"), [(32, 32), (40, 5000), (10_000, 20_000)])
def test_an_attempt_that_begins_behind_the_next_batch_searches(make: Make, stored: int, stored_later: int) -> None:
    """Another attempt has stored the rows of its batch, and Spark has not ended this one yet."""
    group = Group()
    assert not make(group.exchange, plan=6, stored=stored).take()
    assert not make(group.exchange, plan=7, stored=stored_later).take()
    assert make(group.exchange, plan=6, stored=stored).take()
    assert not make(group.exchange, plan=8, stored=stored_later).take()


def test_attempts_that_take_their_marks_at_the_same_time_differ(clock: ManualClock, make: Make) -> None:
    """One finds a mark that another one is about to replace: the next mark after it may be the first attempt's."""
    group, meanwhile = Group(), list[int]()

    def exchange(*asked: Any, within: float) -> tuple[int, int]:
        before, now = group.exchange(*asked, within=within)
        return meanwhile.pop(0) if meanwhile and asked[-1] is not None else before, now

    first, last = make(exchange, 0), make(exchange, 1)
    marks = first._places[0].marks
    assert not first.take()
    meanwhile += [marks[3], marks[2]]  # the third attempt's two requests come before those of the last one
    assert last.take()
    clock.advance(2.0)
    last.check()
    with pytest.raises(FencedError):
        first.check()


def test_an_attempt_whose_second_mark_got_no_answer_stops_if_another_has_the_same(
    clock: ManualClock, make: Make
) -> None:
    """Both found the same mark, so both have chosen the same one after it."""
    group, asked = Group(), list[int]()

    def exchange(*of: Any, within: float) -> tuple[int, int] | None:
        before, now = group.exchange(*of, within=within)
        if of[-1] is None:
            return before, now
        asked.append(now)
        # Its second request: no answer, and the other attempt leaves the same mark meanwhile.
        return None if len(asked) == 2 else (mark._places[0].marks[3], now)

    mark = make(exchange)
    assert mark.take()
    clock.advance(2.0)
    with pytest.raises(FencedError):
        mark.check()


@pytest.mark.parametrize("attempt", range(4))
def test_a_store_that_begins_at_a_mark_ends_no_attempt_in_circles(make: Make, attempt: int) -> None:
    """Retention has removed so much that the broker moves the group to the begin of the store, which is a mark."""
    asked = []

    def exchange(*given: Any, within: float) -> tuple[int, int]:
        asked.append(given)
        assert len(asked) < 10
        return begin, max(begin, given[-1])

    mark = make(exchange, attempt, stored=32)
    begin = max(mark._places[0].marks)
    assert mark.take()


# Servers that take no marks


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_broker_that_takes_no_marks_does_not_stop_the_batch(
    cluster: EmbeddedCluster, plan: WritePlan, task: Task, is_refused: bool, use_timings: UseTimings
) -> None:
    marks = cluster.tubemq.on("partition_register", group=f"{plan.batch.base}_task_0")  # type: ignore[union-attr]
    with marks.fail(ErrCode.CONSUME_GROUP_FORBIDDEN) if is_refused else marks.drop_request():
        attempt(plan, task)
    assert_each_stored_once(cluster)
