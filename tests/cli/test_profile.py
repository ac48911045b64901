# SPDX-License-Identifier: Apache-2.0
"""Connections from the command line, the environment and the profile."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority, Certificate
from tests.cli.conftest import Run
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.main import main
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig, TLSFiles

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a profile and returns its path. No other profile is found by default."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("TUBEMQ_CONFIG", raising=False)

    def write_text(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write_text


def use(connection: Connection) -> None:
    """Let all values be checked."""
    assert connection.settings.masters
    assert connection.admin.masters


def test_a_profile_has_the_options_of_spark(write: Write) -> None:
    path = write(
        'master = "one:1,two"\nuser = "alice"\npassword = "secret"\n'
        '[rpc]\ntimeoutMs = 500\nframing = "prefixed"\n[admin]\naddress = "three:8081"\ntoken = "t"\n'
    )
    found = Connection(config=path)
    assert found.settings == ClientSettings.from_options(
        {
            "tubemq.master": "one:1,two",
            "tubemq.user": "alice",
            "tubemq.password": "secret",
            "tubemq.rpc.timeoutMs": "500",
            "tubemq.rpc.framing": "prefixed",
            "tubemq.retry.maxElapsedMs": "10000",
            "tubemq.admin.address": "three:8081",
        }
    )
    assert found.admin.masters == (Address("three", 8081),)
    assert found.admin.token == "t"
    assert "secret" not in repr(found.settings)
    assert "'t'" not in repr(found)


def test_the_command_line_wins(write: Write) -> None:
    path = write('master = "one:1"\nuser = "alice"\nPassword = "a"\n[admin]\ntoken = "t"\n')
    found = Connection("two:2", path, ["password=b", "tubemq.rpc.timeoutms=700"], "web", "u")
    assert found.settings.masters == (Address("two", 2),)
    assert found.settings.credentials is not None
    assert (found.settings.credentials.user, found.settings.credentials.password) == ("alice", "b")
    assert found.settings.rpc_timeout == 0.7
    assert (found.admin.masters, found.admin.token) == ((Address("web", 8080),), "u")


def test_the_http_api_is_at_port_8080_of_the_masters(write: Write) -> None:
    assert Connection("one:1,two:2").admin.masters == (Address("one", 8080), Address("two", 8080))


def test_a_profile_is_found(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tubemq-spark").mkdir()
    write('master = "one:1"\n').rename(tmp_path / "tubemq-spark" / "config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Connection().settings.masters == (Address("one", 1),)


def test_the_environment_names_a_profile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUBEMQ_CONFIG", "/nowhere/absent.toml")
    done = run("consume", "demo")
    assert (done.returncode, "/nowhere/absent.toml cannot be read" in done.stderr) == (2, True)


class Reader:
    """Runs `consume` with a default profile of this process's user."""

    def __init__(self, capfd: pytest.CaptureFixture[str], tubemq: EmbeddedTubeMQ) -> None:
        self._capfd, self._tubemq = capfd, tubemq

    def __call__(self, *more: str) -> tuple[int, str]:
        status = main(["consume", "demo", "--master", self._tubemq.master, *more])
        return status, self._capfd.readouterr().err


