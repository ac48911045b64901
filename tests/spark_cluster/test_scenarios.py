# SPDX-License-Identifier: Apache-2.0
"""Scenarios of `make cluster`: they notice wrong results, and some run on Spark's `local-cluster` here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real.jars import MissingTool, tool
from tests.spark_cluster.scenarios import SCENARIOS
from tests.spark_cluster.trial import result_in
from tests.spark_home import spark_home
from tests.spark_jvm import quick_start
from tubemq_spark.testing import EmbeddedTubeMQ

BY_NAME = {one.name: one for one in SCENARIOS}
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["copy", "streamJoin"])
def test_local_cluster(name: str, tmp_path: Path) -> None:
    assert problems_of(name, tmp_path) == []


@pytest.mark.thorough
def test_each_row_is_stored_once_if_spark_repeats_a_stage(tmp_path: Path) -> None:
    assert problems_of("repeatedStage", tmp_path) == []


def problems_of(name: str, tmp_path: Path) -> list[str]:
    """Run a scenario on `local-cluster`, where executors are processes of their own, as on a cluster."""
    try:
        tool("java")
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"Spark needs Java: {error}")
    config = {**BY_NAME[name].config, **dict.fromkeys(_JAVA_OPTIONS, quick_start())}
    scenario = replace(BY_NAME[name], count=min(1500, BY_NAME[name].count), config=config)
    with EmbeddedTubeMQ(dict.fromkeys(scenario.topics, 3)) as tubemq:
        for number in range(scenario.count):
            tubemq.send(scenario.input, b"%d" % number, number % 3)
        argument = scenario.write_argument(tmp_path, "local-cluster[2,1,1024]", tubemq.master)
        ran = subprocess.run(
            [sys.executable, "-m", "tests.spark_cluster.application", str(argument)],
            env={**os.environ, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr[-5000:]
        stored = [int(message.body) for message in tubemq.messages(scenario.output)] if scenario.copies else []
    return scenario.problems(result_in(tmp_path), stored)
