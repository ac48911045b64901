"""Python's garbage collector while a task writes.

Each row makes a few objects that live until its message is acknowledged. The collector looks for cycles after each 700
objects that are new (2000 since Python 3.13), and after some of these looks it goes through all objects of the process.
That took a fifth of a task's processor time. A row's objects form no cycles, so few looks are enough.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARE = 10_000  # objects; messages on their way are fewer as a rule, so that hardly any look is due

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] | None = None  # what `_users` changed


@contextmanager
def rare_collections() -> Iterator[None]:
    """The collector looks after `RARE` new objects meanwhile, and as before at the end.

    The setting is the process's. A higher one and a collector that is off stay as they are. Whoever else changes it
    meanwhile has the last word. Tasks may overlap in threads of one process.
    """
    global _users
    with _lock:
        if not _users:
            _begin()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _end()


def _begin() -> None:
    global _before
    young, middle, old = gc.get_threshold()
    if 0 < young < RARE:
        _before = young, middle, old
        gc.set_threshold(RARE, middle, old)


def _end() -> None:
    global _before
    if _before is not None and gc.get_threshold() == (RARE, *_before[1:]):
        gc.set_threshold(*_before)
    _before = None
