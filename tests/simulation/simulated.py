# SPDX-License-Identifier: Apache-2.0
"""Puts the simulated machine in the place of the real one, for a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.simulation import connector, machine, servers
from tests.simulation.world import Killed


@contextmanager
def simulated() -> Iterator[None]:
    """Let this process play schedules. Nothing else of the connector works in this process meanwhile."""
    with ExitStack() as stack:
        for owner, name, value in [*machine.replacements(), *connector.replacements(), *servers.replacements()]:
            assert hasattr(owner, name), f"the product has no seam {owner}.{name}"
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mock.patch.object(sys, "unraisablehook", _show_unless_killed))
        yield


def _show_unless_killed(error: Any) -> None:
    """A generator of a killed process that is garbage may do nothing more."""
    if not isinstance(error.exc_value, Killed):
        sys.__unraisablehook__(error)
