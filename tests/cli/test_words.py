# SPDX-License-Identifier: Apache-2.0
"""Texts for users of commands: they name flags, not the options of Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tubemq_spark.cli.words import of_commands
from tubemq_spark.testing import EmbeddedTubeMQ

PACKAGE = Path(__file__).parents[2] / "tubemq_spark"
# Texts that no command can print: of streams and of the sink.
OF_QUERIES = {"client/consumer/loss_policy.py", "client/admin_api.py"}
OPTION = re.compile(r"options? '|'tubemq\.|tubemq\.[a-z]+[A-Z.]")


def texts(file: Path) -> Iterator[str]:
    """Yield the texts of a module that name an option; `x` stands for what differs."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text and OPTION.search(text):
            yield text.replace("option 'x'", "option 'tubemq.x'")


FOUND = [
    (name, text)
    for folder in ("client", "protocol", "cli")
    for file in sorted((PACKAGE / folder).rglob("*.py"))
    if (name := str(file.relative_to(PACKAGE))) not in OF_QUERIES and "/pb/" not in name
    for text in texts(file)
    if name != "client/settings.py" or "option '" in text  # where the meanings of options are, too
    if name not in ("cli/words.py", "cli/doctor.py", "cli/broker.py")  # the last one prints a program for Spark
]


@pytest.mark.parametrize(("name", "text"), FOUND, ids=lambda value: value[:60])
def test_no_text_of_the_client_names_an_option_of_spark(name: str, text: str) -> None:
    assert not OPTION.search(of_commands(text)), f"{name}: {of_commands(text)}"


def test_texts_are_found() -> None:
    assert len(FOUND) > 30


def test_names_of_hosts_stay() -> None:
    text = "cannot connect to tubemq.example.com:8715, which option 'tubemq.master' names as 'tubemq.example.com'"
    assert of_commands(text) == text.replace("option 'tubemq.master'", "--master")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--master", "127.0.0.1:1"], "Connection refused. Check --master and that the master runs there"),
        (["--master", "127.0.0.1:x"], "--master is '127.0.0.1:x'; expected host:port[,host:port…] ('x' is not a port)"),
        (["-X", "usr=alice"], "-X usr is unknown; did you mean -X user?"),
        (["-X", "user=alice"], "-X user needs -X password or -X passwordFile beside it"),
        (["-X", "rpc.timeoutMs=abc"], "-X rpc.timeoutMs is 'abc'; expected milliseconds"),
        (["-X", "tls.ca=/x"], "-X tls.ca needs TLS: set -X tls.enabled to true, or remove it"),
        (["--master", "web"], "cannot connect to web:8715"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_connections_are_told_in_flags(
    own_tubemq: EmbeddedTubeMQ, run: Run, arguments: list[str], said: str
) -> None:
    own_tubemq.send("t", b"a")
    done = run("consume", "t", "-X", "retry.maxElapsedMs=0", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "option" not in done.stderr


def test_a_wrong_variable_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUBEMQ_MASTER", "h:x")
    assert "TUBEMQ_MASTER is 'h:x'" in run("consume", "t").stderr
    assert "--master is 'g:x'" in run("consume", "t", "--master", "g:x").stderr


def test_a_wrong_value_in_a_profile_is_named_as_there(run: Run, tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    for text, said in (
        ('mastr = "one:1"\n', f"the profile {profile}: option 'mastr' is unknown; did you mean 'master'?"),
        ('master = "one:x"\n', f"master in the profile {profile} is 'one:x'"),
        ('master = "one:1"\n[rpc]\ntimeoutMs = 1\n', f"rpc.timeoutMs in the profile {profile} is '1'"),
    ):
        profile.write_text(text)
        assert said in run("consume", "t", "--config", str(profile)).stderr


def test_warnings_are_lines_of_the_command(own_tubemq: EmbeddedTubeMQ, terminal: Terminal) -> None:
    """In a process of their own: here, the tests' own handlers get them."""
    for _ in range(3):
        own_tubemq.send("t", b"a", "1:0")
    done = terminal.run("consume", "t", "--to", "2026-01-01", variables=variables_of(own_tubemq))
    assert done.status == 0
    assert "tubemq-spark: warning: [no-message-times] no message of 1:t:0" in done.text, done.text


def test_an_http_api_that_is_away_is_told_in_flags(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    done = run("topics", "list", "--admin", "127.0.0.1:1")
    assert "Name the addresses of all masters with --admin (webPort in master.ini): host:port,host:port" in done.stderr


def test_doctor_names_flags(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    done = run("doctor", "--topic", "no_such_topic", "--master", "127.0.0.1:1", "-X", "retry.maxElapsedMs=0")
    assert "start the master, or correct the port (1) in --master" in done.stdout
    assert "option '" not in done.stdout
    wrong = run("doctor", "--group", "a.b").stdout
    assert "--group: --group is 'a.b'" in wrong
    assert "tubemq.group" not in wrong


def test_produce_names_the_line_and_no_row(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    done = run("produce", "t", "--type", "a,b", stdin=b"x\n")
    assert "tubemq-spark: the standard input, line 1: msg_type 'a,b' contains" in done.stderr
    done = run("produce", "t", stdin=b"a\n" + b"x" * (2 << 20))
    assert "tubemq-spark: the standard input, line 2: value has 2097152 bytes" in done.stderr, done.stderr
    elsewhere = run("produce", "t", "--partition", "9:9", stdin=b"a")
    assert "topics describe` shows, or leave --partition out" in elsewhere.stderr
    unknown = run("produce", "no_such_topic", "-X", "retry.maxElapsedMs=0")
    assert unknown.stderr.startswith("tubemq-spark: the cluster has no topic no_such_topic")
