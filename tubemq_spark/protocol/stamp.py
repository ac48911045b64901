# SPDX-License-Identifier: Apache-2.0
"""Stamps: attributes of a message that identify its row and its query, for idempotent writes.

    spark_id=<query or write>,spark_batch=<n>,spark_partition=<n>,spark_row=<n>[,spark_digest=<16 hex digits>]

They follow the row's own attributes, in this order and without gaps. The first four identify the row: a retried task
stamps its rows in the same way. The digest shows whether the content of the row is still the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ID_KEY = "spark_id"
BATCH_KEY = "spark_batch"
PARTITION_KEY = "spark_partition"
ROW_KEY = "spark_row"
DIGEST_KEY = "spark_digest"
RESERVED = frozenset({ID_KEY, BATCH_KEY, PARTITION_KEY, ROW_KEY, DIGEST_KEY})
"""Names that the attributes of a row must not have."""

DIGEST_DIGITS = 16  # 64 bits: two of a million different rows have the same digest once in 37 million batches

_MARK = f"{ID_KEY}=".encode()
_NUMBER = "(-?[0-9]{1,18})"
# A name begins at the start or behind a comma, because no value contains a comma.
_STAMP = re.compile(
    f"(?:^|,){ID_KEY}=([^,=]+),{BATCH_KEY}={_NUMBER},{PARTITION_KEY}={_NUMBER},{ROW_KEY}={_NUMBER}"
    f"(?:,{DIGEST_KEY}=([0-9a-f]{{{DIGEST_DIGITS}}}))?(?![^,])".encode()
)


class Origin(NamedTuple):
    """The origin of rows: a query (or the write of a batch job), one of its batches, a task of the batch."""

    id: str
    batch: int
    partition: int


class Stamp(NamedTuple):
    """`row` counts the rows of its origin from 0; `digest` is None if the stamp has none."""

    origin: Origin
    row: int
    digest: str | None


def encode(origin: Origin) -> bytes:
    """Return the prefix of all stamps of `origin`. The row's decimal number follows, and optionally `,spark_digest=`
    and 16 digits of 0-9 and a-f. Raise `ValueError` if the id is empty or contains a comma or `=`.
    """
    if not origin.id or "," in origin.id or "=" in origin.id:
        raise ValueError(f"{origin.id!r} cannot be the id of a stamp")
    return (f"{ID_KEY}={origin.id},{BATCH_KEY}={origin.batch},{PARTITION_KEY}={origin.partition},{ROW_KEY}=").encode()


def parse(attributes: bytes) -> Stamp | None:
    """Return the stamp in a message's attributes, None if there is no complete one."""
    if _MARK not in attributes:
        return None
    found = _STAMP.search(attributes)
    if found is None:
        return None
    name, batch, partition, row, digest = found.groups()
    try:
        origin = Origin(name.decode(), int(batch), int(partition))
    except UnicodeDecodeError:
        return None
    return Stamp(origin, int(row), None if digest is None else digest.decode())
