# SPDX-License-Identifier: Apache-2.0
"""Objects that live in a process of their own, so that what they use does not count as the client's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


class _Manager(BaseManager):
    made: Callable[..., Any]


@contextmanager
def in_a_process(kind: Callable[..., object], *arguments: object) -> Iterator[Any]:
    """Yield a proxy of `kind(*arguments)`: its methods run in a new process, which ends with the block."""
    _Manager.register("made", kind)
    with _Manager(ctx=SPAWN) as manager:
        yield manager.made(*arguments)
