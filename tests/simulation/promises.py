# SPDX-License-Identifier: Apache-2.0
"""What every invariant needs: the error of a breach, and the marks of what the docs excuse.

An invariant is a method that raises `BrokenError` with its name: something that must hold in every schedule, always.
Each sentence of docs/delivery.md names one. It is called when something happens that could break it: a batch is
written, a server executes a request, a query ends, the world has come to rest.

A case in which an invariant does not hold is a function of its own, marked with the sentence of the docs that says so.
test_excuses.py fails if the page does not have the sentence any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

UNIT = 28

_Excuse = TypeVar("_Excuse", bound=Callable[..., Any])


class BrokenError(AssertionError):
    """A schedule broke a promise. `invariant` names it."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Grant(NamedTuple):
    """A sentence of a page in docs that allows an excuse."""

    excuse: str
    page: str
    sentence: str


GRANTS: list[Grant] = []


def granted_by(page: str, sentence: str) -> Callable[[_Excuse], _Excuse]:
    """Mark a function that finds what an invariant does not cover, because `sentence` of docs/`page` says so."""

    def mark(excuse: _Excuse) -> _Excuse:
        GRANTS.append(Grant(excuse.__qualname__, page, sentence))
        return excuse

    return mark
