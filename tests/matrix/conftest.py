"""What must hold on every Spark: these tests use the installed package, pyspark and pytest, and nothing else.

`make matrix` runs them in environments of their own (scripts/matrix.py).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import tubemq_spark
from tests.matrix.trying import CONNECT, HAS_READ_LIMITS, Tried
from tubemq_spark.testing import EmbeddedTubeMQ


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a run of all tests there is another Spark and another way to it."""
    ours = config.inipath is not None and config.inipath.parent == Path(__file__).parent
    return None if ours else True


def pytest_configure(config: pytest.Config) -> None:
    if not HAS_READ_LIMITS:  # before 4.2 Spark leaves it to the garbage collector to close some of its sockets
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


def pytest_report_header() -> str:
    return f"pyspark {pyspark.__version__}{' with Connect' if CONNECT else ''}, {tubemq_spark.__file__}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    assert Path(tubemq_spark.__file__).is_relative_to(sys.prefix), "not the installed package"
    builder = SparkSession.builder.remote("local[2]") if CONNECT else SparkSession.builder.master("local[2]")
    with warnings.catch_warnings():
        # Connect starts its server with all of these, and then complains that some cannot be set any more.
        warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
        session = (
            builder.appName("tubemq-spark matrix")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture
def tried(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> Iterator[Tried]:
    used = Tried(spark, tubemq, tmp_path)
    yield used
    used.stop()
