# SPDX-License-Identifier: Apache-2.0
"""A sample of random histories, and tests of their tools. `python -m tests.histories` plays more."""

from __future__ import annotations

import os
import re
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

THOROUGH = pytest.mark.thorough
PARTITION, STORE = Partition(1, "a", 0), Store(1, "a", 0)


def seed(default: str) -> str:
    """Return the seed, from the environment variable TUBEMQ_HISTORIES_SEED if that is set."""
    return os.environ.get("TUBEMQ_HISTORIES_SEED", default)


@pytest.mark.parametrize("numbers", [range(20), pytest.param(range(20, 70), marks=THOROUGH)], ids=str)
def test_random_histories_without_spark(numbers: range) -> None:
    names = [f"{seed('usual')}:{number}" for number in numbers]
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(partial(play_alone, shrinks=True), names):
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


@pytest.mark.parametrize("history", REGRESSIONS, ids=lambda history: history.name)
def test_histories_that_failed_once(history: History) -> None:
    outcome = Stage().play(history)
    assert outcome.problem is None, outcome


@pytest.mark.parametrize(
    ("server", "numbers"),
    [
        pytest.param("embedded", range(3), marks=THOROUGH),
        pytest.param("real", range(1), marks=[pytest.mark.real, THOROUGH]),
    ],
    ids=str,
)
def test_random_histories_in_spark(server: str, numbers: range) -> None:
    play_all(Stage(server, "spark"), numbers)


@pytest.mark.real
@pytest.mark.thorough
def test_random_histories_on_a_real_server() -> None:
    play_all(Stage("real"), range(3))


def play_all(stage: Stage, numbers: range) -> None:
    """Play the histories of these numbers. Without Java or Maven the test is skipped, except in CI."""
    with stage:
        try:
            stage.prepare()
        except MissingTool as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        for number in numbers:
            outcome = stage.play_named(f"{seed('usual')}:{number}", shrinks=False)
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


# The histories themselves


def test_a_name_always_gives_the_same_history() -> None:
    assert generate("some:1") == generate("some:1")
    assert generate("some:1") != generate("some:2")
    assert History.from_json(generate("some:1").to_json()) == generate("some:1")


def test_histories_use_only_options_of_the_source() -> None:
    assert OPTIONS.keys() <= {option.name for option in SOURCE_OPTIONS}


def test_shrink_keeps_only_the_events_that_are_needed_to_fail() -> None:
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
    """A ledger of three messages in one store."""
    ledger = Ledger()
    for position in (0, 28, 56):
        ledger.add(entry(position))
    ledger.set_extent(STORE, Extent(0, 84), "itself", {})
    return ledger


def rows(*positions: int) -> dict[Partition, list[Row]]:
    return {PARTITION: [entry(position).row for position in positions]}


def test_accepts_each_message_once_and_in_order(ledger: Ledger) -> None:
    ledger.check(rows(0, 28, 56), {PARTITION: 0})
    ledger.check(rows(28, 56), {PARTITION: 28})


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ((0, 56), "at 28 of 1:a:0 is missing"),
        ((0, 28, 28, 56), "came twice"),
        ((0, 56, 28), "at 28 of 1:a:0 came after"),
        ((0, 28, 56, 84), "was never stored"),
    ],
)
def test_refuses_missing_repeated_reordered_and_unknown_rows(
    ledger: Ledger, positions: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(BrokenError, match=problem):
        ledger.check(rows(*positions), {PARTITION: 0})


def test_refuses_messages_before_the_start(ledger: Ledger) -> None:
    with pytest.raises(BrokenError, match="lies before the start 28"):
        ledger.check(rows(0, 28, 56), {PARTITION: 28})


def test_a_loss_must_be_reported_and_a_report_must_be_a_loss(ledger: Ledger) -> None:
    ledger.set_extent(STORE, Extent(28, 84), "retention", {})
    with pytest.raises(BrokenError, match=re.escape("lost by retention is missing, and its loss was not reported")):
        ledger.check(rows(28, 56), {PARTITION: 0})
    ledger.report(PARTITION, 0, 28, "as it is")
    ledger.check(rows(28, 56), {PARTITION: 0})
    ledger.report(PARTITION, 0, 56, "too much")
    with pytest.raises(BrokenError, match=re.escape("which the server did not lose: too much")):
        ledger.check(rows(28, 56), {PARTITION: 0})


def test_only_a_lost_tail_that_was_read_must_be_reported(ledger: Ledger) -> None:
    ledger.set_extent(STORE, Extent(0, 28), "crash", {PARTITION: 56})
    with pytest.raises(BrokenError, match=re.escape("had read [28, 56) of 1:a:0")):
        ledger.check(rows(0, 28), {PARTITION: 0})
    ledger.report(PARTITION, 56, 28, "as it is")
    ledger.check(rows(0, 28), {PARTITION: 0})  # 56 was not read and needs no report


def test_messages_at_reused_positions_are_new(ledger: Ledger) -> None:
    ledger.begins(PARTITION)
    ledger.set_extent(STORE, Extent(0, 0), "crash", {})
    ledger.add(entry(0, b"new"))
    ledger.set_extent(STORE, Extent(0, 28), "itself", {})
    with pytest.raises(BrokenError, match="'new' at 0 of 1:a:0 is missing"):
        ledger.check({}, {PARTITION: 84})
    ledger.check({PARTITION: [entry(0, b"new").row]}, {PARTITION: 84})
