# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition that another thread or process fulfils."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], what: str = "what the test waits for", patience: float = 180.0) -> None:
    """Call `is_so` until it returns something true. Fail after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.01)
