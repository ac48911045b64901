# SPDX-License-Identifier: Apache-2.0
"""`register` and `check`: over a source that Spark has found, with two interpreters, and with the package in
`--py-files`. The file is the last one, because the shared session has the registered source afterwards."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyspark
import pytest

import tubemq_spark
from tests.matrix.application import COPIES, COUNT, expected, fill, run
from tests.matrix.pipeline import CONNECT, Pipeline
from tubemq_spark.task_counts import task_counts
from tubemq_spark.testing import EmbeddedTubeMQ

KEEPS = pyspark.__version__.startswith("4.0")
"""Whether this Spark keeps the source that it has found itself."""

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
    fill(tubemq)


def interpreter(folder: Path, name: str, *, start_up: str = "") -> Path:
    """Return a program that runs this Python, and notes in a file of `folder` that it ran."""
    made = folder / name
    made.mkdir()
    (made / "sitecustomize.py").write_text(start_up)
    program = made / "python"
    program.write_text(f'#!/bin/sh\ntouch "{made}/ran"\nPYTHONPATH="{made}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.quick
def test_register_over_a_discovered_source(pipe: Pipeline) -> None:
    assert pipe.batch("from").count() == COUNT
    for _ in range(2):
        tubemq_spark.register(pipe.spark)
        assert pipe.batch("from").count() == COUNT
    pipe.run_to_the_end(pipe.stream("from"), "into")
    assert pipe.bodies("into") == pipe.bodies("from")
    assert (task_counts().get("fetches", 0) > 0) == (not CONNECT and not KEEPS)  # Connect has no accumulators


@pytest.mark.quick
def test_check_finds_nothing_wrong(pipe: Pipeline) -> None:
    results = tubemq_spark.check(pipe.spark, pipe.options("from"))
    assert [result for result in results if result.state == "failed"] == []
    assert {"driver", "executor"} == {result.place.split()[0] for result in results}


@pytest.mark.skipif(CONNECT, reason="with Spark Connect, the server's environment has the variables")
def test_register_with_both_variables(pipe: Pipeline, tmp_path: Path) -> None:
    """Tasks of the registered source run with PYSPARK_PYTHON."""
    driver, workers = interpreter(tmp_path, "driver"), interpreter(tmp_path, "workers")
    variables = {"PYSPARK_PYTHON": str(workers), "PYSPARK_DRIVER_PYTHON": str(driver)}
    found, _ = run(tmp_path, {"tubemq.master": pipe.tubemq.master}, variables, [str(driver)], discover=True)
    assert found == expected(discovered=COUNT, counted=not KEEPS, package=found["package"])
    assert pipe.bodies("into") == COPIES
    assert (workers.parent / "ran").exists()


@pytest.mark.skipif(CONNECT, reason="Spark Connect has no --py-files: its server needs the package")
def test_register_with_py_files(pipe: Pipeline, tmp_path: Path) -> None:
    """Although no interpreter has the package installed."""
    package = tmp_path / "package"
    for name in ("tubemq_spark", "pyspark_tubemq"):
        shutil.copytree(Path(tubemq_spark.__file__).parents[1] / name, package / name)
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", package)
    python = interpreter(tmp_path, "bare", start_up=HIDING)
    home = Path(pyspark.__file__).parent
    submit = [str(home / "bin" / "spark-submit"), "--py-files", archive]
    variables = {"PYSPARK_PYTHON": str(python), "SPARK_HOME": str(home)}
    found, _ = run(tmp_path, {"tubemq.master": pipe.tubemq.master}, variables, submit)
    assert found == expected(package=found["package"])
    assert pipe.bodies("into") == COPIES
