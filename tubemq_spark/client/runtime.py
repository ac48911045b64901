# SPDX-License-Identifier: Apache-2.0
"""What a process keeps as long as it lives: connections, sessions, caches, counters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

_declared = itertools.count()


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first needs it, and keeps as long as it lives."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], None] | None = None) -> None:
        """`close` closes what is idle, or forgets what is known about servers. The value can be used afterwards."""
        self._number = next(_declared)
        self._close = close
        self._make = make

    def __call__(self) -> T:
        """Return the value of the current `Runtime`. If threads make it at the same time, all get the same one."""
        values = _current._values
        if self not in values:
            values.setdefault(self, self._make())
        return cast("T", values[self])


class Runtime:
    """All that lives as long as a process: the values of each `PerProcess`. A forked child begins with an empty one,
    because sockets, threads, locks and sessions belong to the parent.
    """

    def __init__(self) -> None:
        self._values: dict[PerProcess[Any], Any] = {}

    def close(self) -> None:
        """Close the values that exist, those that were declared last first: sessions before connections."""
        for one, value in sorted(self._values.items(), key=lambda item: -item[0]._number):
            if one._close is not None:
                one._close(value)


_current = Runtime()


def current() -> Runtime:
    return _current


def enter(runtime: Runtime) -> Runtime:
    """Make `runtime` the current one, for all threads. Return the one before."""
    global _current
    before, _current = _current, runtime
    return before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: enter(Runtime()))
