# SPDX-License-Identifier: Apache-2.0
"""What the contract tests share: random numbers that can be had again."""

from __future__ import annotations

import os
import random
import secrets

import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Other numbers in each run. A failure shows the seed; TUBEMQ_TEST_SEED sets it, to have the same numbers again."""
    seed = os.environ.get("TUBEMQ_TEST_SEED") or secrets.token_hex(4)
    print(f"TUBEMQ_TEST_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")
