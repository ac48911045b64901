# SPDX-License-Identifier: Apache-2.0
"""`register(spark, ship=True)` with Spark: workers without the package, with another version of it, without others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tubemq_spark
from tests.certificates import Authority, Certificate
from tests.matrix.application import COPIES, COUNT, expected, fill, run
from tests.matrix.bare_python import NEEDED, bare_python
from tests.real.jars import MissingTool, tool
from tubemq_spark.testing import EmbeddedTubeMQ, TLSFiles


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        tool("java")
    except MissingTool as error:
        pytest.skip(f"Spark needs Java: {error}")


def run_shipped(folder: Path, python: Path, options: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    return run(folder / "run", options, {"PYSPARK_PYTHON": str(python)}, ship=True)


def test_workers_without_the_package_do_all(tmp_path: Path, authority: Authority, server_cert: Certificate) -> None:
    """With TLS files by path, and without a temporary folder."""
    tls = TLSFiles(cert=str(server_cert.cert), key=str(server_cert.key))
    with EmbeddedTubeMQ(tls=tls) as tubemq:
        options = {
            **fill(tubemq),
            "tubemq.master": tubemq.tls_master,
            "tubemq.tls.enabled": "true",
            "tubemq.tls.ca": str(authority.own.cert),
        }
        found, output = run_shipped(tmp_path, bare_python(tmp_path / "bare"), options)
        assert "error" not in found, found["error"]
        copies = Counter(message.body for message in tubemq.messages("into"))
    assert found == expected(package=[f"{tubemq_spark.__version__} travels from the driver"])
    assert "large task binary" not in output  # a warning of Spark for each stage
    assert copies == COPIES


def test_the_version_of_the_driver_wins(tmp_path: Path) -> None:
    """Over an empty package. The log says so: once for reads and once for writes, not for each process."""
    python = bare_python(tmp_path / "other", others={"tubemq_spark": ("tubemq-spark", "0.0.9")})
    with EmbeddedTubeMQ() as tubemq:
        found, output = run_shipped(tmp_path, python, fill(tubemq))
    assert (found["batch"], found["receipts"], found["problems"]) == (COUNT, COUNT, [])
    (package,) = found["package"]
    assert package.startswith(f"{tubemq_spark.__version__} travels from the driver; 0.0.9, which is installed on ")
    lines = [line for line in output.splitlines() if "[other-version]" in line]
    assert 1 <= len(lines) <= 3, lines  # Spark may start one of the two processes again
    assert all("0.0.9" in line and tubemq_spark.__version__ in line for line in lines)


def test_executors_that_lack_a_package_are_named(tmp_path: Path) -> None:
    """Only these: the driver's machine has it."""
    planners = bare_python(tmp_path / "planners")
    tasks = bare_python(tmp_path / "tasks", [name for name in NEEDED if name != "numpy"])
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ncase "$*" in *pyspark.worker*) exec {tasks} "$@" ;; esac\nexec {planners} "$@"\n')
    program.chmod(0o755)
    with EmbeddedTubeMQ() as tubemq:
        found, _ = run_shipped(tmp_path, program, fill(tubemq))
    assert f"a Python that Spark runs, {tasks} on " in found["error"]
    assert "has no numpy: install 'numpy>=1.21.3,<3' there" in found["error"]
