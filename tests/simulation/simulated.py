# SPDX-License-Identifier: Apache-2.0
"""Puts the simulated machine in the place of the real one, for a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from tests.simulation import connector, machine, servers


@contextmanager
def simulated() -> Iterator[None]:
    """Let this process play schedules. Nothing else of the connector works in this process meanwhile."""
    with ExitStack() as stack:
        for owner, name, value in [*machine.replacements(), *connector.replacements(), *servers.replacements()]:
            assert hasattr(owner, name), f"the product has no seam {owner}.{name}"
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
