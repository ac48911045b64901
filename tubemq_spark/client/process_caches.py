# SPDX-License-Identifier: Apache-2.0
"""The caches that a process keeps across tasks: what empties them after a fork, and at the end of a test."""

from __future__ import annotations

import os
from collections.abc import Callable

_closers: list[Callable[[], None]] = []


def empty_after_fork(empty: Callable[[], None]) -> None:
    """Call `empty` in each forked child: sockets, threads, locks and sessions belong to the parent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=empty)


def close_with_servers(close: Callable[[], None]) -> None:
    """Let `forget_servers` call `close`."""
    _closers.append(close)


def close_all() -> None:
    """Close all caches. A cache is closed before those that its module imports: sessions before connections."""
    for close in reversed(_closers):
        close()
