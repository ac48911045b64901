"""Lets Python's garbage collector run rarely while a task writes.

Each row makes a few objects that live until its message is acknowledged. The collector runs after each 700 new objects
(2000 since Python 3.13), and some runs visit all objects of the process. That took a fifth of a task's processor time.
A row's objects form no cycles, so few collections are enough.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARE = 10_000  # new objects; fewer messages are usually in flight, so hardly any collection is due

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] | None = None  # the thresholds to restore


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run only after `RARE` new objects, and restore its setting at the end.

    The setting belongs to the process. A higher threshold and a collector that is off stay as they are, and so does a
    setting that somebody else makes meanwhile. Tasks may overlap in threads of one process.
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
