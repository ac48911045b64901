# SPDX-License-Identifier: Apache-2.0
"""Dead letters that `redrive` writes again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

import pytest

from tests import messages
from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Output, Terminal
from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY
from tests.spark_jvm import quick_start
from tests.waiting import wait_until
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.cli.redrive import check_unchanged
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.schema import Cells
from tubemq_spark.testing import EmbeddedTubeMQ


def dead_letter(value: bytes, topic: str, msg_type: str = "click") -> tuple[bytes, bytes]:
    cells = Cells(value=value, topic=topic, msg_type=msg_type, attributes={"site": "north"})
    (message,) = DeadLetter(cells, "the topic was closed", 0.0, "write", 0, 0, len(value)).messages(1_000_000)
    return message


@pytest.fixture(params=[EMBEDDED, *REAL_THOROUGHLY])
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


@pytest.fixture
def redrive(named: Cluster, terminal: Terminal) -> Callable[..., Output]:
    """Runs `redrive` in the terminal's process, because it stops the Spark session of its process."""
    variables = {**variables_of(named), "SPARK_SUBMIT_OPTS": quick_start()}

    def run_redrive(*arguments: str, typed: str = "") -> Output:
        return terminal.run("redrive", *arguments, typed=typed, variables=variables)

    return run_redrive


@pytest.fixture
def asked_topics(named: Cluster, topics: tuple[str, str], terminal: Terminal, group: str) -> tuple[str, str]:
    """`topics`, while `redrive` asks in the terminal whether to write the letters and to move the group."""
    dead, target = topics
    variables = {**variables_of(named), "SPARK_SUBMIT_OPTS": quick_start()}
    terminal.begin("redrive", dead, "--group", group, "--create", "--only-topic", target, variables=variables)
    terminal.wait_for(lambda text: "Write 2 rows?" in text)
    return topics


@pytest.mark.thorough
def test_an_error_of_the_sink_is_told(topics: tuple[str, str], redrive: Callable[..., Output]) -> None:
    """Spark puts a traceback before it."""
    done = redrive(topics[0], "--to", "no_such_topic", "--yes")
    assert done.status == 2
    assert re.search(r"tubemq-spark: .*no_such_topic", done.text)
    assert "tubemq-spark: rows may be written already\n" in done.text


@pytest.mark.thorough
def test_a_row_that_is_still_wrong_names_the_option(
    named: Cluster, topics: tuple[str, str], redrive: Callable[..., Output]
) -> None:
    dead, target = topics
    body, attributes = dead_letter(b"ccc", target, "a,b")
    messages.send(named, [(messages.partitions(named, dead)[0], body)], attributes=attributes)
    done = redrive(dead, "--to", target, "--yes")
    assert done.status == 2
    assert re.search(r"column 'msg_type': .*; with --again, such rows become dead letters again", done.text)


@pytest.mark.thorough
def test_nobody_else_moves_the_group_meanwhile(
    named: Cluster, asked_topics: tuple[str, str], run: Run, terminal: Terminal, group: str
) -> None:
    dead, target = asked_topics
    refused = run("offsets", "reset", "--create", group, dead, "--to", "latest", "--yes")
    assert (refused.returncode, f"group {group} is in use" in refused.stderr) == (1, True), refused
    terminal.type("y\n")
    done = terminal.finish()
    assert (done.status, len(run("consume", target).json)) == (0, 2), done.text
    wait_until(lambda: run("lag", group).returncode == 0)  # release 2.5 shows a new group after some seconds
    assert (
        run("offsets", "reset", "--create", group, dead, "--to", "latest", "--yes").stdout
        == f"group {group} is at these positions already\n"
    )


