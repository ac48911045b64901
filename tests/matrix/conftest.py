# SPDX-License-Identifier: Apache-2.0
"""Tests for every release of Spark. They use only the installed package, pyspark and pytest.

`make matrix` runs them in environments of their own (noxfile.py).
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
from tests.matrix.pipeline import CONNECT, HAS_READ_LIMITS, Pipeline
from tubemq_spark.testing import EmbeddedTubeMQ


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip this folder in a run of all tests, which has another Spark session."""
    ours = config.inipath is not None and config.inipath.parent == Path(__file__).parent
    return None if ours else True


def pytest_configure(config: pytest.Config) -> None:
    if not HAS_READ_LIMITS:  # before 4.2 Spark leaves some sockets to the garbage collector
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


def pytest_report_header() -> str:
    return f"pyspark {pyspark.__version__}{' with Connect' if CONNECT else ''}, {tubemq_spark.__file__}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    assert Path(tubemq_spark.__file__).is_relative_to(sys.prefix), "not the installed package"
    builder = local_connect() if CONNECT else SparkSession.builder.master("local[2]")
    with warnings.catch_warnings():
        # Connect starts its server with all of these, and then warns that some cannot be changed.
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


def local_connect() -> SparkSession.Builder:
    """Let Connect's server choose a free port: several environments run at the same time."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    def port_of_the_server() -> int:
        """Ask the server, which is in this process's JVM."""
        session = SparkSession._instantiatedSession
        assert session is not None
        service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port: int = getattr(service, "MODULE$").localPort()
        return port

    DefaultChannelBuilder.default_port = staticmethod(port_of_the_server)  # type: ignore[method-assign]
    return SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.port", "0")


@pytest.fixture
def pipe(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(spark, tubemq, tmp_path)
    yield made
    made.stop()
