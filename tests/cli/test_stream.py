# SPDX-License-Identifier: Apache-2.0
"""The local Spark of commands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tubemq_spark.cli import stream
from tubemq_spark.errors import TubeMQError


def test_a_spark_that_does_not_start_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PySpark waits if the JVM cannot write its port, because the disk is full."""
    never = threading.Event()
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: never.wait())
    monkeypatch.setattr(stream, "START_TIMEOUT", 0.05)
    with (
        pytest.raises(TubeMQError, match=r"did not start within 0\.05 s.* has room"),
        stream.local_session(tmp_path),
    ):
        pass
    never.set()


def test_python_processes_that_start_too_late_are_no_fault_of_the_installation() -> None:
    late = PySparkException("org.apache.spark.SparkException: Python worker failed to connect back.")
    told = pytest.raises(TubeMQError, match=r"the query failed: Spark waits 10 s .* try again")
    with told, stream.spark_errors("the query failed"):
        raise late
