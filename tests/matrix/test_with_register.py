# SPDX-License-Identifier: Apache-2.0
"""`register` and `check`: over a source that Spark has found, with two interpreters, and with the package in
`--py-files`. The file is the last one, because the shared session has the registered source afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

import tubemq_spark
from tests.matrix.pipeline import CONNECT, Pipeline
from tubemq_spark.task_counts import task_counts
from tubemq_spark.testing import EmbeddedTubeMQ

APPLICATION = Path(__file__).with_name("application.py")
COUNT = 20

# Hides an installed package, but not one in an archive.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("tubemq_spark", "pyspark_tubemq"):
            spec = PathFinder.find_spec(name, [folder for folder in sys.path if folder.endswith(".zip")])
            if spec is None:
                raise ModuleNotFoundError("No module named " + name, name=name)
            return spec

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(autouse=True)
def _topics(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.create_topic("from")
    tubemq.create_topic("into")
    for number in range(COUNT):
        tubemq.send("from", b"%d" % number)


def interpreter(folder: Path, name: str, *, start_up: str = "") -> Path:
    """Return a program that runs this Python, and notes in a file of `folder` that it ran."""
    made = folder / name
    made.mkdir()
    (made / "sitecustomize.py").write_text(start_up)
    program = made / "python"
    program.write_text(f'#!/bin/sh\ntouch "{made}/ran"\nPYTHONPATH="{made}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def run(command: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(command, env={**inherited, **variables}, capture_output=True, text=True, timeout=400)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (line,) = found
    return dict(json.loads(line.removeprefix("FOUND ")))


def copied(tubemq: EmbeddedTubeMQ) -> list[bytes]:
    return sorted(message.body for message in tubemq.messages("into"))


@pytest.mark.quick
def test_register_over_a_discovered_source(pipe: Pipeline) -> None:
    assert pipe.batch("from").count() == COUNT
    for _ in range(2):
        tubemq_spark.register(pipe.spark)
        assert pipe.batch("from").count() == COUNT
    pipe.run_to_the_end(pipe.stream("from"), "into")
    assert copied(pipe.tubemq) == sorted(b"%d" % number for number in range(COUNT))
    # Connect has no accumulators, and Spark 4.0 keeps the source that it has found.
    assert (task_counts().get("fetches", 0) > 0) == (not CONNECT and not pyspark.__version__.startswith("4.0"))


@pytest.mark.quick
def test_check_finds_nothing_wrong(pipe: Pipeline) -> None:
    results = tubemq_spark.check(pipe.spark, pipe.options("from"))
    assert [result for result in results if result.state == "failed"] == []
    assert {"driver", "executor"} == {result.place.split()[0] for result in results}


@pytest.mark.skipif(CONNECT, reason="with Spark Connect, the server's environment has the variables")
def test_register_with_both_variables(tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    """Tasks of the registered source run with PYSPARK_PYTHON."""
    driver, workers = interpreter(tmp_path, "driver"), interpreter(tmp_path, "workers")
    found = run(
        [str(driver), str(APPLICATION), tubemq.master, str(tmp_path), "discovered"],
        {"PYSPARK_PYTHON": str(workers), "PYSPARK_DRIVER_PYTHON": str(driver)},
    )
    assert found == {"discovered": COUNT, "batch": COUNT, "problems": []}
    assert copied(tubemq) == sorted(b"%d" % number for number in range(COUNT))
    assert (workers.parent / "ran").exists()


@pytest.mark.skipif(CONNECT, reason="Spark Connect has no --py-files: its server needs the package")
def test_register_with_py_files(tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    """Batch and stream, although no interpreter has the package installed."""
    package = tmp_path / "package"
    for name in ("tubemq_spark", "pyspark_tubemq"):
        shutil.copytree(Path(tubemq_spark.__file__).parents[1] / name, package / name)
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", package)
    python = interpreter(tmp_path, "bare", start_up=HIDING)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    found = run(
        [str(submit), "--py-files", archive, str(APPLICATION), tubemq.master, str(tmp_path)],
        {"PYSPARK_PYTHON": str(python), "SPARK_HOME": str(Path(pyspark.__file__).parent)},
    )
    assert (found["discovered"], found["batch"]) == (-1, COUNT)
    assert copied(tubemq) == sorted(b"%d" % number for number in range(COUNT))
