# SPDX-License-Identifier: Apache-2.0
"""Shrink a failing history."""

from __future__ import annotations

from collections.abc import Callable

from tests.histories.script import Event, History


def shrink(history: History, fails: Callable[[History], bool], tries: int = 150) -> History:
    """Return the shortest history found that still `fails`. Remove halves of its events first, then smaller parts."""
    size = max(1, len(history.events) // 2)
    while tries > 0:
        smaller = False
        for begin in range(0, len(history.events), size):
            candidate = history.with_events(_without(history.events, begin, begin + size))
            if not candidate.events or tries <= 0:
                continue
            tries -= 1
            if fails(candidate):
                history, smaller = candidate, True
                break
        if not smaller:
            if size == 1:
                break
            size //= 2
        size = max(1, min(size, len(history.events) // 2))
    return history


def _without(events: tuple[Event, ...], begin: int, end: int) -> tuple[Event, ...]:
    return events[:begin] + events[end:]
