# SPDX-License-Identifier: Apache-2.0
"""Positions of groups: set and reset, and never while another client reads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests import messages
from tests.cli.conftest import Result, Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED
from tests.waiting import wait_until
from tubemq_spark.cli.main import main
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.protocol.message import format_msg_time
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def topic(named: Cluster) -> str:
    """A topic with two messages in each store."""
    name = named.new_topic("one")
    messages.send(named, messages.numbered(messages.partitions(named, name), 4))
    return name


def positions(run: Run, group: str) -> dict[int, int | None]:
    done = run("lag", group, "--json")
    return {line["broker_id"]: line["position"] for line in done.json} if done.returncode == 0 else {}


def test_a_group_is_reset(topic: str, run: Run, group: str) -> None:
    unknown = run("offsets", "reset", group, topic, "--to", "latest", "--yes")
    assert (unknown.returncode, f"no broker knows group {group}" in unknown.stderr) == (2, True), unknown
    done = run("offsets", "reset", group, topic, "--to", "latest", "--create", "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(line["broker_id"], line["old"], line["new"], line["entries"]) for line in done.json] == [
        (1, 0, 56, 2),
        (2, 0, 56, 2),
    ]
    wait_until(lambda: positions(run, group) == {1: 56, 2: 56})  # release 2.5 shows a new group after some seconds
    done = run("offsets", "set", group, topic, "2:0=-1", "--yes")
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [f"2:{topic}:0   56   28  -1", f"moved group {group} in 1 partitions"]
    assert run("offsets", "reset", group, topic, "--to", "earliest", "--yes").returncode == 0
    wait_until(lambda: positions(run, group) == {1: 0, 2: 0})
    again = run("offsets", "reset", group, topic, "--to", "earliest", "--yes")
    assert (again.returncode, again.stdout) == (0, f"group {group} is at these positions already\n")


def test_a_mistyped_group_is_not_created(own_tubemq: EmbeddedTubeMQ, run: Run, tmp_path: Path) -> None:
    own_tubemq.send("t", b"a", "1:0")
    for group in ("clicks_agg", "clicks_agg_spark_read"):  # the second one is the connector's, so nobody means it
        own_tubemq.move_group(group, "t", 1, 0, 0)
    committed = checkpoint(tmp_path, [offset({"t": {"1:0": 28}})])
    commands = [
        ["reset", "clicks_aggg", "t", "--to", "latest"],
        ["reset", "clicks_aggg", "t", "--to", "earliest", "--json"],
        ["set", "clicks_aggg", "t", "1:0=latest"],
        ["set", "clicks_aggg", "--checkpoint", committed],
    ]
    for command in commands:
        done = run("offsets", *command, "--yes")
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert (
            "no broker knows group clicks_aggg; did you mean clicks_agg? For a new group give --create" in done.stderr
        )
        asked = run("offsets", *command, stdin=b"n\n")
        assert (asked.returncode, "Create group clicks_aggg? [y/N]" in asked.stdout + asked.stderr) == (1, True), asked
        assert own_tubemq.group_offset("clicks_aggg", "t", 1, 0) is None
    other = run("offsets", "reset", "xyz", "t", "--to", "latest", "--yes")
    assert "no broker knows group xyz. For a new group give --create" in other.stderr
    lag = run("lag", "clicks_aggg")
    assert (lag.returncode, "of group clicks_aggg; did you mean clicks_agg? A new" in lag.stderr) == (1, True)


def test_a_new_group_is_created_on_demand(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    """Also where it would stand anyway."""
    done = run("offsets", "reset", "one", "t", "--to", "earliest", "--create", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "created group one in 2 partitions"
    assert [line["position"] for line in run("lag", "one", "--json").json] == [0, 0]
    asked = run("offsets", "reset", "two", "t", "--to", "latest", stdin=b"y\ny\n")
    assert (asked.returncode, asked.stderr) == (0, "tubemq-spark: no broker knows group two.\n")
    assert "created group two in 2 partitions" in asked.stdout
    again = run("offsets", "reset", "one", "t", "--to", "earliest", "--create", "--yes")
    assert again.stdout == "group one is at these positions already\n"


def test_a_group_of_which_nobody_can_tell_is_moved(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    command = ("offsets", "reset", "my_group", "t", "--to", "earliest", "--yes")
    done = run(*command, "--admin", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "group my_group is at these positions already\n")
    assert "it is not known whether there is a group my_group, because the master's HTTP API" in done.stderr


def test_a_move_that_fails_names_what_was_moved(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    for partition in ("1:0", "2:0"):
        own_tubemq.send("t", b"a", partition)
    own_tubemq.on("partition_register", broker=2, group="my_group", nth=2).close_connection()
    impatient = ["-X", "tubemq.retry.maxElapsedMs=0"]
    done = run("offsets", "reset", "--create", "my_group", "t", "--to", "latest", "--yes", *impatient)
    assert done.returncode == 1
    assert "group my_group was moved in 1:t:0; maybe also where" in done.stderr
    assert (own_tubemq.group_offset("my_group", "t", 1, 0), own_tubemq.group_offset("my_group", "t", 2, 0)) == (28, 0)


@pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)  # a real broker removes the messages later
def test_a_topic_that_is_created_anew_meanwhile_moves_no_group(
    named: Cluster, topic: str, run: Run, terminal: Terminal, group: str
) -> None:
    terminal.begin("offsets", "reset", "--create", group, topic, "--to", "latest", variables=variables_of(named))
    terminal.wait_for(lambda text: "Move group" in text)
    assert run("topics", "delete", topic, "--yes").returncode == 0
    assert run("topics", "create", topic).returncode == 0
    terminal.type("y\n")
    done = terminal.finish()
    assert done.status == 1
    assert "nothing is moved: " in done.text


@pytest.mark.parametrize("command", ["set", "reset"])
def test_a_place_that_does_not_exist_is_told(own_tubemq: EmbeddedTubeMQ, run: Run, command: str) -> None:
    own_tubemq.create_topic("u", 1, brokers=[1])
    for minute in range(4):
        own_tubemq.send("u", b"a", msg_time=f"20260101120{minute}")
    own_tubemq.expire("u", keep=2)

    def move(place: str) -> Result:
        return run(
            "offsets",
            command,
            "--create",
            "my_group",
            "u",
            *([f"1:0={place}"] if command == "set" else ["--to", place]),
            "--yes",
        )

    done = move("2800")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "the place 2800 of 1:u:0 lies beyond the end of the store, 112: give an earlier place, or latest" in done.stderr
    )
    assert "1:u:0 has no messages before 56 any more, so the group moves there instead of to 28" in move("28").stderr
    assert (
        "no message of 1:u:0 is as late as 2062-01-01 00:00:00+00:00, so the group moves to the end"
        in move("2062-01-01").stderr
    )
    assert own_tubemq.group_offset("my_group", "u", 1, 0) == 112
    for place in ("earliest", "latest", "56", "-1", "2026-01-01T12:03"):
        assert "the group moves" not in move(place).stderr


def test_a_group_is_reset_to_a_time(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    now = datetime.now(timezone.utc)
    for age in (60, 30, 0):
        time = format_msg_time(now - timedelta(minutes=age))
        run("produce", topic, "--time", time, "-p", "1:0", stdin=b"x\n")
    done = run("offsets", "reset", "--create", group, topic, "--to", "45m", "--yes", "--json")
    assert [(line["broker_id"], line["new"]) for line in done.json] == [(1, 28), (2, 0)]


def test_a_group_in_use_is_refused(named: Cluster, topic: str, run: Run, group: str, tmp_path: Path) -> None:
    run("offsets", "reset", "--create", group, topic, "--to", "latest", "--yes")
    committed = ["--checkpoint", checkpoint(tmp_path, [offset({topic: {"1:0": 28}})])]
    wait_until(lambda: positions(run, group))  # release 2.5 shows a new group after some seconds
    with GroupMember(messages.settings(named), group, topic) as member:
        for command in (
            ["reset", group, topic, "--to", "earliest"],
            ["set", group, topic, "1:0=0"],
            ["set", group, *committed],
        ):
            done = run("offsets", *command, "--create", "--yes")
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
            assert f"group {group} is in use: {member.claims.claim}" in done.stderr
        assert {at.group for at in member.positions.values()} == {56}
    assert run("offsets", "reset", "--create", group, topic, "--to", "latest", "--yes").stdout.endswith(
        "is at these positions already\n"
    )
    silent = run("offsets", "reset", "--create", group, topic, "--to", "latest", "--yes", "--json")
    assert (silent.returncode, silent.stdout) == (0, "")
    assert silent.stderr.endswith(f"tubemq-spark: group {group} is at these positions already\n")


def test_a_terminal_shows_the_difference_and_asks(named: Cluster, topic: str, terminal: Terminal, group: str) -> None:
    command = ("offsets", "reset", "--create", group, topic, "--to", "latest")
    refused = terminal.run(*command, typed="n\n", variables=variables_of(named))
    assert refused.status == 1
    assert f"Move group {group}? [y/N]" in refused.text
    accepted = terminal.run(*command, typed="y\n", variables=variables_of(named))
    assert accepted.status == 0
    assert [line.split() for line in accepted.text.splitlines() if topic in line] == [
        [f"1:{topic}:0", "0", "56", "+2"],
        [f"2:{topic}:0", "0", "56", "+2"],
    ]
    # Release 2.4 does not know for some seconds that the refused command has created the group.
    assert re.search(rf"(moved|created) group {group} in 2 partitions", accepted.text)


KAFKA, NOTHING = '{"clicks":{"0":28}}', "-"


def offset(topics: Mapping[str, Mapping[str, int]]) -> str:
    return json.dumps({"v": 1, "query": "1f", "offsets": topics, "unknown": 1})


def checkpoint(folder: Path, *batches: list[str], version: str = "v1") -> str:
    """Write the checkpoint of a query whose last batch is not committed. Each batch has the offsets of its sources."""
    for part in ("commits", "offsets"):
        (folder / part).mkdir(parents=True)
        (folder / part / ".1.crc").write_bytes(b"crc")
    for number, sources in enumerate([*batches, [NOTHING]]):
        (folder / "offsets" / str(number)).write_text("\n".join([version, '{"conf":{}}', *sources]))
    for number in range(len(batches)):
        (folder / "commits" / str(number)).write_text("v1\n{}")
    return str(folder)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_group_is_set_to_what_a_query_has_committed(
    named: Cluster, topic: str, run: Run, group: str, tmp_path: Path, form: str
) -> None:
    """In all topics of the query, however many batches there are, beside other sources."""
    other = named.new_topic("one")
    messages.send(named, messages.numbered(messages.partitions(named, other), 4))
    early = [KAFKA, offset({topic: {"1:0": 56, "2:0": 0}, other: {"1:0": 0}})]
    late = [KAFKA, NOTHING, offset({topic: {"1:0": 56, "2:0": 28}, other: {"1:0": 28}})]
    folder = form.format(checkpoint(tmp_path / "a b", *[early] * 10, late))
    done = run("offsets", "set", "--create", group, "--checkpoint", folder, "--yes", "--json")
    assert done.returncode == 0
    moved = [(line["topic"], line["broker_id"], line["old"], line["new"]) for line in done.json]
    assert sorted(moved) == sorted([(topic, 1, 0, 56), (topic, 2, 0, 28), (other, 1, 0, 28)])
    wait_until(lambda: positions(run, group))
    again = run("offsets", "set", "--create", group, "--checkpoint", folder, "--yes")
    assert (again.returncode, again.stdout) == (0, f"group {group} is at these positions already\n")


def test_a_batch_that_is_committed_while_the_command_waits_counts(
    own_tubemq: EmbeddedTubeMQ, run: Run, tmp_path: Path
) -> None:
    for _ in range(4):
        own_tubemq.send("t", b"x", "1:0")
    folder = checkpoint(tmp_path, [offset({"t": {"1:0": 28}})])

    def commit() -> None:
        (tmp_path / "offsets" / "1").write_text("\n".join(["v1", '{"conf":{}}', offset({"t": {"1:0": 84}})]))
        (tmp_path / "commits" / "1").write_text("v1\n{}")

    with own_tubemq.on("partition_register", times=1).run(commit) as claim:
        assert run("offsets", "set", "--create", "my_group", "--checkpoint", folder, "--yes").returncode == 0
    assert claim.fired
    assert own_tubemq.group_offset("my_group", "t", 1, 0) == 84


def test_a_topic_chooses_the_source_of_a_query(
    named: Cluster, topic: str, run: Run, group: str, tmp_path: Path
) -> None:
    other = named.new_topic("one")
    sources = [offset({other: {"1:0": 0}}), offset({topic: {"1:0": 28}})]
    command = ("--checkpoint", checkpoint(tmp_path, sources), "--yes", "--json")
    done = run("offsets", "set", "--create", group, *command)
    assert (done.returncode, done.stdout) == (2, "")
    told = f"Name a topic that only one of them reads. Topics: 1: {other}; 2: {topic}"
    assert told in done.stderr
    assert [line["new"] for line in run("offsets", "set", "--create", group, topic, *command).json] == [28]


def test_the_sources_of_a_checkpoint_have_names(topic: str, run: Run, group: str, tmp_path: Path) -> None:
    """Spark 4.2 and later write them with the second version of the offset log."""
    sources = [f"kafka:{KAFKA}", f"idle:{NOTHING}", f"clicks:{offset({topic: {'1:0': 28}})}"]
    folder = checkpoint(tmp_path, sources, version="v2")
    done = run("offsets", "set", "--create", group, "--checkpoint", folder, "--yes", "--json")
    assert [(line["topic"], line["new"]) for line in done.json] == [(topic, 28)]


@pytest.mark.parametrize(
    ("sources", "version", "part"),
    [
        (None, "v1", "commits has no committed batch"),
        (["[" * 100_000], "v1", "have no position of TubeMQ"),
        (["1:0"], "v3", "offsets/0 is missing or no offsets of version v1 or v2"),
        ([KAFKA, NOTHING], "v1", "have no position of TubeMQ"),
        (
            [{"elsewhere": {"1:0": 0}}],
            "v1",
            "the query does not read topic {topic}. Topics of its sources: 1: elsewhere",
        ),
        ([{"{topic}": {"1:0": 0}}] * 2, "v1", "the query has 2 sources of TubeMQ"),
        (
            [{"{topic}": {"1:0": 280}}],
            "v1",
            "place 280 of 1:{topic}:0 lies beyond the end of the store, 56: the checkpoint is",
        ),
        ([{"{topic}": {"7:0": 0}}], "v1", "there is no 7:{topic}:0"),
    ],
)
def test_a_checkpoint_that_says_nothing_for_the_group_is_refused(
    topic: str, run: Run, group: str, tmp_path: Path, sources: list[object] | None, version: str, part: str
) -> None:
    lines = [one if isinstance(one, str) else offset(one) for one in sources or ()]  # type: ignore[arg-type]
    batches = [] if sources is None else [[line.replace("{topic}", topic) for line in lines]]
    folder = checkpoint(tmp_path, *batches, version=version)
    done = run("offsets", "set", "--create", group, topic, "--checkpoint", folder, "--yes")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert part.format(topic=topic) in done.stderr


@pytest.mark.parametrize("kind", ["device", "pipe", "large"])
def test_a_checkpoint_whose_offsets_do_not_end_is_refused(
    topic: str, run: Run, group: str, tmp_path: Path, kind: str
) -> None:
    folder = checkpoint(tmp_path, [offset({topic: {"1:0": 28}})])
    file = tmp_path / "offsets" / "0"
    if kind == "large":
        with file.open("ab") as opened:
            opened.truncate(1 << 40)  # takes no space
    else:
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    done = run("offsets", "set", "--create", group, topic, "--checkpoint", folder, "--yes")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    part = "it has 1099511627776 bytes; at most 67108864 are read" if kind == "large" else "it is no regular file"
    assert f"cannot be read (offsets/0): {part}" in done.stderr


@pytest.mark.usefixtures("restored_signals")
def test_an_interrupt_at_the_question_ends_with_status_130(
    topic: str, group: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def readline(self, *_: object) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupting())
    assert main(["offsets", "reset", "--create", group, topic, "--to", "-1"]) == 130
    assert capfd.readouterr().err.endswith("Aborted!\n")
