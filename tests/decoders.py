# SPDX-License-Identifier: Apache-2.0
"""The ways of decoding replies: in Python, and compiled where `tubemq-spark-speedups` is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from tubemq_spark.protocol import speedups

WAYS: dict[str, ModuleType | None] = {"python": None}
if speedups.compiled is not None:
    WAYS["compiled"] = speedups.compiled


@contextmanager
def decoding(way: str) -> Iterator[None]:
    """Decode in this way. Skip the test if it is not installed; with `CI=true` the test fails then."""
    if way not in WAYS:
        text = f"the compiled decoders are {speedups.state}; install Rust, and run `make speedups`"
        if os.environ.get("CI") == "true":
            raise AssertionError(text)
        pytest.skip(text)
    before, speedups.compiled = speedups.compiled, WAYS[way]
    try:
        yield
    finally:
        speedups.compiled = before
