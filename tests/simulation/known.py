# SPDX-License-Identifier: Apache-2.0
"""The open defects: breaches that are counted and printed, and do not fail a run.

An entry goes with the change that mends its defect. `test_stories.py` shows that each one still exists.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Open(NamedTuple):
    invariant: str
    pattern: str
    """A regular expression for the text of the breach."""
    defect: str


KNOWN: tuple[Open, ...] = ()


@lru_cache(maxsize=4096)
def known(invariant: str, text: str) -> Open | None:
    """Return the open defect that a breach shows; None if it is a new one."""
    return next((one for one in KNOWN if one.invariant == invariant and re.search(one.pattern, text)), None)
