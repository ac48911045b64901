# SPDX-License-Identifier: Apache-2.0
"""Arguments that a command refuses, by command: one line says what is wrong."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from tests.clusters import Cluster

TOPIC, GROUP = "TOPIC", "GROUP"  # in arguments: a topic with one partition on each broker, and the name of a group

# Each entry: the arguments, and a part of the line.
WRONG: dict[tuple[str, ...], list[tuple[list[str], str]]] = {
    ("consume", TOPIC): [
        (["--from", "yesterday"], "--from is 'yesterday'"),
        (["--from", "29"], "multiple of 28"),
        (["--from", "999999999999d"], "before all times"),
        (["--format", "{nothing}"], "there is no field 'nothing'"),
        (["--format", "x\\"], "--format"),
        (["--format", "\\q{value}"], "--format"),
        (["--format", "{value"], "--format"),
        (["--format", "\\ud800"], "--format"),
        (["--partition", "0"], "brokerId:partitionId"),
        (["--partition", "1:77"], "there is no 1:"),
        (["--follow", "--to", "earliest"], "--follow has no end"),
        (["--raw"], "--raw needs --format"),
        (["--time-zone", "Nowhere/Here"], "--time-zone"),
        (["--filter", "a,b"], "--filter: a message type is blank, or contains one of , = #"),
        (["--group", "a.b"], "'a.b' is not the name of a consumer group"),
    ],
    ("consume", "no_such_topic"): [([], "no_such_topic")],
    ("find", TOPIC): [([], "--attribute")],
    ("produce", TOPIC): [
        (["--attribute", "x"], "KEY=VALUE"),
        (["--attribute", "x=1", "--attribute", "x=2"], "--attribute 'x' is given twice"),
        (["--time", "soon"], "--time"),
        (["--time", "9999-12-31T23:59-14:00"], "--time"),
        (["--partition", "1:99"], "99"),  # also without input
        (["--from-json", "--whole"], "--from-json excludes"),
        (["--key-separator", ""], "--key-separator is empty"),
        (["--key-separator", ":", "--key", "a"], "give --key or --key-separator, not both"),
        (["-", "/no/such/file"], "/no/such/file"),
        (["/tmp"], "/tmp"),
    ],
    ("offsets", "set", "--create", GROUP, TOPIC): [
        ([], "give TOPIC and BROKER:PARTITION=PLACE, or --checkpoint FOLDER"),
        (["1:0=0", "--checkpoint", "/nowhere"], "give TOPIC and BROKER:PARTITION=PLACE, or --checkpoint FOLDER"),
        (["1:0"], "is not BROKER:PARTITION=PLACE"),
        (["1:9=0"], "there is no 1:"),
        (["1:0=29"], "multiple of 28"),
        (["1:0=20260131120000"], "13 digits"),
    ],
    ("offsets", "reset", GROUP, TOPIC): [
        (["--to", "202601311200"], "write it in the form 2026-01-31T12:00"),
        (["--to", "never"], "--to is 'never'"),
    ],
    ("redrive", TOPIC): [
        (["--message-format", "avro"], "avro"),
        (["--from", "soon"], "soon"),
        (["--only-topic", "t", "--json"], "--json shows no targets and asks nothing: give --yes or --dry-run"),
        (["--to", TOPIC, "--yes"], "is the dead letter topic that is read. Name another one"),
        (["--only-topic", TOPIC, "--yes"], "is the dead letter topic that is read. Name another one"),
        (["--yes"], "name the topics that may be written: --only-topic or --to"),
    ],
    ("topics", "create"): [
        (["bad-name"], "bad-name"),
        (["made_x", "--broker", "99"], "there is no broker 99"),
        (["made_x", "--retention", "72h"], "--retention is '72h'"),
        (["made_x", "--retention", "keep,72h"], "expected delete,TIME"),
        (["made_x", "--retention", "delete,0s"], "--retention is 'delete,0s'"),
        (["made_x", "--retention", "delete,169h"], "at most 168h"),
        (["made_x", "--retention", "delete,3d"], "s, m or h"),
    ],
    ("topics", "alter", "no_such_topic"): [
        (["--partitions", "4"], "no_such_topic"),
        ([], "--partitions, --stores or --retention"),
        (["--retention", "72h"], "--retention is '72h'"),
    ],
    ("topics", "describe"): [(["no_such_topic"], "no_such_topic")],
    ("groups", "allow", "no_such_topic"): [(["anybody"], "there is no topic no_such_topic")],
    ("groups", "block", "no_such_topic"): [(["anybody"], "there is no topic no_such_topic")],
}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [((*command, *more), part) for command, wrong in WRONG.items() for more, part in wrong],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_named(named: Cluster, run: Run, group: str, arguments: tuple[str, ...], part: str) -> None:
    names = {TOPIC: named.new_topic("one"), GROUP: group}
    done = run(*(names.get(one, one) for one in arguments))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert part in done.stderr
