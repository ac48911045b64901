"""pytest finds this by itself, and with it the fixture `tubemq`.

It is imported in every run of pytest where the package is installed, so it imports nothing that costs time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spark starts its workers with `python3` otherwise, which may lack the package. A fixture of this plugin would say
    so too late: one that starts Spark for the whole session comes before it.
    """
    if any("tubemq" in getattr(item, "fixturenames", ()) for item in session.items):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """A TubeMQ with one broker for this test alone: `tubemq.create_topic("demo")`, `tubemq.master`."""
    from tubemq_spark.client import forget_servers
    from tubemq_spark.testing import EmbeddedTubeMQ

    with EmbeddedTubeMQ() as cluster:
        yield cluster
        forget_servers()
