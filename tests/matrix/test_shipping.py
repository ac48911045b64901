# SPDX-License-Identifier: Apache-2.0
"""`register(spark, ship=True)` with workers that lack the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubemq_spark
from tests.matrix.application import COPIES, expected, fill, run
from tests.matrix.bare_python import bare_python
from tests.matrix.pipeline import CONNECT, Pipeline


@pytest.mark.quick
def test_batch_stream_and_sink(pipe: Pipeline, tmp_path: Path) -> None:
    variables = {"PYSPARK_PYTHON": str(bare_python(tmp_path / "bare"))}
    found, _ = run(tmp_path / "run", fill(pipe.tubemq), variables, ship=True, connect=CONNECT)
    package = [f"{tubemq_spark.__version__} travels from the driver"]
    assert found == expected(counted=not CONNECT, package=package)  # Connect has no accumulators
    assert pipe.bodies("into") == COPIES
