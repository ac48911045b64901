# SPDX-License-Identifier: Apache-2.0
"""Packs of InLong with many rows, as InLong's DataProxy makes them."""

from __future__ import annotations

from tests.inlong_packs import frame, group, header, sized

_VERSION = 1
_ATTRIBUTES = "groupId=bench&streamId=bench&dt=1700000000000"


def pack_of(rows: int, size: int) -> bytes:
    """Return a pack of ``rows`` rows with bodies of ``size`` bytes, of one group and stream."""
    return frame(_VERSION, header(_VERSION, 1) + group(_VERSION, _ATTRIBUTES, sized([b"p" * size] * rows)))
