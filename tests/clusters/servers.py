# SPDX-License-Identifier: Apache-2.0
"""Parameters for the servers of a test: `embedded`, `real` (1.2.0), `real-2.4.0`, and `embedded-prefixed` and
`real-prefixed` with the older framing.

Most tests run on the embedded server. Tests that show that all servers behave alike also run on real ones: the
published releases, or instead of them the one whose jars are in the folder TUBEMQ_SERVER_JARS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.clusters import Cluster
from tests.clusters.embedded import embedded_cluster
from tests.clusters.real import RealCluster
from tests.clusters.shared import shared_real_cluster
from tests.real.jars import PUBLISHED, Framing, MissingTool, Release
from tests.real.topics import TopicSpec
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import ServerConfig


def _real(server: str, *marks: pytest.MarkDecorator) -> ParameterSet:
    return pytest.param(server, id=server, marks=[pytest.mark.real, *marks])


_RELEASES = ["real", *(f"real-{release}" for release in PUBLISHED[1:])]
_PREFIXED = [] if os.environ.get("TUBEMQ_SERVER_JARS") else ["real-prefixed"]  # whose release has its own framing

EMBEDDED = pytest.param("embedded", id="embedded")
EMBEDDED_PREFIXED = pytest.param("embedded-prefixed", id="embedded-prefixed")
EMBEDDED_THOROUGHLY = pytest.param("embedded", id="embedded", marks=pytest.mark.thorough)
REAL = [_real(server) for server in _RELEASES]
REAL_THOROUGHLY = [_real(server, pytest.mark.thorough) for server in _RELEASES]
PREFIXED_THOROUGHLY = [_real(server, pytest.mark.thorough) for server in _PREFIXED]
ALL = [EMBEDDED, *REAL]
EACH_FRAMING = [*ALL, EMBEDDED_PREFIXED, *map(_real, _PREFIXED)]


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
    kind, release, framing = _parsed(server)
    if kind == "embedded":
        config = ServerConfig() if claim_timeout is None else ServerConfig(consumer_reg_timeout=claim_timeout)
        with embedded_cluster(topics=topics, brokers=brokers, framing=framing, config=config) as embedded:
            yield embedded
        return
    with needs_tools():
        cluster = RealCluster(
            topics=topics, brokers=brokers, release=release, framing=framing, claim_timeout=claim_timeout
        )
    with cluster:
        yield cluster
        forget_servers()


@contextmanager
def shared(server: str, folder: Path) -> Iterator[Cluster]:
    """Yield a cluster whose servers no test may stop. All processes with the same `folder` share the real ones.

    It has two brokers, or one with the prefixed framing.
    """
    kind, release, framing = _parsed(server)
    brokers = 2 if framing == "standard" else 1
    if kind == "embedded":
        with running(server, brokers=brokers) as embedded:
            yield embedded
        return
    with ExitStack() as stack:
        with needs_tools():
            cluster = stack.enter_context(shared_real_cluster(folder / server, release, framing, brokers))
        yield cluster
        forget_servers()


def _parsed(server: str) -> tuple[str, Release, Framing]:
    kind, _, rest = server.partition("-")
    return kind, "2.4.0" if rest == "2.4.0" else "1.2.0", "prefixed" if rest == "prefixed" else "standard"


@contextmanager
def needs_tools() -> Iterator[None]:
    """Skip the test without Java or Maven; on CI it fails."""
    try:
        yield
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a real TubeMQ needs Java and Maven: {error}")
