"""Stamps: attributes of a message that tell which row of which query it is.

    spark_id=<query or write>,spark_batch=<n>,spark_partition=<n>,spark_row=<n>[,spark_digest=<16 hex digits>]

They stand behind the row's own attributes, in this order and without gaps. The first four name a row; a task that is
tried again gives its rows the same names. The digest tells whether the row still has the same content.
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
"""Names that a row's own attributes must not have."""

DIGEST_DIGITS = 16

_MARK = f"{ID_KEY}=".encode()
_NUMBER = "(-?[0-9]{1,18})"
# Behind a comma or at the very beginning a name is a whole one, for no value has a comma.
_STAMP = re.compile(
    f"(?:^|,){ID_KEY}=([^,=]+),{BATCH_KEY}={_NUMBER},{PARTITION_KEY}={_NUMBER},{ROW_KEY}={_NUMBER}"
    f"(?:,{DIGEST_KEY}=([0-9a-f]{{{DIGEST_DIGITS}}}))?(?![^,])".encode()
)


class Origin(NamedTuple):
    """Where rows come from: a query (or the write of a batch job), one of its batches, a task of that."""

    id: str
    batch: int
    partition: int


class Stamp(NamedTuple):
    """`row` counts the rows of its origin from 0; `digest` is None where the stamp has none."""

    origin: Origin
    row: int
    digest: str | None


def encode(origin: Origin) -> bytes:
    """The beginning of all stamps of `origin`; the row's number comes next, as decimal digits, and then, if wanted,
    `,spark_digest=` and 16 digits of 0-9 and a-f. `ValueError` for an id that is empty or has a comma or `=`."""
    if not origin.id or "," in origin.id or "=" in origin.id:
        raise ValueError(f"{origin.id!r} cannot stand in a stamp")
    return (f"{ID_KEY}={origin.id},{BATCH_KEY}={origin.batch},{PARTITION_KEY}={origin.partition},{ROW_KEY}=").encode()


def parse(attributes: bytes) -> Stamp | None:
    """The stamp among a message's attributes, None without a whole one."""
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
