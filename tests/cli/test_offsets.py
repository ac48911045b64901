# SPDX-License-Identifier: Apache-2.0
"""Positions of groups: shown, set and reset, and never while another client reads."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests import messages
from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster
from tests.waiting import wait_until
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.protocol.message import format_msg_time


@pytest.fixture
def topic(named: Cluster) -> str:
    """A topic with two messages in each store."""
    name = named.new_topic("one")
    messages.send(named, messages.numbered(messages.partitions(named, name), 4))
    return name


def positions(run: Run, group: str) -> dict[int, int | None]:
    done = run("offsets", "show", group, "--json")
    return {line["broker_id"]: line["position"] for line in done.json} if done.returncode == 0 else {}


def test_a_group_is_reset_and_shown(topic: str, run: Run, group: str) -> None:
    done = run("offsets", "reset", group, topic, "--to", "latest", "--yes", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(line["broker_id"], line["old"], line["new"], line["entries"]) for line in done.json] == [
        (1, 0, 56, 2),
        (2, 0, 56, 2),
    ]
    wait_until(lambda: positions(run, group) == {1: 56, 2: 56})  # release 2.5 shows a new group after some seconds
    done = run("offsets", "set", group, topic, "2:0=-1", "--yes")
    assert done.stdout.splitlines()[1:] == [f"2:{topic}:0  56   28   -1", f"moved group {group} in 1 partitions"]
    assert run("offsets", "reset", group, topic, "--to", "earliest", "--yes").returncode == 0
    wait_until(lambda: positions(run, group) == {1: 0, 2: 0})
    again = run("offsets", "reset", group, topic, "--to", "earliest", "--yes")
    assert (again.returncode, again.stdout) == (0, f"group {group} is there already\n")


def test_a_group_is_reset_to_a_time(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    now = datetime.now(timezone.utc)
    for age in (60, 30, 0):
        time = format_msg_time(now - timedelta(minutes=age))
        run("produce", topic, "--time", time, "-p", "1:0", stdin=b"x\n")
    done = run("offsets", "reset", group, topic, "--to", "45m", "--yes", "--json")
    assert [(line["broker_id"], line["new"]) for line in done.json] == [(1, 28)]


def test_a_group_in_use_is_refused(named: Cluster, topic: str, run: Run, group: str) -> None:
    run("offsets", "reset", group, topic, "--to", "latest", "--yes")
    with GroupMember(messages.settings(named), group, topic) as member:
        for command in (["reset", group, topic, "--to", "earliest"], ["set", group, topic, "1:0=0"]):
            done = run("offsets", *command, "--yes")
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
            assert f"group {group} is in use: {member.claims.claim}" in done.stderr
        assert {at.group for at in member.positions.values()} == {56}
    assert run("offsets", "reset", group, topic, "--to", "latest", "--yes").stdout.endswith("is there already\n")


def test_a_terminal_shows_the_difference_and_asks(named: Cluster, topic: str, terminal: Terminal, group: str) -> None:
    command = ("offsets", "reset", group, topic, "--to", "latest")
    refused = terminal.run(*command, typed="n\n", variables=variables_of(named))
    assert refused.status == 1
    assert f"Move group {group}? [y/N]" in refused.text
    accepted = terminal.run(*command, typed="y\n", variables=variables_of(named))
    assert accepted.status == 0
    assert [line.split() for line in accepted.text.splitlines() if topic in line] == [
        [f"1:{topic}:0", "0", "56", "+2"],
        [f"2:{topic}:0", "0", "56", "+2"],
    ]
    assert f"moved group {group} in 2 partitions" in accepted.text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["set", "1:0"], "is not BROKER:PARTITION=PLACE"),
        (["set", "1:9=0"], "the topic has no 1:"),
        (["set", "1:0=29"], "multiple of 28"),
        (["set", "1:0=20260131120000"], "13 digits"),
        (["reset", "--to", "202601311200"], "write it in the form 2026-01-31T12:00"),
        (["reset", "--to", "never"], "--to is 'never'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_positions_are_named(topic: str, run: Run, group: str, arguments: list[str], part: str) -> None:
    command, *rest = arguments
    done = run("offsets", command, group, topic, *rest, "--yes")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert part in done.stderr


def test_an_unknown_group_is_reported(named: Cluster, run: Run) -> None:
    done = run("offsets", "show", "nobody_reads_in_this_group")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no broker has a position of group nobody_reads_in_this_group" in done.stderr
