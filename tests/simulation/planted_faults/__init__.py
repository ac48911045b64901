# SPDX-License-Identifier: Apache-2.0
"""The planted faults, by family. `planted` plays them."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.planted_faults.reading import READING
from tests.simulation.planted_faults.writing import WRITING

FAULTS = tuple(
    replace(fault, family=family) for family, faults in (("reading", READING), ("writing", WRITING)) for fault in faults
)
