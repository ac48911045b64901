"""pytest finds this by itself, and with it the fixture `tubemq`.

It is imported in every run of pytest where the package is installed, so it imports nothing that costs time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """A TubeMQ with one broker for this test alone: `tubemq.create_topic("demo")`, `tubemq.master`."""
    from tubemq_spark.client import forget_servers
    from tubemq_spark.testing import EmbeddedTubeMQ

    with EmbeddedTubeMQ() as cluster:
        yield cluster
        forget_servers()