@pytest.fixture
def reader(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, restored_signals: None
) -> Iterator[Reader]:
    for name in ("HOME", "XDG_CONFIG_HOME", "TUBEMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        tubemq.send("demo", b"a")
        yield Reader(capfd, tubemq)


def test_a_user_without_a_home_folder_has_no_profile(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user id that no passwd entry has, in a container."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert reader() == (0, "")
    told = (
        "tubemq-spark: no profile is read, because HOME is not set, and the system knows no home folder of this user\n"
    )
    assert reader("-v") == (0, told)
    assert main(["topics", "list"]) == 2
    with pytest.raises(ConfigError, match=r"no master is named.*; no profile is read, because HOME is not set"):
        use(Connection())
    assert main(["demo"]) == 1  # Spark cannot start
    assert main(["--install-completion", "bash"]) == 1


def test_a_default_profile_that_cannot_be_read_is_left_out(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in the home folder of another user."""
    home = tmp_path / "home"
    profile = home / ".config" / "tubemq-spark" / "config.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('nonsense = "x"\n')
    monkeypatch.setenv("HOME", str(home))
    assert "option 'nonsense' is unknown" in reader()[1]
    with unreadable(home):
        assert reader() == (0, "")
        left_out = f"the profile {profile} is left out, because it cannot be read: Permission denied\n"
        assert reader("-v") == (0, f"tubemq-spark: {left_out}")
        named = reader("--config", str(profile))
        assert named == (2, f"tubemq-spark: the profile {profile} cannot be read: Permission denied. Check --config\n")
        monkeypatch.setenv("TUBEMQ_CONFIG", str(profile))
        assert reader() == named
    monkeypatch.delenv("TUBEMQ_CONFIG")
    profile.write_text('user = "alice"\npassword = "secret"\n')
    profile.chmod(0o600)
    assert reader("--verbose") == (0, f"tubemq-spark: the profile is {profile}\n")
    profile.unlink()
    assert reader("--verbose") == (0, f"tubemq-spark: there is no profile {profile}\n")


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Run the `with` block as a user who may not look into `folder`: the superuser may look everywhere."""
    folder.chmod(0)
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_superuser:
            os.seteuid(0)
        folder.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("master", "not TOML"),
        ('mastr = "one:1"\n', "did you mean 'master'"),
        ('master = "one:1"\n[admin]\ntokn = "t"\n', "[admin] takes address, token, tokenFile only, not tokn"),
        ('master = "one:1"\nadmin = "two:8080"\n', "admin is a table"),
        ('master = ["one:1"]\n', ": master is a list; expected a text"),
        ("[admin]\naddress = 2026-01-01\n", "address is a date; expected a text"),
        ("user = " + "9" * 5000, "not TOML"),
        ("user = 0x" + "f" * 5000, "not TOML"),
        ("a." * 5000 + "b = 1", "not TOML"),
        ('master = "one:1"\nuser = "alice"\npasswordFile = "\\u0000"\n', "passwordFile in the profile"),
        ('master = "one:1"\nuser = "alice"\npasswordFile = "/dev/zero"\n', "its first line is too long"),
        ('master = "one:1"\n[tls]\nenabled = true\nca = "\\u0000"\n', "tls.ca in the profile"),
        ('master = "one:1"\n[tls]\nenabled = true\ncert = "\\u0000"\nkey = "\\u0000"\n', "tls.cert in the profile"),
        ('master = "one:1"\n[admin]\ntokenFile = "\\u0000"\n', "gives no token"),
        ('master = "one:1"\n[admin]\ntokenFile = "/dev/null"\n', "gives no token (its first line is empty)"),
        ('master = "one:1"\nuser = "alice"\npasswordFile = "/dev/null"\n', "password (its first line is empty)"),
        ('user = "alice"\n', "no master is named"),
        ('master = "one:1"\n[tls]\nca = "/x"\n', "config.toml needs TLS: set -X tls.enabled to true"),
    ],
)
def test_a_wrong_profile_is_reported(write: Write, text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(Connection(config=write(text)))
    assert part in str(caught.value)


def test_secrets_that_others_can_read_are_named(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write('master = "one:1"\nuser = "alice"\npassword = "secret"\n')
    secret = tmp_path / "password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    Connection("one:1", None, ["user=alice", f"passwordFile={secret}"])
    Connection(config=path)
    assert capfd.readouterr().err == ""
    for file in (path, secret):
        file.chmod(0o604)
    Connection("one:1", None, ["user=alice", f"passwordFile={secret}"])
    Connection(config=path)
    Connection("one:1", None, ["user=alice", "password=secret"])
    by_file, by_profile, by_argument = capfd.readouterr().err.splitlines()
    path.write_text(path.read_text().replace("password", "PASSWORD"))
    Connection(config=path)
    assert capfd.readouterr().err.rstrip() == by_profile
    assert f"chmod 600 {secret}" in by_file
    assert f"chmod 600 {path}" in by_profile
    assert "can see -X password in its list of processes" in by_argument


def test_a_folder_is_no_password_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"gives no password.*Is a directory"):
        use(Connection("one:1", None, ["user=alice", f"passwordFile={tmp_path}"]))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("assignment", ["user", "=x", "nothing=1"])
def test_a_wrong_assignment_is_reported(assignment: str) -> None:
    with pytest.raises(ConfigError):
        use(Connection("one:1", assignments=[assignment]))


def test_commands_use_credentials_and_tls_of_the_profile(
    write: Write, run: Run, authority: Authority, server_cert: Certificate
) -> None:
    files = TLSFiles(str(server_cert.cert), str(server_cert.key))
    config = ServerConfig(start_produce_authenticate=True, start_consume_authenticate=True)
    with EmbeddedTubeMQ({"demo": 1}, tls=files, config=config) as tubemq:
        path = write(
            f'master = "{tubemq.tls_master}"\nuser = "alice"\npassword = "secret"\n'
            f'[tls]\nenabled = true\nca = "{authority.own.cert}"\nverifyHostname = false\n'
        )
        done = run("produce", "demo", "--config", str(path), stdin=b"a\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert [line["value"] for line in run("consume", "demo", "--config", str(path)).json] == ["a"]
        refused = run("consume", "demo", "--master", tubemq.master)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
        assert "check -X user and -X password" in refused.stderr
