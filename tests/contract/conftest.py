"""What the contract tests share: servers of both framings, and random numbers that can be had again."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator

import pytest

from tests.conftest import start_tubemq
from tests.real.cluster import RealTubeMQ

# Another release, as TUBEMQ_SERVER_JARS names one, speaks its own framing only.
_FRAMINGS = ["standard"] if os.environ.get("TUBEMQ_SERVER_JARS") else ["standard", "prefixed"]


@pytest.fixture(scope="session", params=_FRAMINGS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealTubeMQ]:
    """The shared cluster, and one broker that speaks the other framing. `new_topic` names topics of either."""
    if request.param == "standard":
        yield request.getfixturevalue("tubemq")
    else:
        yield from start_tubemq(brokers=1, framing="prefixed")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Other numbers in each run. A failure shows the seed; TUBEMQ_TEST_SEED sets it, to have the same numbers again."""
    seed = os.environ.get("TUBEMQ_TEST_SEED") or secrets.token_hex(4)
    print(f"TUBEMQ_TEST_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")
