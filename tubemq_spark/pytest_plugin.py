"""pytest finds this by itself, and with it the fixture `tubemq`.

It is imported in every run of pytest where the package is installed, so it imports nothing that costs time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """A TubeMQ with one broker for this test alone: `tubemq.create_topic("demo")`, `tubemq.master`."""
    from tubemq_spark.testing import EmbeddedTubeMQ

    with EmbeddedTubeMQ() as cluster:
        yield cluster
        _say_goodbye()


def _say_goodbye() -> None:
    """Ends what the client keeps for the next use, while there is a server to hear it: idle connections and producers.

    Without this they would send heartbeats to nobody for minutes.
    """
    if "tubemq_spark.client.sessions" in sys.modules:
        from tubemq_spark.client.sessions import SESSIONS

        SESSIONS.close()
    if "tubemq_spark.client.pool" in sys.modules:
        from tubemq_spark.client.pool import POOL

        POOL.close()