def test_a_group_that_somebody_moved_while_its_claims_were_lost_stays_there(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.create_topic("dead", 1)
    tubemq.send("dead", b"a")
    settings = ClientSettings.from_options({"tubemq.master": tubemq.master})
    with GroupMember(settings, "g", "dead") as member:
        before = {one: at.group for one, at in member.positions.items()}
        check_unchanged(member, before, {})
        tubemq.stop_broker(1)
        tubemq.start_broker(1)  # and it knows no claims
        with GroupMember(settings, "g", "dead") as other:
            other.claims.take({one: at.end for one, at in other.extents().items()})
        with pytest.raises(TubeMQError, match="another client has moved group g in 1:dead:0 meanwhile"):
            check_unchanged(member, before, {})
        assert {at.group for at in member.positions.values()} == {28}


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        ([], "nothing is written: group fix stands beyond the end of 1:dead:0, because a broker lost messages, or "),
        (["--from", "28"], "nothing is written: --from lies behind the position of group fix in 1:dead:0"),
    ],
    ids=["group", "from"],
)
def test_a_group_beyond_the_end_skips_no_letters(tubemq: EmbeddedTubeMQ, run: Run, begin: list[str], says: str) -> None:
    """The letters of a topic that was created anew are not those that the group has passed."""
    tubemq.create_topic("dead", partitions=1)
    for number in range(5):
        tubemq.send("dead", b"%d" % number)
    tubemq.move_group("fix", "dead", 1, 0, 140)
    tubemq.delete_topic("dead")
    tubemq.create_topic("dead", partitions=1)
    for number in range(2):
        tubemq.send("dead", b"%d" % number)
    done = run("redrive", "dead", "--group", "fix", "--create", *begin, "--to", "t", "--yes", "--master", tubemq.master)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done
    assert says in done.stderr
    assert tubemq.group_offset("fix", "dead", 1, 0) == 140


def test_a_mistyped_group_writes_nothing_and_is_not_created(
    own_tubemq: EmbeddedTubeMQ, run: Run, terminal: Terminal
) -> None:
    """A new group would begin at the earliest letter, and write again what is written already."""
    own_tubemq.move_group("retries", "t", 1, 0, 0)
    done = run("redrive", "t", "--group", "retrys", "--to", "u", "--yes")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "no broker knows group retrys; did you mean retries? For a new group give --create" in done.stderr
    variables = {**variables_of(own_tubemq), "SPARK_SUBMIT_OPTS": quick_start()}
    shown = terminal.run("redrive", "t", "--group", "retrys", "--dry-run", variables=variables)
    assert (shown.status, "no broker knows group retrys, so it would begin" in shown.text) == (0, True), shown.text
    assert own_tubemq.group_offset("retrys", "t", 1, 0) is None


@pytest.mark.thorough
def test_letters_that_come_while_the_range_is_looked_for_are_left_out(
    tubemq: EmbeddedTubeMQ, terminal: Terminal
) -> None:
    tubemq.create_topic("dead", partitions=1)
    variables = {"TUBEMQ_MASTER": tubemq.master, "SPARK_SUBMIT_OPTS": quick_start()}
    come = partial(tubemq.send, "dead", b"a")
    with tubemq.on("partition_register", client="_look_", times=1).run(come) as look:
        done = terminal.run("redrive", "dead", "--from", "latest", "--dry-run", variables=variables)
    assert look.fired
    assert (done.status, "nothing of topic dead would be written" in done.text) == (0, True), done.text


@pytest.mark.thorough
def test_a_topic_that_is_enlarged_meanwhile(
    named: Cluster, asked_topics: tuple[str, str], run: Run, terminal: Terminal, group: str
) -> None:
    dead, target = asked_topics
    assert run("topics", "alter", dead, "--partitions", "2").returncode == 0
    terminal.type("y\n")
    done = terminal.finish()
    assert (done.status, len(run("consume", target).json)) == (0, 2), done.text
    wait_until(lambda: run("lag", group).returncode == 0)  # release 2.5 shows a new group after some seconds


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)  # a real broker removes the messages later
def test_a_topic_that_is_created_anew_meanwhile_keeps_its_letters(
    named: Cluster, asked_topics: tuple[str, str], run: Run, terminal: Terminal, group: str
) -> None:
    dead, target = asked_topics
    assert run("topics", "delete", dead, "--yes").returncode == 0
    assert run("topics", "create", dead, "--partitions", "1").returncode == 0
    for value in (b"c", b"dd", b"eee"):
        body, attributes = dead_letter(value, target)
        messages.send(named, [(messages.partitions(named, dead)[0], body)], attributes=attributes)
    terminal.type("y\n")
    done = terminal.finish()
    assert done.status == 1
    assert f"other letters than a moment ago are in 1:{dead}:0" in done.text
    assert run("consume", target).json == []
    wait_until(lambda: run("lag", group).returncode == 0)  # release 2.5 shows a new group after some seconds
    kept = run("offsets", "reset", "--create", group, dead, "--to", "earliest", "--yes")
    assert kept.stdout == f"group {group} is at these positions already\n"


