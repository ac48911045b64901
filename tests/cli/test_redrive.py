# SPDX-License-Identifier: Apache-2.0
"""Dead letters that `redrive` writes again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import messages
from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY
from tests.spark_jvm import quick_start
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.schema import Cells


def dead_letter(value: bytes, topic: str) -> tuple[bytes, bytes]:
    cells = Cells(value=value, topic=topic, msg_type="click", attributes={"site": "north"})
    (message,) = DeadLetter(cells, "the topic was closed", 0.0, "write", 0, 0, len(value)).messages(1_000_000)
    return message


@pytest.fixture(params=[EMBEDDED, REAL_THOROUGHLY])
def cluster(request: pytest.FixtureRequest, _clusters: Callable[[str], Cluster]) -> Cluster:
    return _clusters(request.param)


@pytest.fixture
def topics(named: Cluster) -> tuple[str, str]:
    """A dead letter topic with two dead letters, and the topic that they were meant for."""
    dead, target = named.new_topic("one"), named.new_topic("one")
    place = messages.partitions(named, dead)[0]
    for value in (b"a", b"bb"):
        body, attributes = dead_letter(value, target)
        messages.send(named, [(place, body)], attributes=attributes)
    return dead, target


@pytest.fixture(autouse=True)
def quick_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", quick_start())


def test_dead_letters_are_written_once_to_their_topics(
    named: Cluster, topics: tuple[str, str], run: Run, terminal: Terminal, group: str
) -> None:
    dead, target = topics
    variables = {**variables_of(named), "SPARK_SUBMIT_OPTS": quick_start()}
    (place, *_), other = messages.partitions(named, dead), named.new_topic("one")
    body, attributes = dead_letter(b"ccc", other)
    messages.send(named, [(place, body)], attributes=attributes)

    shown = run("redrive", dead, "--dry-run")
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [[target, "2", target], [other, "1", other]]

    # Neither condition may let the group skip the letters that it leaves out.
    for condition in (["--only-topic", target], ["--to", target, "--where", "value <> encode('ccc', 'utf-8')"]):
        refused = run("redrive", dead, "--group", group, *condition, "--yes")
        assert (refused.returncode, "1 dead letters would be left out" in refused.stderr) == (1, True)
    late = run("redrive", dead, "--group", group, "--from", "28", "--to", target, "--yes")
    assert (late.returncode, f"--from lies behind the position of group {group} in 1:{dead}:0" in late.stderr) == (
        1,
        True,
    )
    assert run("consume", target).json == []

    arguments = ["redrive", dead, "--group", group, "--only-topic", target, "--only-topic", other]
    asked = terminal.run(*arguments, typed="y\n", variables=variables)
    assert asked.status == 0, asked.text
    assert "Write 3 rows? [y/N]" in asked.text
    found = run("consume", target).json
    assert sorted((line["value"], line["msg_type"], line["attributes"]["site"]) for line in found) == [
        ("a", "click", "north"),
        ("bb", "click", "north"),
    ]
    # The group stands at the end, so there is nothing left for the next call.
    again = run("offsets", "reset", group, dead, "--to", "latest", "--yes")
    assert again.stdout == f"group {group} is there already\n"


def test_letters_for_other_topics_stay(named: Cluster, topics: tuple[str, str], run: Run) -> None:
    dead, target = topics
    done = run("redrive", dead, "--only-topic", "no_such_topic", "--yes", "--json")
    assert (done.returncode, done.json) == (0, [{"topic": dead, "rows": 0}])
    assert run("consume", target).json == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--message-format", "avro"], "avro"),
        (["--from", "soon"], "soon"),
        (["--yes"], "name the topics that may be written: --only-topic or --to"),
    ],
)
def test_wrong_arguments_are_named(named: Cluster, run: Run, arguments: list[str], part: str) -> None:
    done = run("redrive", named.new_topic("one"), *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert part in done.stderr
