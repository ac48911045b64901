# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin in a user's project: each test runs pytest on test files in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = "tubemq_spark.pytest_plugin"

USERS_TEST = """
def test_messages_are_there(tubemq):
    tubemq.create_topic("demo", partitions=1)
    tubemq.send("demo", b"hello", attributes={"site": "north"}, msg_type="greeting")
    (message,) = tubemq.messages("demo")
    assert (message.body, message.msg_type, message.attributes) == (b"hello", "greeting", {"site": "north"})
    assert tubemq.group_offset("my_group", "demo", 1, 0) is None
    host, port = tubemq.master.split(":")
    assert host == "127.0.0.1" and int(port) > 0

def test_the_next_one_begins_anew(tubemq):
    assert tubemq.topics == []
"""


def run_pytest(
    folder: Path, *options: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest on all test files in `folder`, with warnings as errors."""
    command = [python, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


def passed(done: subprocess.CompletedProcess[str]) -> int:
    """Return how many tests passed; fail if one did not."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return int(found[1])


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        pytest.param([], {}, id="found"),
        pytest.param(["-p", PLUGIN], {}, id="found-and-named", marks=pytest.mark.thorough),
        pytest.param(["-p", PLUGIN], {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, id="named", marks=pytest.mark.thorough),
    ],
)
def test_the_fixture_is_found(tmp_path: Path, options: list[str], environment: dict[str, str]) -> None:
    (tmp_path / "test_it.py").write_text(USERS_TEST)
    assert passed(run_pytest(tmp_path, *options, **environment)) == 2


def test_only_what_is_used_is_imported(tmp_path: Path) -> None:
    """Nothing slow before the fixture is used, and no client after it."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n"
        "def test_without_it():\n"
        "    ours = {name for name in sys.modules if name.startswith(('tubemq_spark', 'pyspark'))}\n"
        "    cheap = {f'tubemq_spark.{name}' for name in ('default_logging', 'errors', 'peer_text')}\n"
        f"    assert ours == {{'tubemq_spark', *cheap, {PLUGIN!r}}}\n"
        "    assert not {'google.protobuf', 'pyarrow', 'ssl'} & sys.modules.keys()\n\n"
        "def test_with_it(tubemq):\n    pass\n\n"
        "def test_behind_it():\n    assert 'tubemq_spark.client.net.connection' not in sys.modules\n"
    )
    assert passed(run_pytest(tmp_path)) == 3


def test_an_error_shows_the_line_of_the_test_only(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n"
        "def wrong_topic(tubemq):\n    tubemq.send('nowhere', b'')\n\n"
        "def wrong_type(tubemq):\n    tubemq.create_topic('demo')\n    tubemq.send('demo', b'', msg_type=' a')\n\n"
        "def wrong_call(tubemq):\n    tubemq.on('nothing')\n\n"
        "@pytest.mark.parametrize('use', [wrong_topic, wrong_type, wrong_call])\n"
        "def test_it(tubemq, use):\n    use(tubemq)\n"
    )
    text = run_pytest(tmp_path, "--tb=short").stdout
    assert "3 failed" in text
    assert text.count("\nE   tubemq_spark.errors.ConfigError: ") == 3
    assert set(re.findall(r"^(\S+\.py):\d+: in ", text, re.MULTILINE)) == {"test_it.py"}


USES_THE_CLIENT = """
import threading
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.connection import connect
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.testing import EmbeddedTubeMQ

masters = []

def use(cluster):
    cluster.create_topic("demo")
    settings = ClientSettings.from_options({"tubemq.master": cluster.master})
    with SESSIONS().lease(settings) as session:
        forget_servers()
        session.add_topics(["demo"])
    assert "ProducerSession" in repr(SESSIONS()), "it was in use"
    assert cluster.master in repr(POOL())
    masters.extend(settings.masters)

def test_no_heartbeats_go_to_stopped_servers():
    assert (repr(SESSIONS()), repr(POOL())) == ("<ProducerSessions []>", "<ConnectionPool idle: {}>")
    for thread in threading.enumerate():
        if thread.name.endswith(("tubemq", "tubemq-heartbeat")):
            thread.join(30)
            assert not thread.is_alive()

def test_another_release_may_use_the_port_next():
    (address,) = masters
    with EmbeddedTubeMQ(port=address.port, release="1.2") as other:
        connection = connect(address, None, 30.0)
        assert connection.framing is other.framing
        connection.close()
"""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("def test_it(tubemq):\n    use(tubemq)\n", id="fixture"),
        pytest.param(
            "def test_it():\n    with EmbeddedTubeMQ() as tubemq:\n        use(tubemq)\n        forget_servers()\n",
            id="with",
        ),
    ],
)
def test_the_client_forgets_a_stopped_server(tmp_path: Path, first: str) -> None:
    head, tests = USES_THE_CLIENT.split("def test_", 1)
    (tmp_path / "test_it.py").write_text(f"{head}{first}\ndef test_{tests}")
    assert passed(run_pytest(tmp_path)) == 3


@pytest.mark.parametrize(
    ("test", "given", "expected"),
    [
        pytest.param("def test_it(first, tubemq):", {}, sys.executable, id="ours"),
        pytest.param("def test_it(first, tubemq):", {"PYSPARK_PYTHON": "mine"}, "mine", id="the-users-own"),
        pytest.param("def test_it(first):", {}, None, id="not-used"),
    ],
)
def test_spark_workers_use_this_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, given: dict[str, str], expected: str | None
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n\n"
        "@pytest.fixture(scope='session')\ndef first():\n    return os.environ.get('PYSPARK_PYTHON')\n\n"
        f"{test}\n    assert first == {expected!r}\n"
    )
    assert passed(run_pytest(tmp_path, **given)) == 1


@pytest.mark.thorough  # tests/test_architecture.py shows that `testing` imports no pyspark
def test_the_fixture_needs_only_the_wheel_and_pytest(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "dist")
    python = str(tmp_path / "venv" / "bin" / "python")
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")])
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), "pytest"])
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_it.py").write_text(f"{USERS_TEST}\n\ndef test_no_spark():\n{NO_SPARK}")
    assert passed(run_pytest(folder, python=python, PYTHONPATH="")) == 3


NO_SPARK = """
    import importlib.util
    import tubemq_spark
    assert importlib.util.find_spec("pyspark") is None
    assert "site-packages" in tubemq_spark.__file__
"""


def test_the_wheel_contains_packages_and_entry_points(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tubemq_spark", "pyspark_tubemq"}
    assert {"tubemq_spark/py.typed", "tubemq_spark/pytest_plugin.py", "tubemq_spark/testing/cluster.py"} <= names
    assert "tubemq-spark = tubemq_spark.cli.main:main" in entry_points
    assert f"{PLUGIN} = {PLUGIN}" in entry_points


def build_wheel(folder: Path) -> Path:
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)])  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