def test_dead_letters_are_written_once_to_their_topics(
    named: Cluster, topics: tuple[str, str], run: Run, redrive: Callable[..., Output], group: str
) -> None:
    dead, target = topics
    (place, *_), other = messages.partitions(named, dead), named.new_topic("one")
    body, attributes = dead_letter(b"ccc", other)
    messages.send(named, [(place, body)], attributes=attributes)

    shown = redrive(dead, "--dry-run", "--json").text
    assert [json.loads(line) for line in shown.splitlines() if line.startswith("{")] == [
        {"topic": topic, "rows": count, "written_to": topic} for topic, count in sorted([(target, 2), (other, 1)])
    ]

    # Neither condition may let the group skip the letters that it leaves out.
    for condition in (["--only-topic", target], ["--to", target, "--where", "value <> encode('ccc', 'utf-8')"]):
        refused = redrive(dead, "--group", group, "--create", *condition, "--yes")
        assert refused.status == 1
        assert "1 dead letters would be left out" in refused.text
    late = redrive(dead, "--group", group, "--create", "--from", "28", "--to", target, "--yes")
    assert late.status == 1
    assert f"--from lies behind the position of group {group} in 1:{dead}:0" in late.text
    assert run("consume", target).json == []

    asked = redrive(dead, "--group", group, "--create", "--only-topic", target, "--only-topic", other, typed="y\n")
    assert asked.status == 0, asked.text
    assert "Write 3 rows? [y/N]" in asked.text
    for topic, count in ((target, "2"), (other, "1")):
        assert re.findall(rf"{topic} .* (\d) .* {topic}", asked.text) == [count]
    found = run("consume", target).json
    assert sorted((line["value"], line["msg_type"], line["attributes"]["site"]) for line in found) == [
        ("a", "click", "north"),
        ("bb", "click", "north"),
    ]
    # The group stands at the end, so there is nothing left for the next call.
    wait_until(lambda: run("lag", group).returncode == 0)  # release 2.5 shows a new group after some seconds
    again = run("offsets", "reset", "--create", group, dead, "--to", "latest", "--yes")
    assert again.stdout == f"group {group} is at these positions already\n"


@pytest.mark.thorough
def test_letters_for_other_topics_stay(topics: tuple[str, str], run: Run, redrive: Callable[..., Output]) -> None:
    dead, target = topics
    tried = redrive(dead, "--only-topic", "no_such_topic", "--dry-run", "--json")
    assert (tried.status, f"nothing of topic {dead} would be written" in tried.text) == (0, True), tried.text
    done = redrive(dead, "--only-topic", "no_such_topic", "--yes", "--json")
    assert (done.status, json.loads(done.text.splitlines()[-1])) == (0, {"topic": dead, "rows": 0})
    assert run("consume", target).json == []


@pytest.mark.thorough
def test_a_random_condition_is_evaluated_once(
    named: Cluster, topics: tuple[str, str], redrive: Callable[..., Output], group: str
) -> None:
    dead, target = topics
    place = messages.partitions(named, dead)[0]
    for number in range(98):
        body, attributes = dead_letter(b"%d" % number, target)
        messages.send(named, [(place, body)], attributes=attributes)
    tried = redrive(dead, "--group", group, "--create", "--to", target, "--where", "rand() < 0.5", "--yes")
    shown = sum(int(count) for count in re.findall(rf"^{target} +(\d+) ", tried.text, re.MULTILINE))
    assert f"{100 - shown} dead letters would be left out" in tried.text
