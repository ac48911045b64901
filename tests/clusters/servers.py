"""Which servers a test runs on. Its id says so: `embedded`, `real`, and either with `-prefixed` for the older framing.

The many tests run on the embedded server; on a real one those that show that both are the same. The real one is the
published release 1.2.0, or the one whose jars are in the folder that TUBEMQ_SERVER_JARS names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import pytest

from tests.clusters import Cluster
from tests.clusters.embedded import embedded_cluster
from tests.clusters.real import RealCluster
from tests.real.jars import MissingTool
from tests.real.topics import TopicSpec
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import ServerConfig

EMBEDDED = pytest.param("embedded", id="embedded")
REAL = pytest.param("real", id="real", marks=pytest.mark.real)
BOTH = [EMBEDDED, REAL]
EACH_FRAMING = [*BOTH, pytest.param("embedded-prefixed", id="embedded-prefixed")]
if not os.environ.get("TUBEMQ_SERVER_JARS"):  # another release speaks its own framing only
    EACH_FRAMING.append(pytest.param("real-prefixed", id="real-prefixed", marks=pytest.mark.real))


@contextmanager
def running(
    server: str,
    *,
    topics: Mapping[str, TopicSpec] | None = None,
    brokers: int = 2,
    claim_timeout: int | None = None,
) -> Iterator[Cluster]:
    """A cluster for a fixture. Without Java or Maven the tests on a real one are skipped, on CI they fail.

    `topics` are by default those that `new_topic` gives; `claim_timeout` is in seconds.
    """
    kind, _, prefixed = server.partition("-")
    framing: Literal["standard", "prefixed"] = "prefixed" if prefixed else "standard"
    if kind == "embedded":
        config = ServerConfig() if claim_timeout is None else ServerConfig(consumer_reg_timeout=claim_timeout)
        with embedded_cluster(topics=topics, brokers=brokers, framing=framing, config=config) as embedded:
            yield embedded
        return
    try:
        cluster = RealCluster(topics=topics, brokers=brokers, framing=framing, claim_timeout=claim_timeout)
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a real TubeMQ needs Java and Maven: {error}")
    with cluster:
        yield cluster
        forget_servers()
