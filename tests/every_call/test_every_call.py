# SPDX-License-Identifier: Apache-2.0
"""Each fault at each kind of request of two queries; `python -m tests.every_call` plays more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.every_call.hook import DRIVER, TASK
from tests.every_call.kept import Kept
from tests.every_call.run import play_embedded, sample
from tests.every_call.sink import SinkStage
from tests.every_call.source import SourceStage, history, with_fault
from tests.every_call.table import markdown, summary, write
from tests.every_call.trials import (
    BROKEN,
    COLUMNS,
    MISSED,
    NEXT_RUN,
    RETRIED,
    UNNOTICED,
    Result,
    Trial,
    faults_of,
    outcome_of,
)

THOROUGH = pytest.mark.thorough


@pytest.fixture(scope="module")
def source() -> Iterator[SourceStage]:
    stage = SourceStage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def sink() -> Iterator[SinkStage]:
    stage = SinkStage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def reading(source: SourceStage) -> list[Trial]:
    return source.trials()


@pytest.fixture(scope="module")
def writing(sink: SinkStage) -> list[Trial]:
    return sink.trials()


def check(result: Result) -> None:
    assert result.outcome not in (BROKEN, MISSED), str(result)


def one_of_each_kind(trials: Sequence[Trial]) -> list[Trial]:
    """Return one trial for each kind of request, in the middle of the run; its variant of the fault differs from kind
    to kind."""
    kinds = sorted({(trial.role, trial.method) for trial in trials})
    chosen = []
    for number, kind in enumerate(kinds):
        hows = sorted({trial.how for trial in trials})
        how = hows[number % len(hows)]
        alike = [trial for trial in trials if (trial.role, trial.method) == kind and trial.how == how]
        chosen.append(alike[len(alike) // 2])
    return chosen


@pytest.mark.parametrize("column", COLUMNS)
def test_a_fault_at_each_kind_of_request_of_a_stream(source: SourceStage, reading: list[Trial], column: str) -> None:
    for trial in one_of_each_kind([trial for trial in reading if trial.column == column]):
        check(source.play(trial))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_fault_at_a_request_of_a_write(sink: SinkStage, writing: list[Trial], column: str) -> None:
    number = list(COLUMNS).index(column)
    kinds = one_of_each_kind([trial for trial in writing if trial.column == column])
    check(sink.play(kinds[number % len(kinds)]))


@THOROUGH
@pytest.mark.timeout(3600)
def test_each_fault_at_each_request(reading: list[Trial], writing: list[Trial]) -> None:
    for result in play_embedded([*reading, *writing], 2):
        check(result)


def test_the_stream_sends_requests_of_many_kinds(source: SourceStage) -> None:
    calls = source.calls()
    assert {DRIVER, TASK} == {call.role for call in calls}
    assert len(set(calls)) > 8
    assert calls == source.calls()  # so that a number names the same request each time


def test_the_write_sends_requests_of_many_kinds(sink: SinkStage) -> None:
    calls = sink.calls()
    assert {"plan", "task", "commit"} == {process for _, process, _ in calls}
    assert len({method for methods in calls.values() for method in methods}) > 8
    assert calls == sink.calls()


def test_a_killed_process_sends_nothing_more(source: SourceStage) -> None:
    """A stream is killed at its second request and never started again."""
    killed = with_fault(2, "kill_sent", DRIVER)
    first_run = killed.with_events(killed.events[:3])
    calls, met, _ = source.play_history(first_run)
    assert met == calls[1]
    assert len(calls) == 2


# What the table is made of


def trial(method: str = "get_message", column: str = "reply lost", how: str = "unanswered") -> Trial:
    return Trial("source", TASK, method, column, how, {}, history())


@pytest.mark.parametrize(
    ("calls", "is_ended", "is_repeated", "outcome"),
    [
        ({"get": 2, "close": 1}, False, False, UNNOTICED),
        ({"get": 2}, False, False, UNNOTICED),
        ({"get": 3}, False, False, RETRIED),
        ({"get": 2, "register": 1}, False, False, RETRIED),
        ({"get": 2, "close": 1}, False, True, RETRIED),
        ({"get": 3}, True, True, NEXT_RUN),
    ],
)
def test_the_outcome_of_a_trial(calls: dict[str, int], is_ended: bool, is_repeated: bool, outcome: str) -> None:
    expected = {"get": 2, "close": 1}
    assert outcome_of(calls, expected, is_ended=is_ended, is_repeated=is_repeated) == outcome


def test_only_tasks_lose_their_worker_and_only_drivers_die() -> None:
    assert "worker killed" not in dict(faults_of(DRIVER))
    assert "driver killed" not in dict(faults_of(TASK))
    assert dict(faults_of(DRIVER)).keys() | dict(faults_of(TASK)).keys() == COLUMNS.keys()


def test_a_sample_has_each_cell_before_one_comes_twice() -> None:
    trials = [trial("get_message")] * 20 + [trial("commit_offset")]
    for seed in "abc":
        assert {one.method for one in sample(trials, 2, seed)} == {"get_message", "commit_offset"}
    assert sample(trials, 5, "a") == sample(trials, 5, "a")
    assert len(sample(trials, 100, "a")) == len(trials)


def test_the_table_counts_outcomes() -> None:
    results = [
        Result(trial(), UNNOTICED),
        Result(trial(), RETRIED),
        Result(trial(), RETRIED),
        Result(trial(how="cut_sent", column="connection cut"), NEXT_RUN, ["TransportError"]),
        Result(trial("commit_offset"), BROKEN, (), "a row came twice"),
    ]
    lines = markdown(results).splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("| source, task: `commit_offset` | - | 0/0/0 **1 broken** | - | - |")
    assert lines[3].startswith("| source, task: `get_message` | - | 1/2/0 | - | 0/0/1 |")
    assert lines[4].startswith("| all | - | 1/2/0 **1 broken** | - | 0/0/1 |")
    assert summary(results) == (
        "5 trials: unnoticed 1, retried 2, next run 1, broken 1. Errors of tasks and runs: `TransportError` 1 times."
    )


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n<!-- every call: embedded -->\n\nold\n\n<!-- end -->\n\nB\n")
    write(page, "embedded", "new")
    assert page.read_text() == "# A\n\n<!-- every call: embedded -->\n\nnew\n\n<!-- end -->\n\nB\n"
    with pytest.raises(ValueError, match="real 9"):
        write(page, "real 9", "new")


def test_kept_results_are_not_played_again(tmp_path: Path) -> None:
    results = [
        Result(trial(), NEXT_RUN, ["TransportError"]),
        Result(trial("commit_offset"), BROKEN, (), "a row came twice"),
    ]
    kept = Kept(tmp_path / "results")
    for result in results:
        kept.add(result)
        kept.add(result)
    again = Kept(tmp_path / "results")
    assert [str(again.result(one.trial)) for one in results] == list(map(str, results))
    assert [again.result(one.trial).errors for one in results] == [["TransportError"], []]  # type: ignore[union-attr]
    assert again.result(trial("register")) is Kept(None).result(trial()) is None
    assert len((tmp_path / "results").read_text().splitlines()) == 2
