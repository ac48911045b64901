"""Histories that are played on each run; `python -m tests.histories` plays others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from tests.histories.generate import OPTIONS, generate
from tests.histories.ledger import BrokenError, Entry, Extent, Ledger, Row, Store
from tests.histories.regressions import REGRESSIONS
from tests.histories.run import Stage, play_alone
from tests.histories.script import Event, History
from tests.histories.shrink import shrink
from tests.real.jars import MissingTool
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.options import SOURCE_OPTIONS

CALLS, SPARK, REAL_CALLS, REAL_SPARK = 70, 3, 3, 1
PARTITION, STORE = Partition(1, "a", 0), Store(1, "a", 0)


def seed(default: str) -> str:
    """TUBEMQ_HISTORIES_SEED plays others than usual."""
    return os.environ.get("TUBEMQ_HISTORIES_SEED", default)


def test_calls_on_embedded_servers() -> None:
    names = [f"{seed('usual')}:{number}" for number in range(CALLS)]
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(partial(play_alone, shrinks=True), names):
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


@pytest.mark.parametrize("history", REGRESSIONS, ids=lambda history: history.name)
def test_what_once_failed(history: History) -> None:
    outcome = Stage().play(history)
    assert outcome.problem is None, outcome


@pytest.fixture(params=[("embedded", SPARK), pytest.param(("real", REAL_SPARK), marks=pytest.mark.real)], ids=str)
def spark_stage(request: pytest.FixtureRequest) -> Iterator[tuple[Stage, int]]:
    server, count = request.param
    yield from staged(Stage(server, "spark"), count)


@pytest.fixture
def real_stage() -> Iterator[tuple[Stage, int]]:
    yield from staged(Stage("real"), REAL_CALLS)


def staged(stage: Stage, count: int) -> Iterator[tuple[Stage, int]]:
    try:
        stage.prepare()
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with stage:
        yield stage, count


def play_all(stage: Stage, count: int) -> None:
    for number in range(count):
        outcome = stage.play_named(f"{seed('usual')}:{number}", shrinks=False)
        assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


def test_spark(spark_stage: tuple[Stage, int]) -> None:
    play_all(*spark_stage)


@pytest.mark.real
def test_calls_on_a_real_server(real_stage: tuple[Stage, int]) -> None:
    play_all(*real_stage)


# The histories themselves


def test_a_name_is_a_history() -> None:
    assert generate("some:1") == generate("some:1")
    assert generate("some:1") != generate("some:2")
    assert History.from_json(generate("some:1").to_json()) == generate("some:1")


def test_options_are_those_of_the_source() -> None:
    assert OPTIONS.keys() <= {option.name for option in SOURCE_OPTIONS}


def test_shrinking_finds_what_it_needs() -> None:
    def fails(history: History) -> bool:
        kinds = [event.kind for event in history.events]
        return "crash" in kinds and "run" in kinds[kinds.index("crash") :]

    long = generate("some:3").with_events(
        [Event("send"), Event("run"), Event("crash"), Event("stop"), Event("run"), Event("send")] * 3
    )
    assert [event.kind for event in shrink(long, fails).events] == ["crash", "run"]


# The ledger


def entry(position: int, body: bytes = b"") -> Entry:
    return Entry(PARTITION, position, Row(position, position + 1000, body or b"at %d" % position))


@pytest.fixture
def ledger() -> Ledger:
    """Of three messages in one store."""
    ledger = Ledger()
    for position in (0, 28, 56):
        ledger.learn(entry(position))
    ledger.stands(STORE, Extent(0, 84), "itself", {})
    return ledger


def rows(*positions: int) -> dict[Partition, list[Row]]:
    return {PARTITION: [entry(position).row for position in positions]}


def test_all_once_and_in_order(ledger: Ledger) -> None:
    ledger.check(rows(0, 28, 56), {PARTITION: 0})
    ledger.check(rows(28, 56), {PARTITION: 28})


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ((0, 56), "at 28 of 1:a:0 is missing"),
        ((0, 28, 28, 56), "came twice"),
        ((0, 56, 28), "at 28 of 1:a:0 came after"),
        ((0, 28, 56, 84), "nobody sent"),
    ],
)
def test_anything_else_is_told(ledger: Ledger, positions: tuple[int, ...], problem: str) -> None:
    with pytest.raises(BrokenError, match=problem):
        ledger.check(rows(*positions), {PARTITION: 0})


def test_messages_before_the_start_do_not_come(ledger: Ledger) -> None:
    with pytest.raises(BrokenError, match="lies before the start 28"):
        ledger.check(rows(0, 28, 56), {PARTITION: 28})


def test_a_loss_must_be_reported_and_a_report_must_be_a_loss(ledger: Ledger) -> None:
    ledger.stands(STORE, Extent(28, 84), "retention", {})
    with pytest.raises(BrokenError, match=re.escape("lost by retention is missing, and nothing was said")):
        ledger.check(rows(28, 56), {PARTITION: 0})
    ledger.report(PARTITION, 0, 28, "as it is")
    ledger.check(rows(28, 56), {PARTITION: 0})
    ledger.report(PARTITION, 0, 56, "too much")
    with pytest.raises(BrokenError, match=re.escape("which the server did not lose: too much")):
        ledger.check(rows(28, 56), {PARTITION: 0})


def test_a_lost_tail_that_was_read_must_be_reported_and_one_that_nobody_saw_cannot(ledger: Ledger) -> None:
    ledger.stands(STORE, Extent(0, 28), "crash", {PARTITION: 56})
    with pytest.raises(BrokenError, match=re.escape("had seen [28, 56) of 1:a:0")):
        ledger.check(rows(0, 28), {PARTITION: 0})
    ledger.report(PARTITION, 56, 28, "as it is")
    ledger.check(rows(0, 28), {PARTITION: 0})  # nothing of 56


def test_positions_that_are_used_again_are_new_messages(ledger: Ledger) -> None:
    ledger.begins(PARTITION)
    ledger.stands(STORE, Extent(0, 0), "crash", {})
    ledger.learn(entry(0, b"new"))
    ledger.stands(STORE, Extent(0, 28), "itself", {})
    with pytest.raises(BrokenError, match="'new' at 0 of 1:a:0 is missing"):
        ledger.check({}, {PARTITION: 84})
    ledger.check({PARTITION: [entry(0, b"new").row]}, {PARTITION: 84})
