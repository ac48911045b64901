# SPDX-License-Identifier: Apache-2.0
"""How messages become rows: what the driver sends to the tasks. `RowMaker` makes the rows, on executors only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timezone, tzinfo

from tubemq_spark.protocol.message import Attributes

MAX_UNPACKED = 64 << 20
"""Maximum size of a body or pack after decompression, in bytes; the default of option `maxUnpackedBytes`."""
ROWS = 10_000  # of one Arrow batch, approximately
BYTES = 4 << 20  # of its bodies and attributes, approximately
GATHERED = 4 << 20  # bytes of payloads that make one batch
ATTRIBUTE_OBJECT_BYTES = 200  # of an attribute as Python objects

KEPT = Attributes()
"""Replaces the attributes of a message that cannot be decoded and is kept as it is; it is compared by identity."""


@dataclass(frozen=True)
class RowFormat:
    """How messages become rows: plain values."""

    zone: tzinfo = timezone.utc  # of the producers' `$msgTime$`
    corrupt: str = "fail"  # the value of option `corruptMessages`
    msg_types: Mapping[str, frozenset[str]] = field(default_factory=dict)  # wanted ones by topic; all without an entry
    message_format: str = "raw"
    max_unpacked: int = MAX_UNPACKED
    default_format: str = "inlongmsg"  # of a message whose attributes do not say it, in format `inlong`
    columns: tuple[str, ...] | None = None  # only these, in this order; None for all
