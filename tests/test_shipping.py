# SPDX-License-Identifier: Apache-2.0
"""What `register(spark, ship=True)` sends, in Python processes that lack the package: without Spark's JVM."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tubemq_spark
from tests.decoders import decoding
from tests.matrix.bare_python import NEEDED, bare_python

ROOT = Path(__file__).parents[1]
OPTIONS = {"tubemq.master": "localhost", "tubemq.group": "readers", "subscribe": "orders"}

# Prints what Spark would get: the pickled class of the source.
DRIVER = """
import base64, sys
from types import SimpleNamespace
from pyspark.serializers import CloudPickleSerializer
sys.path.insert(0, sys.argv[1])
import tubemq_spark
def taken(source):
    print(base64.b64encode(CloudPickleSerializer().dumps(source)).decode())
registry = SimpleNamespace(register=taken)
session = SimpleNamespace(addArtifacts=lambda *_, **__: None, createDataFrame=lambda *_: None, dataSource=registry)
tubemq_spark.register(session, ship=True)
"""

# Does with each class what Spark's processes do, one after the other: as a planner, then as another one, then as a task
# and as a process that commits. Input partitions and commit messages travel by themselves.
WORKER = """
import base64, json, logging, sys, traceback
from pyspark.serializers import CloudPickleSerializer
pickles = CloudPickleSerializer()
again = lambda made: pickles.loads(pickles.dumps(made))
given = json.load(sys.stdin)
found = []
for text in given["classes"]:
    try:
        source = again(pickles.loads(base64.b64decode(text))(options=given["options"]))
        reader = again(source.reader(source.schema()))
        import tubemq_spark
        mark, size = getattr(tubemq_spark, "mark", ""), len(pickles.dumps(reader))
        found.append([tubemq_spark.__version__, type(reader).__name__, mark, size])
    except Exception:
        found.append(traceback.format_exc())
