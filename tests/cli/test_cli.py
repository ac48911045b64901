"""`tubemq-spark` as a program: what it prints, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from code import InteractiveConsole
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.real.processes import Ports
from tubemq_spark.protocol.constants import MASTER_PORT

COMMAND = [sys.executable, "-W", "error", "-m", "tubemq_spark.cli"]
SILENT = """\
import sys
from tubemq_spark.cli import demo, sensors
from tubemq_spark.cli.main import main

sensors.Sensors._send = lambda self: None
demo._PATIENCE = 0.0
sys.exit(main(["demo"]))
"""
INTERRUPTED = """\
import signal
import sys

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tubemq_spark.cli.broker":
            signal.raise_signal(signal.SIGINT)

from tubemq_spark.cli.main import main
sys.meta_path.insert(0, Interrupting)
sys.exit(main(["broker"]))
"""
WITHOUT = """\
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == {name!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
from tubemq_spark.cli.main import main
sys.exit(main(["demo"]))
"""


def run(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=seconds)


@contextmanager
def broker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A broker that runs; it ends with the block, however that ends."""
    with subprocess.Popen(
        [*COMMAND, "broker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def printed_until(process: subprocess.Popen[str], end: str) -> list[str]:
    """Its lines up to the one that begins with `end`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(end):
            return lines
    raise AssertionError(f"it never printed {end!r}, but {lines}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["--no-such-option"],
        ["broker", "--no-such-option"],
        ["broker", "--port", "many"],
        ["broker", "--port", "65536"],
        ["broker", "--brokers", "0"],
        ["broker", "--topic", ":3"],
        ["broker", "--topic", "demo:0"],
        ["broker", "--topic", "demo:x"],
        ["broker", "--topic", "9lives:1"],
        ["broker", "--release", "0.1"],
        ["demo", "--seconds", "-1"],
        ["demo", "--seconds", "soon"],
        ["demo", "--seconds", "nan"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_and_ends_with_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("tubemq-spark")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["--no-such-option", "broker"], "--no-such-option"),
        (["broker", "--no-such-option"], "--no-such-option"),
        (["broker", "extra"], "extra"),
        (["demo", "extra"], "extra"),
    ],
)
def test_what_is_not_known_is_named_beside_the_right_usage(arguments: list[str], named: str) -> None:
    lines = run(*arguments).stderr.splitlines()
    program = " ".join(["tubemq-spark", *(word for word in arguments if word in ("broker", "demo"))])
    assert lines[0].startswith(f"usage: {program} [-h]")
    assert lines[-1] == f"{program}: error: unrecognized arguments: {named}"


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run("--help").stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["broker", "--help"], ["demo", "--help"]], ids=" ".join
)
def test_help_ends_with_0(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tubemq-spark" in done.stdout


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("broker", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(port) in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_broker_says_where_it_is_and_ends_when_told(stop: signal.Signals) -> None:
    with broker("--json", "--topic", "clicks:2", "--topic", "views", "--brokers", "2", "--release", "1.2") as process:
        facts = json.loads(first_line(process))
        assert facts["topics"] == {"clicks": 2, "views": 3}
        assert (facts["brokers"], facts["release"]) == ([1, 2], "1.2")
        host, port = facts["master"].split(":")
        socket.create_connection((host, int(port)), timeout=30).close()
        process.send_signal(stop)
        process.send_signal(stop)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_broker_takes_the_port_it_is_given() -> None:
    with closing(Ports()) as ports, broker("--json", "--port", str(port := ports.free())) as process:
        assert json.loads(first_line(process))["master"] == f"127.0.0.1:{port}"


def test_the_printed_lines_work_in_pyspark(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with broker() as process:
        lines = printed_until(process, "query.stop()")
        *_, end = code = lines[lines.index("query = (") :]
        assert max(map(len, code)) < 80
        names: dict[str, Any] = {"spark": spark}
        shell = InteractiveConsole(names)  # line by line, as they are pasted
        for line in code[:-1]:
            shell.push(line)
        query = names["query"]
        try:
            assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
            shell.push(end)
            assert not query.isActive
        finally:
            query.stop()


def test_a_broker_says_how_to_start_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # the virtual environment is not active
    with broker() as process:
        lines = printed_until(process, "query = (")
    start = lines.index("pyspark")
    script = Path(sys.executable).parent / "activate"
    activate = [f". {os.path.relpath(script)}"] if script.exists() else []
    assert lines[start - len(activate) : start] == activate
    assert "pip install 'pyspark" in lines[start - len(activate) - 1]


def test_the_demo_shows_rows_progress_and_lag(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--seconds", "2"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = re.findall(r'^  1:\d+ +\d+  \w+ +[\d-]+ [\d:]+  site=\w+ +\{"sensor": .*\}$', done.stdout, re.MULTILINE)
    batches = re.findall(r"^batch \d+: (\d+) rows in [\d.]+ s, lag \d+$", done.stdout, re.MULTILINE)
    assert len(rows) >= len(batches) >= 1
    assert f"All {sum(map(int, batches))} rows came out, each once." in done.stdout
    assert "lag 0" in done.stdout
    assert f"tubemq-spark broker --port {MASTER_PORT}" in done.stdout
    assert done.stdout.count(f'"tubemq.master", "127.0.0.1:{MASTER_PORT}"') == 2  # to read there, and to write
    assert "\x1b" not in done.stdout  # it is no terminal
    assert list(tmp_path.iterdir()) == []


def test_a_demo_without_rows_fails() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout
    assert done.stderr.splitlines()[-1].startswith("tubemq-spark demo: no rows came out of Spark")


@pytest.mark.parametrize("printed", ["An embedded TubeMQ listens", "Spark"], ids=["starts", "reads"])
def test_an_interrupted_demo_says_so_in_one_line(printed: str) -> None:
    with subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            printed_until(process, printed)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, "tubemq-spark: interrupted\n")
    assert "came out" not in rest


def test_an_interrupt_during_the_imports_is_told_too() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tubemq-spark: interrupted\n")


@pytest.mark.parametrize(
    ("name", "requirement"),
    [("rich", "rich>=13.7"), ("pyspark", "pyspark>=4.0,<4.4")],
)
def test_a_missing_package_is_asked_for(name: str, requirement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install '{requirement}'" in done.stderr
    assert f'"{requirement}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        pytest.param(None, "none was found", id="none"),
        pytest.param("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is 11", id="old"),
        pytest.param("echo 'java version \"1.8.0_292\"' >&2", "is 8", id="very-old"),
        pytest.param("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "none was found", id="placeholder"),
    ],
)
def test_a_missing_java_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, told: str
) -> None:
    if script is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Java 17 or later" in done.stderr
    assert told in done.stderr
