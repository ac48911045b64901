# SPDX-License-Identifier: Apache-2.0
"""Messages that `produce` sends."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster
from tests.waiting import wait_until
from tubemq_spark.cli.main import main
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.testing import EmbeddedTubeMQ


def test_each_line_of_the_input_is_a_message(named: Cluster, run: Run) -> None:
    topic = named.new_topic("one")
    done = run("produce", topic, "-t", "click", "-a", "site=north", "-a", "n=1", "-p", "2:0", "--json", stdin=b"a\n\nb")
    # A message without value is one of attributes only.
    assert (done.json, done.stderr) == ([{"topic": topic, "stored": 3, "partitions": {"2:0": 3}}], "")
    found = run("consume", topic).json
    assert [line["value"] for line in found] == ["a", "", "b"]
    assert {(line["broker_id"], line["msg_type"], *line["attributes"].values()) for line in found} == {
        (2, "click", "north", "1")
    }
    assert all(line["msg_time"] for line in found)


def test_messages_of_one_key_go_to_one_partition(named: Cluster, run: Run) -> None:
    topic = named.new_topic("three")
    lines = "".join(f"key{number % 4}:{number}\n" for number in range(24))
    run("produce", topic, "--key-separator", ":", stdin=lines.encode())
    places: dict[int, set[tuple[int, int]]] = {}
    for line in run("consume", topic).json:
        places.setdefault(int(line["value"]) % 4, set()).add((line["broker_id"], line["partition"]))
    assert len(places) == 4
    assert all(len(where) == 1 for where in places.values())


def test_files_are_sent_by_lines_or_as_a_whole(named: Cluster, run: Run, tmp_path: Path) -> None:
    topic = named.new_topic("one")
    (tmp_path / "first").write_bytes(b"a\r\r\nb\n")
    (tmp_path / "second").write_bytes(b"c\nd\n")
    paths = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert run("produce", topic, *paths, "-p", "1:0").returncode == 0
    assert run("produce", topic, *paths, "-", "-p", "1:0", "--whole", stdin=b"in").returncode == 0
    found = [line["value"] for line in run("consume", topic).json]
    assert found == ["a\r", "b", "c", "d", "a\r\r\nb\n", "c\nd\n", "in"]


def test_a_topic_can_be_copied(named: Cluster, run: Run) -> None:
    source, target = named.new_topic("one"), named.new_topic("one")
    given = [
        {"value": "a", "msg_type": "t", "msg_time": "202611221000", "attributes": {"x": "1"}},
        {"value_base64": "/wA="},
    ]
    lines = "".join(json.dumps(one) + "\n" for one in given)
    assert run("produce", source, "--from-json", "-p", "1:0", stdin=lines.encode()).returncode == 0
    read = run("consume", source)
    assert run("produce", target, "--from-json", "-p", "1:0", stdin=read.stdout.encode()).returncode == 0
    own = ("msg_type", "msg_time", "attributes", "value", "value_base64")
    copied = [{name: line.get(name) for name in own} for line in run("consume", target).json]
    assert copied == [{name: line.get(name) for name in own} for line in read.json]


def test_a_terminal_shows_the_number_of_messages(named: Cluster, run: Run, terminal: Terminal, tmp_path: Path) -> None:
    topic = named.new_topic("one")
    (tmp_path / "lines").write_text("x\n" * 2000)
    done = terminal.run("produce", topic, str(tmp_path / "lines"), variables=variables_of(named))
    assert done.status == 0
    assert f"sending to {topic}" in done.text  # the progress bar
    assert f"stored 2000 messages in topic {topic}" in done.text
    piped = run("produce", topic, str(tmp_path / "lines"))
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout.startswith(f"stored 2000 messages in topic {topic} (")


@pytest.mark.parametrize(
    ("arguments", "stdin", "stored", "part"),
    [
        (["--from-json"], b"{}\n", 0, "line 1: it needs either value or value_base64"),
        (["--from-json"], b'{"value": "a"}\n{"value": "a", "color": "red"}\n', 1, "line 2: unknown fields color"),
        (["--from-json"], b"nothing\n", 0, "line 1: it is not JSON (Expecting value"),
        (["--from-json"], b'{"value": "a", "value": "b"}\n', 0, "line 1: its JSON has a key twice"),
        (
            ["--from-json"],
            b'{"value": "a"}\n{"value": "a", "corrupt": true, "problem": "x"}\n',
            1,
            "line 2: it is corrupt",
        ),
        (["--from-json"], b'{"value": "a"}\n\n{"value": null}\n', 1, "line 3: it needs either value or value_base64"),
        (["--from-json"], b'{"value": "a", "attributes": {"x": 1}}\n', 0, "line 1: attributes"),
        (["--from-json"], b'{"value": "a", "attributes": [1]}\n', 0, "line 1: attributes"),
        (["--from-json"], b'{"value": "a", "attributes": "text"}\n', 0, "line 1: attributes"),
        (["--from-json"], b'{"value": "a", "attributes": {"a,b": "c"}}\n', 0, "line 1: "),
        (["--from-json"], b'{"value": "a", "key": "\\ud800"}\n', 0, "line 1: key cannot be sent: "),
        (["--from-json"], b'{"value_base64": "?"}\n', 0, "line 1: value_base64 cannot be sent: "),
        (["--from-json"], b"[" * 100_000 + b"\n", 0, "line 1: it is nested too deeply"),
        (["--from-json"], b'{"value": "a", "msg_time": "soon"}\n', 0, "line 1: msg_time is 'soon'; expected a time"),
        (["--from-json"], b'{"value": "a"}\n{"value": "a", "msg_time": "0001-01-01T00:00+14:00"}\n', 1, "line 2: "),
        (["--key-separator", ":"], b"a:b\n" * 200 + b"no key\nc:d\n", 200, "line 201: it has no key"),
        (["--key-separator", ":"], b"a:b\n\xff:c\nno key\n", 2, "line 3: it has no key"),
        ([], b"a\n" + b"b" * 3_000_000 + b"\nc\n", 1, "line 2: "),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else "",
)
def test_lines_before_a_wrong_one_are_stored(
    named: Cluster, run: Run, arguments: list[str], stdin: bytes, stored: int, part: str
) -> None:
    topic = named.new_topic("one")
    done = run("produce", topic, "-p", "1:0", *arguments, stdin=stdin)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stdout.startswith(f"stored {stored} messages in topic {topic}")
    assert f"the standard input, {part}" in done.stderr
    assert len(run("consume", topic).json) == stored


@pytest.mark.parametrize("blocks", [True, False])
def test_a_live_pipe_is_sent_when_it_pauses(
    tubemq: EmbeddedTubeMQ, run: Run, monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    topic = f"live{blocks}"
    tubemq.create_topic(topic, partitions=1)
    read, write = os.pipe()
    os.set_blocking(read, blocks)  # any process that shares the pipe may do that
    results: list[int] = []

    def produce() -> None:
        results.append(main(["produce", topic, "--master", tubemq.master]))

    with os.fdopen(read) as stdin, os.fdopen(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        thread = threading.Thread(target=produce)
        thread.start()
        for count, text in enumerate((b"first\nsec", b"ond\nthird\n"), 1):
            pipe.write(text)
            wait_until(lambda expected=2 * count - 1: len(tubemq.messages(topic)) == expected)  # type: ignore[misc]
        pipe.close()
        thread.join()
    assert [message.body for message in tubemq.messages(topic)] == [b"first", b"second", b"third"]
    assert results == [0]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_the_producer_tells_how_many_are_stored(
    tubemq: EmbeddedTubeMQ, run: Run, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    tubemq.create_topic("cut", partitions=1)
    receive, signals = Producer._receive, [stop]

    def interrupted_receive(self: Producer) -> None:
        if signals:
            signal.raise_signal(signals.pop())
        receive(self)

    monkeypatch.setattr(Producer, "_receive", interrupted_receive)  # within the producer's work
    done = run("produce", "cut", "--master", tubemq.master, stdin=b"a\n" * 5000)
    stored = len(tubemq.messages("cut"))
    assert (done.returncode, done.stderr) == (130, "tubemq-spark: interrupted\n")
    assert 0 < stored < 5000
    assert done.stdout.startswith(f"stored {stored} messages in topic cut")
