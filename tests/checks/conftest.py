# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of checks: the ground to plant faults in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.checks.planted import Ground
from tubemq_spark.client import forget_servers


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with ExitStack() as stack:
        yield Ground(
            tmp_path,
            monkeypatch,
            stack,
            lambda: request.getfixturevalue("authority"),  # only tests of TLS need openssl
            lambda: request.getfixturevalue("other_authority"),
        )
    forget_servers()