print(json.dumps(found))
"""


def sent_by(package: Path) -> str:
    """Return the class that a driver registers whose package is in a folder."""
    command = [sys.executable, "-c", DRIVER, str(package)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


@pytest.fixture(scope="module")
def sent() -> str:
    return sent_by(ROOT)


def arrived(python: Path, *classes: str, **variables: str) -> tuple[list[Any], str]:
    """Return what a process found with each class, and what it logged."""
    given = json.dumps({"classes": classes, "options": OPTIONS})
    # Not in a folder that has the package
    done = subprocess.run(
        [python, "-c", WORKER], input=given, capture_output=True, text=True, cwd=python.parent, env=variables
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_no_file_is_written(sent: str, tmp_path: Path) -> None:
    """So it does not matter who can write the temporary folder, or that there is none."""
    python = bare_python(tmp_path / "bare")
    for folder in (tmp_path / "temporary", Path("/does/not/exist")):
        (found,), _ = arrived(python, sent, TMPDIR=str(folder), HOME=str(folder), PYTHONDONTWRITEBYTECODE="1")
        assert found[1] == "TubeMQReader"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare"]


def test_code_of_others_is_not_run(sent: str, tmp_path: Path) -> None:
    """Whatever lies in the folders where Python looks for modules."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "tubemq_spark.py").write_text("raise SystemExit('planted')")
    (found,), _ = arrived(bare_python(tmp_path / "bare"), sent, PYTHONPATH=str(tmp_path / "planted"))
    assert found[1] == "TubeMQReader"


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_package_is_named(name: str, sent: str, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare", [one for one in NEEDED if one != name])
    (found,), _ = arrived(python, sent)
    *_, sentence = found.splitlines()
    assert sentence.startswith(f"tubemq_spark.errors.ConfigError: a Python that Spark runs, {python} on ")
    assert f", has no {name}: install '{name}>=" in sentence


@pytest.mark.parametrize("name", ["pyarrow", "numpy"])
def test_an_old_package_is_named(name: str, sent: str, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare", [one for one in NEEDED if one != name], {name: (name, "1.2.3")})
    (found,), _ = arrived(python, sent)
    assert f"has {name} 1.2.3, which is too old: install '{name}>=" in found


def test_another_version_is_not_used_and_logged_once(sent: str, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare", others={"tubemq_spark": ("tubemq-spark", "0.0.9")})
    found, log = arrived(python, sent, sent)
    assert [reader for _, reader, *_ in found] == 2 * ["TubeMQReader"]
    assert log.count("[other-version]") == 1
    assert f"{python} on " in log
    assert "has tubemq-spark 0.0.9 installed; it runs the driver's" in log


def test_two_drivers_have_their_own_version(sent: str, tmp_path: Path) -> None:
    """Also in one process, which Spark Connect could share."""
    other = tmp_path / "other"
    shutil.copytree(ROOT / "tubemq_spark", other / "tubemq_spark")
    with open(other / "tubemq_spark" / "__init__.py", "a", encoding="utf-8") as module:
        module.write("\nmark = 'other'\n")
    changed = sent_by(other)
    found, log = arrived(bare_python(tmp_path / "bare"), sent, changed, sent)
    assert [mark for _, _, mark, *_ in found] == ["", "other", ""]
    assert log == ""


# Prints a reader of a session that ships, and the class of one that does not.
TWO_SESSIONS = f"""
import tubemq_spark
from pyspark.serializers import CloudPickleSerializer
import base64, json, sys
from types import SimpleNamespace
classes = []
spark = SimpleNamespace(addArtifacts=lambda *_, **__: None, createDataFrame=lambda *_: None)
spark.dataSource = SimpleNamespace(register=classes.append)
for ship in (True, False):
    tubemq_spark.register(spark, ship=ship)
source = classes[0](options={OPTIONS})
for sent in source.reader(source.schema()), classes[1]:
    print(base64.b64encode(CloudPickleSerializer().dumps(sent)).decode())
"""

# Gets both, and uses a module that only the class needs.
SHARED_WORKER = """
import base64, sys
from pyspark.serializers import CloudPickleSerializer
reader, source = (CloudPickleSerializer().loads(base64.b64decode(line)) for line in sys.stdin)
import tubemq_spark.sink.writers
print(tubemq_spark.sink.writers.__file__)
print(source.__name__, sys.modules[type(reader).__module__].__spec__.origin)
"""


@pytest.mark.parametrize("version", [tubemq_spark.__version__, "0.0.9"])
def test_a_session_that_ships_shares_a_worker_with_one_that_does_not(version: str, tmp_path: Path) -> None:
    """The worker got only the part that reads. The other part is the installed one, if it is of the same version."""
    sent = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    python = bare_python(tmp_path / "bare", others={"tubemq_spark": ("tubemq-spark", version)})
    (installed,) = (tmp_path / "bare").glob("lib/python*/site-packages/tubemq_spark")
    shutil.copytree(ROOT / "tubemq_spark", installed, dirs_exist_ok=True)
    done = subprocess.run([python, "-c", SHARED_WORKER], input=sent, capture_output=True, text=True, cwd=tmp_path)
    if version == tubemq_spark.__version__:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [str(installed / "sink" / "writers.py"), "TubeMQDataSource the driver"]
    else:
        assert f"another session uses the installed {version}: install {tubemq_spark.__version__}" in done.stderr


def test_what_is_sent_is_small(sent: str, tmp_path: Path) -> None:
    """Spark warns of a stage with more than 1000 KiB. One whose tasks read and write has the class, reader, writer."""
    ((_, _, _, size),), _ = arrived(bare_python(tmp_path / "bare"), sent)
    assert len(base64.b64decode(sent)) + size < 700 * 1024


REFUSING = """
import logging
from types import SimpleNamespace
import tubemq_spark
def refuse(*paths, file):
    assert file and paths[0].endswith("tubemq_spark_speedups.abi3.so")
    raise RuntimeError("not allowed here\\nJVM stacktrace")
spark = SimpleNamespace(addArtifacts=refuse, createDataFrame=lambda *_: None)
spark.dataSource = SimpleNamespace(register=lambda source: print("registered"))
tubemq_spark.register(spark, ship=True)
"""


def test_a_platform_that_takes_no_files_is_logged() -> None:
    with decoding("compiled"):
        done = subprocess.run([sys.executable, "-c", REFUSING], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "registered\n")
    assert (
        "[speedups-not-sent] Spark does not take the compiled decoders along: not allowed here. Processes"
        in done.stderr
    )
