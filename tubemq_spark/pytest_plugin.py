# SPDX-License-Identifier: Apache-2.0
"""pytest plugin with the fixture `tubemq`; pytest finds it when the package is installed.

Every run of pytest imports it, so its slow imports are inside the fixture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from operator import methodcaller
from typing import TYPE_CHECKING

import pytest

from tubemq_spark.errors import TubeMQError

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let Spark start its workers with this interpreter: `python3`, its default, may lack the package.

    A fixture would set this too late, because a session fixture of the user may start Spark before it.
    """
    if any("tubemq" in getattr(item, "fixturenames", ()) for item in session.items):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """An embedded TubeMQ with one broker for this test only: `tubemq.create_topic("demo")`, `tubemq.master`."""
    from tubemq_spark.client import forget_servers
    from tubemq_spark.testing import EmbeddedTubeMQ

    with EmbeddedTubeMQ() as cluster:
        _hide_frames()
        yield cluster
        forget_servers()


def _hide_frames() -> None:
    """Let pytest show the line of the test that an error of this package is about, not the frames inside the package.

    pytest looks for the name in a frame's globals, too. `--full-trace` shows all frames.
    """
    is_ours = methodcaller("errisinstance", TubeMQError)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == __package__:
            vars(module)["__tracebackhide__"] = is_ours
