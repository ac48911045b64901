# SPDX-License-Identifier: Apache-2.0
"""Random histories of the sink, which each test run plays; `python -m tests.sink_histories` plays others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.histories.script import TopicShape
from tests.real.jars import MissingTool
from tests.sink_histories.generate import OPTIONS, generate, order, with_repeated_stages
from tests.sink_histories.jobs import BAD, OutRow
from tests.sink_histories.judge import BrokenError, Case, judge
from tests.sink_histories.play import Committed
from tests.sink_histories.regressions import REGRESSIONS
from tests.sink_histories.run import Stage, play_alone
from tests.sink_histories.script import ONCE, PLAIN, STAMPED, Event, History, Setting
from tests.sink_histories.world import DEAD, Message
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.send_queue import RecordMetadata
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Partition, parse_master_addresses
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.sink.receipts import Receipts, write_receipts
from tubemq_spark.testing import EmbeddedTubeMQ

REAL = 3  # histories on real servers


def seed(default: str) -> str:
    """Return the seed of all histories; TUBEMQ_HISTORIES_SEED replaces the default."""
    return os.environ.get("TUBEMQ_HISTORIES_SEED", default)


@pytest.mark.parametrize("numbers", [range(8), pytest.param(range(8, 40), marks=pytest.mark.thorough)], ids=str)
def test_random_histories_on_embedded_servers(numbers: range) -> None:
    histories = [generate(f"{seed('usual')}:{number}") for number in numbers]
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(partial(play_alone, shrinks=True), histories):
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


@pytest.mark.thorough
def test_random_histories_with_repeated_stages() -> None:
    histories = [with_repeated_stages(f"{seed('usual')}:{number}") for number in range(12)]
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(partial(play_alone, shrinks=True), histories):
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.mark.parametrize("history", REGRESSIONS, ids=lambda history: history.name)
def test_histories_that_failed_once(stage: Stage, history: History) -> None:
    outcome = stage.play(history)
    assert outcome.problem is None, outcome


def test_answers_to_a_failed_producer_reach_no_other() -> None:
    with EmbeddedTubeMQ({"a": 1}) as tubemq:
        settings = ClientSettings(masters=parse_master_addresses(tubemq.master), framing=tubemq.framing)
        failing = Producer(settings)
        failing.send("a", b"one")
        failing.flush()
        failing.send("a", b"two")
        failing._dispatch()
        (channel,) = failing._sender.connected.values()

        def is_answered() -> bool:
            channel.flush()
            return bool(channel.connection._replies)

        wait_until(is_answered)
        failing.close()
        with Producer(settings) as another:
            another.send("a", b"three")
        assert len(tubemq.messages("a")) == 3
        forget_servers()


KILLED = Event("hook", 1, 0, {"role": "task", "task": 0, "attempt": 0, "how": "kill_answered", "nth": 2})
SMALL = Setting(brokers=1, topics={"a": TopicShape(1, 1)}, tasks=[[2], [4]], mode=ONCE)


def test_a_sink_without_a_search_is_detected(stage: Stage) -> None:
    history = History("blind", SMALL, (KILLED,))
    outcome = stage.play(history)
    assert outcome.problem is None, outcome
    assert outcome.stats["tasks that died"] == 1
    with Stage(blind=True) as blind:
        problem = blind.play(history).problem
    assert problem is not None
    assert "stands there 2 times, and was written 1 times only" in problem


@pytest.mark.real
@pytest.mark.thorough
def test_random_histories_on_real_servers() -> None:
    with Stage("real") as stage:
        try:
            stage.prepare()
        except MissingTool as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        for number in range(REAL):
            outcome = stage.play(generate(f"{seed('usual')}:{number}", "real"))
            assert outcome.problem is None, f"{outcome}\n{outcome.history.to_json()}"


# Histories


def test_a_name_determines_a_history() -> None:
    assert generate("some:1") == generate("some:1")
    assert generate("some:1") != generate("some:2")
    assert History.from_json(generate("some:1").to_json()) == generate("some:1")


def test_histories_use_options_of_the_sink() -> None:
    assert OPTIONS.keys() <= {option.name for option in SINK_OPTIONS}


def test_only_later_attempts_are_shuffled() -> None:
    history = History("some", replace(SMALL, shuffled=True))
    assert order(history, 0, 0, 0, 20) == list(range(20)) != order(history, 0, 0, 1, 20)
    assert sorted(order(history, 0, 0, 1, 20)) == list(range(20))


# The judge

QUERY = "00000000-0000-0000-0000-000000000001"
HERE, THERE = Partition(1, "a", 0), Partition(1, "a", 1)
READ = Partition(1, "b", 0)  # of a topic that rows were read in
ROWS = [
    OutRow("a", b"free"),
    OutRow("a", b"red 1", b"red"),
    OutRow("a", b"red 2", b"red"),
    OutRow("a", b"there", None, (1, 1)),
]


def stored(partition: Partition, place: int, body: bytes, row: int, batch: int = 0) -> Message:
    stamp = {"spark_id": QUERY, "spark_batch": str(batch), "spark_partition": "0", "spark_row": str(row)}
    return Message(partition, place, 1000 + place, body, tuple(sorted(stamp.items())))


FREE, RED_1, RED_2 = stored(HERE, 0, b"free", 0), stored(HERE, 28, b"red 1", 1), stored(HERE, 56, b"red 2", 2)
BY_TARGET = stored(THERE, 0, b"there", 3)
NEXT = stored(HERE, 84, b"next", 0, batch=1)


@pytest.fixture
def case() -> Case:
    """A correct outcome of two batches of one task each."""
    committed = {
        0: [Committed(ROWS, [0, 1, 2, 3], Written({"1:a:0": 3, "1:a:1": 1}, QUERY))],
        1: [Committed([OutRow("a", b"next")], [0], Written({"1:a:0": 1}, QUERY))],
    }
    return Case(replace(SMALL, mode=ONCE), QUERY, committed, [FREE, RED_1, RED_2, BY_TARGET, NEXT])


def test_a_correct_outcome_passes(case: Case) -> None:
    judge(case)
    assert case.doubles == 0


@pytest.mark.parametrize(
    ("mode", "messages", "problem"),
    [
        (PLAIN, [FREE, RED_1, RED_2, NEXT], "b'there') stands there 0 times"),
        (PLAIN, [FREE, RED_1, RED_2, BY_TARGET, NEXT, replace(FREE, place=200, body=b"?")], "was never sent"),
        (PLAIN, [FREE, RED_1, RED_2, BY_TARGET, NEXT, replace(FREE, partition=READ)], "was never sent"),
        (ONCE, [FREE, RED_1, RED_2, BY_TARGET, NEXT, replace(FREE, place=70)], "b'free') stands there 2 times"),
        (PLAIN, [FREE, RED_1, RED_2, NEXT, replace(BY_TARGET, partition=HERE, place=70)], "was for {(1, 1)}"),
        (PLAIN, [FREE, replace(RED_1, place=70), RED_2, BY_TARGET, NEXT], "came before"),
        (PLAIN, [FREE, RED_1, replace(RED_2, partition=THERE, place=28), BY_TARGET, NEXT], "rows of key b'red'"),
        (PLAIN, [FREE, RED_1, RED_2, BY_TARGET, replace(NEXT, place=14)], "stands behind batch 1"),
        (STAMPED, [FREE, RED_1, RED_2, BY_TARGET, replace(NEXT, attributes=())], "has no 'spark_id'"),
        (STAMPED, [replace(FREE, attributes=RED_1.attributes), RED_1, RED_2, BY_TARGET, NEXT], "another row's"),
    ],
)
def test_each_broken_promise_is_detected(case: Case, mode: str, messages: list[Message], problem: str) -> None:
    case.setting = replace(case.setting, mode=mode)
    case.stored = messages
    with pytest.raises(BrokenError, match=re.escape(problem)):
        judge(case)


def test_two_messages_with_one_stamp_are_detected_among_equal_bodies(case: Case) -> None:
    equal = [OutRow("a", b"equal"), OutRow("a", b"equal")]
    case.committed = {0: [Committed(equal, [0, 1], Written({"1:a:0": 2}, QUERY))]}
    case.stored = [stored(HERE, 0, b"equal", 0), stored(HERE, 28, b"equal", 1)]
    judge(case)
    case.stored = [stored(HERE, 0, b"equal", 0), stored(HERE, 28, b"equal", 0)]
    with pytest.raises(BrokenError, match="2 messages have the stamp"):
        judge(case)


def test_messages_lost_in_a_crash_count_as_written(case: Case) -> None:
    case.stored, case.lost = [FREE, RED_1, RED_2, NEXT], {BY_TARGET: 5.0}
    judge(case)


def test_messages_lost_before_the_attempt_must_be_sent_again(case: Case) -> None:
    case.committed = {**case.committed, 0: [replace(case.committed[0][0], begun=6.0)]}
    case.stored, case.lost = [FREE, RED_1, RED_2, NEXT], {BY_TARGET: 5.0}
    with pytest.raises(BrokenError, match="stands there 0 times"):
        judge(case)


def test_allowed_doubles_are_counted(case: Case) -> None:
    case.setting = replace(case.setting, mode=PLAIN)
    case.stored = [FREE, RED_1, RED_2, BY_TARGET, replace(RED_1, place=70), NEXT]
    judge(case)
    assert case.doubles == 1


def test_reported_counts_must_match(case: Case) -> None:
    (done,) = case.committed[1]
    case.committed = {**case.committed, 1: [replace(done, written=Written({"1:a:0": 2}, QUERY))]}
    with pytest.raises(BrokenError, match="had 1 rows, and reports"):
        judge(case)


@pytest.mark.parametrize(
    ("failed_rows", "letters", "problem"),
    [
        ("deadLetter", [b"bad"], None),
        ("deadLetter", [b"bad", b"bad"], None),
        ("deadLetter", [], "there are 0 dead letters of b'bad', which are 1 rows"),
        ("deadLetter", [b"bad", b"good"], "b'good' is among the dead letters, and can be sent"),
        ("drop", [], None),
        ("fail", [], "reports"),
    ],
)
def test_failed_rows_are_judged(case: Case, failed_rows: str, letters: list[bytes], problem: str | None) -> None:
    rows = [OutRow("a", b"good"), OutRow("a", b"bad", bad=BAD[0])]
    dead = Partition(1, DEAD, 0)
    drops = failed_rows == "drop"
    counts = {"1:a:0": 1} if drops else {"1:a:0": 1, str(dead): 1}
    written = Written(counts, QUERY, dropped=int(drops), dead_letters=int(not drops))
    case.setting = replace(case.setting, failed_rows=failed_rows)
    case.committed = {0: [Committed(rows, [0, 1], written)]}
    case.stored = [stored(HERE, 0, b"good", 0), *(stored(dead, n, body, 1) for n, body in enumerate(letters))]
    if problem is None:
        judge(case)
    else:
        with pytest.raises(BrokenError, match=re.escape(problem)):
            judge(case)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows, None),
        (lambda rows: rows[1:], "name"),
        (lambda rows: [rows[0], rows[0], *rows[2:]], "name"),
        (lambda rows: [(0, rows[0][1]._replace(message_id=7)), *rows[1:]], "names what is not there"),
    ],
)
def test_wrong_receipts_are_detected(
    case: Case,
    tmp_path: Path,
    change: Callable[[list[tuple[int, RecordMetadata]]], list[tuple[int, RecordMetadata]]],
    problem: str | None,
) -> None:
    case.receipts = tmp_path
    for batch, messages in enumerate([[FREE, RED_1, RED_2, BY_TARGET], [NEXT]]):
        rows = [
            (number, RecordMetadata(Partition(1, "a", one.partition.partition_id), one.message_id, one.place, None))
            for number, one in enumerate(messages)
        ]
        receipts = Receipts(0)
        for row in change(rows) if batch == 0 else rows:
            receipts.add(*row)
        write_receipts(str(tmp_path), QUERY, batch, [receipts.packed()])
    if problem is None:
        judge(case)
    else:
        with pytest.raises(BrokenError, match=problem):
            judge(case)
