# SPDX-License-Identifier: Apache-2.0
"""What `doctor` reports."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)


def test_a_working_installation_has_no_problem(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    done = run("doctor", "--topic", topic, "--group", group, "--json")
    assert (done.returncode, done.stderr) == (0, ""), [line for line in done.json if line["state"] == "failed"]
    found = {line["check"] for line in done.json}
    assert {
        "java",
        "discovery",
        "python",
        "pyspark",
        "protobuf",
        "pyarrow",
        "numpy",
        "master",
        "topic",
        "group",
    } <= found
    assert all(line["remedy"] for line in done.json if line["state"] != "ok")


def test_arguments_are_checked_as_the_options_of_a_query(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    arguments = ("--topic", topic, "--group", group, "--write", "nowhere", "--json")
    found = {(line["check"], line["subject"], line["state"]) for line in run("doctor", *arguments).json}
    assert {("topic", topic, "ok"), ("group", group, "ok"), ("topic", "nowhere", "failed")} <= found
    bad = run("doctor", *arguments, "-X", "rpc.timeoutMs=soon").json
    assert [line["subject"] for line in bad if line["state"] == "failed"] == ["-X rpc.timeoutMs"]


def test_each_problem_has_a_remedy(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "absent"))
    done = run("doctor", "--master", "127.0.0.1:1", "--json")
    assert done.returncode == 1
    assert done.stderr.endswith("checks failed; each says what to do\n")
    failed = {line["check"]: line for line in done.json if line["state"] == "failed"}
    assert {"java", "discovery", "interpreter"} <= failed.keys()
    assert "it is Java 11" in failed["java"]["detail"]
    assert failed["discovery"]["subject"] == "pyspark_broken"
    assert all(line["remedy"] for line in failed.values())
    assert any("127.0.0.1:1" in line["subject"] for line in failed.values())


def test_a_missing_master_is_a_line_of_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUBEMQ_MASTER", raising=False)
    done = run("doctor")
    assert done.returncode == 1
    assert "--master is required" in done.stdout
    assert "what to do: " in done.stdout


def test_a_name_commands_no_terminal(named: Cluster, run: Run, terminal: Terminal) -> None:
    evil = ("doctor", "--write", "t\x1b]0;x\x07\u202e")
    texts = [run(*evil).stdout, run(*evil, "--json").stdout, terminal.run(*evil, variables=variables_of(named)).text]
    for text in texts:
        assert "b]0;x" in text
        assert all(line.isprintable() for line in text.splitlines())


def test_a_terminal_shows_the_same_lines(named: Cluster, run: Run, terminal: Terminal) -> None:
    topic = named.new_topic("one")
    shown = terminal.run(
        "doctor", "--topic", topic, variables={**variables_of(named), "PYSPARK_PYTHON": sys.executable}
    )
    assert shown.status == 0
    assert "\x1b[32mok" in shown.raw
    assert re.search(rf"ok +topic +{topic}: 2 partitions on 2 brokers", shown.text)
    piped = run("doctor", "--topic", topic, "--quiet")
    assert (piped.returncode, piped.stderr) == (0, "")
    assert " ok, " in piped.stdout.splitlines()[-1]
    assert not any(line.startswith("ok") for line in piped.stdout.splitlines())
