# SPDX-License-Identifier: Apache-2.0
"""The program `tubemq-spark`: its output and its exit status."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from code import InteractiveConsole
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.real.processes import Ports
from tests.spark_jvm import quick_start
from tubemq_spark.checks.versions import SPARK
from tubemq_spark.cli.app import app
from tubemq_spark.protocol.constants import MASTER_PORT
from tubemq_spark.testing import EmbeddedTubeMQ

COMMAND = [sys.executable, "-W", "error", "-m", "tubemq_spark.cli"]
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
INTERRUPTED_AGAIN = """\
import io

class Output(io.TextIOWrapper):
    def write(self, text):
        signal.raise_signal(signal.SIGINT)
        return super().write(text)

    def flush(self):
        signal.raise_signal(signal.SIGTERM)

import signal
import sys
sys.stderr = Output(sys.stderr.buffer, write_through=True)
sys.stdout = Output(sys.stdout.buffer)
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
sys.exit(main({arguments!r}))
"""


def started(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)


@pytest.fixture
def quick_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the Spark of a subprocess start quickly."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", quick_start())


@contextmanager
def broker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running `tubemq-spark broker`, killed when the block ends."""
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
    """Return its lines up to the one that begins with `end`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(end):
            return lines
    raise AssertionError(f"it never printed {end!r}, but {lines}")


ELSEWHERE = "--master 127.0.0.1:1"
NINES = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("no-such-command", "no-such-command"),
        ("--no-such-option", "--no-such-option"),
        ("broker --no-such-option", "--no-such-option"),
        ("broker extra", "extra"),
        ("topics list", "--master"),
        ("broker --port many", "--port"),
        ("broker --port 65536", "--port"),
        ("broker --brokers 0", "--brokers"),
        ("broker --topic :3", "--topic"),
        ("broker --topic demo:0", "--topic"),
        ("broker --topic demo:x", "--topic"),
        ("broker --topic demo:1 --topic demo:2", "--topic"),
        (f"redrive dead --yes {ELSEWHERE} --to a,b", "a,b"),
        (f"broker --topic demo:{NINES}", "--topic"),
        (f"consume t {ELSEWHERE} --from -{NINES}", "--from"),
        (f"consume t {ELSEWHERE} --to {NINES}", "--to"),
        (f"consume t {ELSEWHERE} --partition 1:{NINES}", "--partition"),
        (f"consume t {ELSEWHERE} --count {'9' * 25}", "--count"),
        (f"produce {ELSEWHERE} ''", "''"),
        (f"consume {ELSEWHERE} a,b", "a,b"),
        (f"offsets set {ELSEWHERE} my_group t 1:0=earliest 1:0=latest", "1:t:0 is given twice"),
        ("broker --topic 9lives:1", "9lives"),
        ("broker --release 0.1", "0.1"),
        ("topics --no-such-option", "--no-such-option"),
        ("consume", "TOPIC"),
        ("lag my_group --interval 0", "--interval"),
        ("lag my_group --interval inf", "--interval"),
        ("demo --seconds -1", "--seconds"),
        ("demo --seconds soon", "--seconds"),
        ("demo --seconds nan", "--seconds"),
    ],
    ids=lambda text: text[:60],
)
def test_wrong_usage_is_reported_with_status_2(run: Run, arguments: str, part: str) -> None:
    done = run(*shlex.split(arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert len(done.stderr) < 1000
    assert not re.search("Traceback|internal error", done.stderr)


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == run("--help").stdout.strip()


@pytest.mark.parametrize("command", ["", "consume", "topics", "topics list"])
def test_help_names_the_command_and_ends_with_status_0(run: Run, command: str) -> None:
    done = run(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"tubemq-spark {command}".rstrip() in done.stdout


def test_all_options_have_a_help() -> None:
    def walk(command: Any, path: str) -> Iterator[str]:
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, f"{path} {name}")
        yield from (f"{path} {one.name}" for one in command.params if not getattr(one, "help", None))
        if not command.help:
            yield path

    assert list(walk(typer.main.get_command(app), "tubemq-spark")) == []


def test_help_fits_a_terminal_and_shows_no_types(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def walk(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
        yield path
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, *path, name)

    for command in walk(typer.main.get_command(app)):
        text = run(*command, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert not re.search(r"<[a-z]", text), f"a type stands there in place of a name: {command}"
        for paragraph in re.findall(r"\n\n((?:  [A-Z`].*\n)(?:  \S.*\n)+)(?=\n)", text):
            whole = [line for line in paragraph.splitlines()[:-1] if len(line) < 60]
            assert whole == [], f"it is wrapped twice: {paragraph}"
    assert re.search(r"^ +--json +Print JSON", run("lag", "--help").stdout, re.MULTILINE)
    assert "\nConnection:\n  -m, --master HOST:PORT  The masters" in run("lag", "--help").stdout
    assert "  find     Print the messages that match all conditions, as JSON lines.\n" in run("--help").stdout


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"tubemq-spark {version('tubemq-spark')}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_receive_a_completion_script(shell: str) -> None:
    environment = {**os.environ, "_TUBEMQ_SPARK_COMPLETE": f"source_{shell}"}
    done = subprocess.run([*COMMAND], capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tubemq-spark" in done.stdout


SHELLS = {
    "head": ("consume t | head -1", 0, ""),
    "help and no reader": ("--help | true", 0, ""),
    "a broker and no reader": ("broker --json | true", 0, ""),
    "closed input": ("produce t <&-", 1, "tubemq-spark: the standard input is closed"),
    "a wrong line and no reader": (
        "produce t --from-json < <(echo []) | true",
        1,
        "tubemq-spark: the standard input, line 1: it is not a JSON object",
    ),
    "a line without end": ("produce t /dev/zero", 1, "tubemq-spark: /dev/zero, line 1: it is longer than any message"),
    "a question and no reader": (
        "topics delete t < <(sleep 1; echo y) | true",
        1,
        "tubemq-spark: nothing is changed: the output, which shows the changes, has no reader",
    ),
    "changes and no reader": (
        "offsets reset my_group t --to latest --create --yes | true",
        1,
        "tubemq-spark: nothing is changed: the output, which shows the changes, has no reader",
    ),
    "nobody to ask": (
        "topics delete t <&-",
        2,
        "tubemq-spark: the standard input is closed, so nobody can answer. Use --yes",
    ),
    "a report and no reader": (
        "doctor --topic t | true",
        1,
        "tubemq-spark: the reader of the output has ended before the checks, which may have failed",
    ),
    "an endless profile": ("consume t --config /dev/zero", 2, "tubemq-spark: the profile /dev/zero: it is too long"),
    "closed output": ("consume t >&-", 1, "tubemq-spark: the standard output is closed"),
    "closed errors": ("consume nothing 2>&-", None, ""),
    "a full disk": ("consume t > /dev/full", 1, "tubemq-spark: No space left on device"),
    "a full disk after the work": (
        "offsets reset my_group t --to latest --create --yes --json > /dev/full",
        1,
        "tubemq-spark: created group my_group in 1 partitions\ntubemq-spark: No space left on device",
    ),
    "full standard error": ("consume nothing 2> /dev/full", None, ""),
    "no UTF-8": (
        "produce t --key $'\\xff'",
        2,
        "tubemq-spark: the argument '\\udcff' is not text in the locale's encoding",
    ),
    "an ASCII terminal": ("PYTHONIOENCODING=ascii PYTHONUTF8=0", 0, ""),
}


@pytest.mark.parametrize("case", SHELLS)
def test_no_state_of_the_shell_gives_a_traceback(case: str) -> None:
    arguments, status, error = SHELLS[case]
    with EmbeddedTubeMQ({"t": 1}) as tubemq:
        for number in range(2000):
            tubemq.send("t", f"grün {number}".encode())
        program = f"{sys.executable} -W error -m tubemq_spark.cli {arguments}"
        if case == "an ASCII terminal":
            program = f"{arguments} {sys.executable} -W error -m tubemq_spark.cli consume t --count 1"
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {program}"], capture_output=True, text=True, timeout=300,
            env={**os.environ, **variables_of(tubemq)},
        )  # fmt: skip
    assert done.stderr.strip() == error
    assert (done.returncode in (1, 2)) if status is None else (done.returncode == status)
    if case in ("head", "an ASCII terminal"):
        assert json.loads(done.stdout)["value"] == "grün 0"


def test_nothing_that_a_command_opens_takes_the_place_of_a_closed_stream() -> None:
    """The JVM of `redrive` inherits the three streams, and waited for ever."""
    program = "import os; from tubemq_spark.cli.main import main; main(['--version']); print(os.open('/dev/null', 0))"
    shell = f'{sys.executable} -W error -c "{program}" <&- 2>&-'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout.split()[-1]) > 2


def test_a_warning_without_a_reader_does_not_end_a_command(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.create_topic("t", partitions=1)
    secret = ["--set", "user=alice", "--set", "password=secret"]  # the command warns of them first
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "produce", "t", "--master", tubemq.master, *secret]
    done = subprocess.run(command, input=b"a\n", stdout=subprocess.PIPE, stderr=write, timeout=300)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"stored 1 messages in topic t (1:0 1)\n")


def test_no_temporary_folder_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdtemp(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a']")

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    done = run("demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "tubemq-spark: No usable temporary directory found in ['/a']. Set TMPDIR to a folder where files can be written"
    ]


def test_a_port_in_use_is_reported(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("broker", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(port) in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_broker_prints_its_address_and_stops_on_a_signal(stop: signal.Signals) -> None:
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


def test_a_terminal_shows_the_activity_of_a_broker(terminal: Terminal, run: Run) -> None:
    with closing(Ports()) as ports:
        port = ports.free()
        terminal.begin("broker", "--port", str(port))
        terminal.wait_for(lambda text: "connections: 0  clients that hold partitions: 0" in text)
        assert run("produce", "demo", "--master", f"127.0.0.1:{port}", stdin=b"a\nb\n").returncode == 0
        terminal.wait_for(lambda text: "send_message" in text)
        terminal.wait_for(lambda text: re.search(r"^demo +2 ", text, re.MULTILINE) is not None)
        assert terminal.interrupt().status == 0


def test_the_printed_code_works_in_pyspark(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with broker() as process:
        lines = printed_until(process, "query.stop()")
        *_, end = code = lines[lines.index("query = (") :]
        assert max(map(len, code)) < 80
        names: dict[str, Any] = {"spark": spark}
        shell = InteractiveConsole(names)  # line by line, as a terminal pastes them
        for line in code[:-1]:
            shell.push(line)
        query = names["query"]
        try:
            assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
            shell.push(end)
            assert not query.isActive
        finally:
            query.stop()


def test_a_broker_prints_how_to_start_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # the virtual environment is not active
    with broker() as process:
        lines = printed_until(process, "query = (")
    start = lines.index("pyspark")
    script = Path(sys.executable).parent / "activate"
    activate = [f". {os.path.relpath(script)}"] if script.exists() else []
    assert lines[start - len(activate) : start] == activate
    assert lines[start - len(activate) - 1].endswith("start PySpark there:")  # no `pip install`: it is installed


@pytest.mark.usefixtures("quick_spark")
def test_the_demo_shows_rows_progress_and_lag(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--seconds", "1"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    rows = re.findall(r'^  1:\d+ +\d+  \w+ +[\d-]+ [\d:]+  site=\w+ +\{"sensor": .*\}$', done.stdout, re.MULTILINE)
    batches = re.findall(r"^batch \d+: (\d+) rows in [\d.]+ s, lag \d+$", done.stdout, re.MULTILINE)
    assert len(rows) >= len(batches) >= 1
    assert f"All {sum(map(int, batches))} rows came out, each once." in done.stdout
    assert "lag 0" in done.stdout
    assert f"tubemq-spark broker --port {MASTER_PORT}" in done.stdout
    assert done.stdout.count(f'"tubemq.master", "127.0.0.1:{MASTER_PORT}"') == 2  # for the reader and for the writer
    assert "\x1b" not in done.stdout  # because it is not a terminal
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("quick_spark")
def test_a_demo_without_rows_fails(tmp_path: Path) -> None:
    """In a process of its own, because a demo stops the Spark session of its process."""
    impatient = "from tubemq_spark.cli import demo, main; demo._FIRST_ROWS_TIMEOUT = 0.0; exit(main.main(['demo']))"
    done = subprocess.run([sys.executable, "-c", impatient], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert re.fullmatch(
        r"tubemq-spark: no rows came out of Spark within 0 s, but \d+ were sent", done.stderr.splitlines()[-1]
    )


@pytest.mark.parametrize(
    ("printed", "stop"),
    [
        ("An embedded TubeMQ listens", signal.SIGTERM),
        ("Spark", signal.SIGINT),
    ],
    ids=["starts", "reads"],
)
@pytest.mark.thorough
def test_an_interrupted_demo_prints_one_line_and_leaves_no_folder(
    printed: str, stop: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            printed_until(process, printed)
            process.send_signal(stop)
            rest, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, "tubemq-spark: interrupted\n")
    assert "came out" not in rest
    assert list(tmp_path.iterdir()) == []


def test_interrupts_give_one_line_and_no_traceback() -> None:
    """One during the imports, one when its line is printed, one at the end, which a pipe without a reader may delay."""
    done = started("-c", INTERRUPTED_AGAIN + INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tubemq-spark: interrupted\n")


@pytest.mark.parametrize(
    ("name", "arguments", "requirement"),
    [
        ("rich", ["broker"], "tubemq-spark[cli]"),
        ("typer", ["--help"], "tubemq-spark[cli]"),
        ("numpy", ["doctor"], "tubemq-spark[cli]"),
        ("pyspark", ["demo"], SPARK.requirement),
    ],
)
def test_the_error_names_a_missing_package(name: str, arguments: list[str], requirement: str) -> None:
    done = started("-c", WITHOUT.format(name=name, arguments=arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install '{requirement}'" in done.stderr
    assert name in done.stderr


def test_pyproject_has_the_spark_that_the_error_names() -> None:
    assert f'"{SPARK.requirement}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param(None, "none was found", id="none"),
        pytest.param("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11", id="old"),
        pytest.param("echo 'java version \"1.8.0_292\"' >&2", "is Java 8", id="very-old"),
        pytest.param("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "none was found", id="placeholder"),
    ],
)
def test_the_error_names_a_missing_java(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    if script is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for command in (["demo"], ["redrive", "dead", "--to", "t", "--master", "127.0.0.1:1"]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1
        assert "Java 17 or later" in done.stderr
        assert reason in done.stderr
