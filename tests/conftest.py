# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests: servers, Spark, and a consumer group of the test's own."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tests.certificates import Authority, Certificate
from tests.clocks import SkippingClock, UseTimings
from tests.clusters import Cluster
from tests.clusters.servers import ALL, shared
from tests.decoders import decoding
from tests.real.jars import MissingTool
from tests.spark_home import spark_home
from tests.spark_jvm import quick_start
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer import broker_requests
from tubemq_spark.client.timings import Timings

# Spark's workers must run on this interpreter, whatever `python3` is on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_HOME"] = str(spark_home())

# The replies of tests are small. This process decodes them as columns, too; Spark's workers do as users' do.
broker_requests.COLUMNS_FROM = 0

# Hypothesis tries the same examples every time in CI, random ones elsewhere. A slow machine is not a failure.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis try fewer examples in `make test` than in `make test-all`."""
    if "not thorough" in config.getoption("markexpr"):
        settings.register_profile("quick", parent=settings(), max_examples=40)
        settings.load_profile("quick")


@pytest.fixture(params=["python", "compiled"])
def decoders(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test with each way of decoding replies."""
    with decoding(request.param):
        yield


@pytest.fixture(scope="session")
def _clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Return the shared cluster of a name in `tests.clusters.servers`; it starts when a test first needs it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that all workers of this run have in common
    with ExitStack() as stack:
        started: dict[str, Cluster] = {}

        def give(server: str) -> Cluster:
            if server not in started:
                started[server] = stack.enter_context(shared(server, folder))
            return started[server]

        yield give


@pytest.fixture(scope="session", params=ALL)
def cluster(request: pytest.FixtureRequest, _clusters: Callable[[str], Cluster]) -> Iterator[Cluster]:
    """A cluster that all tests share, so no test may stop its servers. See `tests.clusters.servers.shared`."""
    yield _clusters(request.param)
    forget_servers()


@pytest.fixture
def group() -> str:
    """A consumer group that no other test uses."""
    return f"g_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Without the warnings of earlier tests' producers, whose heartbeats go to servers that are gone."""
    forget_servers()
    return caplog


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Begins with the handlers of a process in the foreground, and restores those of this process at the end."""
    handlers = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_DFL)),
    ]
    yield
    for number, handler in handlers:
        signal.signal(number, handler)


@pytest.fixture
def use_timings(monkeypatch: pytest.MonkeyPatch) -> UseTimings:
    """For settings that are made from options, or in many places of a test; else pass `timings` to the settings."""

    timings = Timings()

    def use(**changes: Any) -> None:
        nonlocal timings
        timings = replace(timings, **changes)
        monkeypatch.setattr("tubemq_spark.client.settings.DEFAULT_TIMINGS", timings)

    return use


@pytest.fixture
def skipping_clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """The clock of all settings that the test makes from now on."""
    clock = SkippingClock()
    monkeypatch.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="session")
def server_cert(authority: Authority) -> Certificate:
    return authority.certify("server")


@pytest.fixture(scope="session")
def client_cert(authority: Authority) -> Certificate:
    return authority.certify("client")


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        java_options = quick_start()
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"Spark needs Java: {error}")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tubemq-spark tests")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
