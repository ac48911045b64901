# SPDX-License-Identifier: Apache-2.0
"""Parameters for the servers of a test: `embedded`, `real`, and either with `-prefixed` for the older framing.

Most tests run on the embedded server. Tests that show that both servers behave alike also run on a real one: the
published release 1.2.0, or the one whose jars are in the folder TUBEMQ_SERVER_JARS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.clusters.embedded import embedded_cluster
from tests.clusters.real import RealCluster
from tests.clusters.shared import shared_real_cluster
from tests.real.jars import Framing, MissingTool
from tests.real.topics import TopicSpec
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import ServerConfig

EMBEDDED = pytest.param("embedded", id="embedded")
REAL = pytest.param("real", id="real", marks=pytest.mark.real)
EMBEDDED_THOROUGHLY = pytest.param("embedded", id="embedded", marks=pytest.mark.thorough)
REAL_THOROUGHLY = pytest.param("real", id="real", marks=[pytest.mark.real, pytest.mark.thorough])
BOTH = [EMBEDDED, REAL]
EACH_FRAMING = [*BOTH, pytest.param("embedded-prefixed", id="embedded-prefixed")]
if not os.environ.get("TUBEMQ_SERVER_JARS"):  # another release has its own framing only
    EACH_FRAMING.append(pytest.param("real-prefixed", id="real-prefixed", marks=pytest.mark.real))


@contextmanager
def running(
    server: str,
    *,
    topics: Mapping[str, TopicSpec] | None = None,
    brokers: int = 2,
    claim_timeout: int | None = None,
) -> Iterator[Cluster]:
    """Yield a cluster for a test or module. Without Java or Maven a real one skips the test; on CI it fails.

    The default `topics` are those that `new_topic` returns; `claim_timeout` is in seconds.
    """
    kind, framing = _parsed(server)
    if kind == "embedded":
        config = ServerConfig() if claim_timeout is None else ServerConfig(consumer_reg_timeout=claim_timeout)
        with embedded_cluster(topics=topics, brokers=brokers, framing=framing, config=config) as embedded:
            yield embedded
        return
    with needs_tools():
        cluster = RealCluster(topics=topics, brokers=brokers, framing=framing, claim_timeout=claim_timeout)
    with cluster:
        yield cluster
        forget_servers()


@contextmanager
def shared(server: str, folder: Path) -> Iterator[Cluster]:
    """Yield a cluster whose servers no test may stop. All processes with the same `folder` share the real ones.

    It has two brokers, or one with the prefixed framing.
    """
    kind, framing = _parsed(server)
    brokers = 2 if framing == "standard" else 1
    if kind == "embedded":
        with running(server, brokers=brokers) as embedded:
            yield embedded
        return
    with ExitStack() as stack:
        with needs_tools():
            cluster = stack.enter_context(shared_real_cluster(folder / server, framing, brokers))
        yield cluster
        forget_servers()


def _parsed(server: str) -> tuple[str, Framing]:
    kind, _, prefixed = server.partition("-")
    return kind, "prefixed" if prefixed else "standard"


@contextmanager
def needs_tools() -> Iterator[None]:
    """Skip the test without Java or Maven; on CI it fails."""
    try:
        yield
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a real TubeMQ needs Java and Maven: {error}")
