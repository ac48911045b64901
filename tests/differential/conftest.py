# SPDX-License-Identifier: Apache-2.0
"""A pair of servers for scripts: a real one, and an embedded one with the same settings."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.differential.servers import Embedded, Real, embedded, real
from tests.real.jars import PUBLISHED, MissingTool


@pytest.fixture(scope="module", params=PUBLISHED)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Real, Embedded]]:
    """Yield new servers, because scripts need topics without flushes by timers, and stores of their own.

    Without Java or Maven the tests are skipped; in CI they fail.
    """
    with ExitStack() as stack:
        try:
            one = stack.enter_context(real(request.param))
        except MissingTool as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        yield one, stack.enter_context(embedded(one.release))


@pytest.fixture
def seed() -> str:
    """Return a fixed seed in CI, a random one elsewhere. A failure shows it; TUBEMQ_TEST_SEED sets it for the same
    scripts again.
    """
    usual = "usual" if os.environ.get("CI") == "true" else secrets.token_hex(4)
    seed = os.environ.get("TUBEMQ_TEST_SEED") or usual
    print(f"TUBEMQ_TEST_SEED={seed}")
    return seed
