"""Looks at what stands in a partition, to find the messages that an earlier try has stored.

All looks of a query read in one group, so that brokers keep one record of it and not one for each look. Those at the
same partition take turns, by waiting for the claim. Where that group stands means nothing to anybody.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.bookmarks import read_bookmarks
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ProtocolError,
)
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import split_payload
from tubemq_spark.protocol.metadata import Partition

MARGIN = 16_384
"""Index entries. A broker that crashes loses what its stores have in memory, two blocks of 5120 messages by default,
and what was not written to their files yet, and stores other messages there; so looking begins that much earlier."""


_GROUPS = 8


class ScannedMessage(NamedTuple):
    """A message that stands in a partition: the bytes of its attributes (empty without any), the broker's id of it, and
    its position in the index where the partition has its store for itself, else None."""

    attributes: bytes
    message_id: int
    position: int | None


def scan_group(base: str) -> str:
    """The group that looks of this process read in: one of a few, for those in one group wait for each other."""
    return f"{base}_look_{os.getpid() % _GROUPS}"


def entries(since: int, end: int, *, behind: int = MARGIN) -> int:
    """How many index entries, of all partitions of the store, a look from `since` to `end` passes at most. Positions
    are bytes of the index."""
    return max(0, end - _start(since, end, behind)) // UNIT


def scan_partition(
    session: ProducerSession,
    base: str,
    partition: Partition,
    since: int,
    *,
    until: int | None = None,
    behind: int = MARGIN,
    claim: ClaimId | None = None,
    retry_for: float | None = None,
) -> Iterator[ScannedMessage]:
    """All messages of `partition` from `behind` entries before the position `since` up to `until`, by default to the
    present end. Messages whose attributes cannot be told from their bodies are left out. One may come twice, when
    retention takes the beginning at the same time.

    Only a look that ended without an error is whole. `DataLossError` when retention has removed messages behind
    `since`. `PositionMovedError` when the broker lost messages in a crash after some were given out; begin anew, from
    the bookmarks on. `PartitionOccupiedError` when others look at the partition for longer than `retry_for` seconds, by
    default those of the settings, `TransportError` or `ServerError` when the broker stays away or refuses for so long.

    With a `claim` this look takes the partition from older ones of the same `claim.query`, which should hence name a
    task and not a query; without, it takes it from nobody. `FencedError` when a newer one took it from this.
    """
    patience = session.settings.retry_for if retry_for is None else retry_for
    if until is None:
        until = read_bookmarks(session, base, [partition], patience)[partition].end
    claim = claim or ClaimId(f"look-{uuid.uuid4().hex}", run=time.time_ns() // 1_000_000, batch=0, task=0)
    start, end = _start(since, until, behind), until
    is_untouched = True
    while start < end:
        try:
            for batch in _batches(session, base, claim, patience, partition, start, end):
                is_untouched = False
                yield from _seen(batch)
            return
        except DataLossError as loss:
            if since < loss.offered and loss.asked < loss.offered:
                raise _gone(partition, since, loss.offered) from None
            if loss.asked < loss.offered:
                start = loss.offered
            elif is_untouched:  # the end is another one, because of a crash before
                start, end = _start(since, loss.offered, behind), loss.offered
            else:
                raise PositionMovedError(
                    f"{partition}: the broker lost messages while they were looked at, it seems to have crashed: "
                    f"{loss}. Run the task again"
                ) from None


def _start(since: int, end: int, behind: int) -> int:
    """A crash may have left the bookmark behind the end."""
    return max(0, min(since, end) - behind * UNIT)


def _batches(
    session: ProducerSession,
    base: str,
    claim: ClaimId,
    patience: float,
    partition: Partition,
    start: int,
    end: int,
) -> Iterator[FetchedBatch]:
    broker = session.cluster.brokers.get(partition.broker_id)
    if broker is None:
        raise ConfigError(f"the master lists no broker {partition.broker_id}, which has {partition}")
    wanted = RangeToRead(partition, start, end, owns_store=session.cluster.owns_store(partition))
    reader = PartitionReader(
        replace(session.settings, retry_for=patience),
        scan_group(base),
        claim,
        wanted,
        PartitionSnapshot(broker),
        token=session.token,
        claim_timeout=patience,
    )
    try:
        with closing(reader.batches()) as batches:
            yield from batches
    except FencedError:
        raise
    except PartitionOccupiedError as occupied:
        raise PartitionOccupiedError(
            f"{partition} at {broker}: {occupied.holder} looks at the partition for longer than {patience:g} "
            f"s, in group {scan_group(base)}. Where that is another task of this query, raise option "
            "'tubemq.retry.maxElapsedMs'; else stop it, for the group is the query's own",
            holder=occupied.holder,
        ) from None


def _seen(batch: FetchedBatch) -> Iterator[ScannedMessage]:
    messages = cast(list[Any], batch.messages)
    positions = batch.positions if batch.positions is not None else [None] * len(messages)
    for message, position in zip(messages, positions, strict=True):
        try:
            attributes, _ = split_payload(message.payLoadData, message.flag)
        except ProtocolError:
            continue
        yield ScannedMessage(attributes, message.messageId, position)


def _gone(partition: Partition, since: int, offered: int) -> DataLossError:
    return DataLossError(
        f"{partition}: what an earlier try of the batch has stored cannot be told, for retention has removed messages "
        f"in [{since}, {offered})",
        topic=partition.topic,
        broker_id=partition.broker_id,
        partition=partition.partition_id,
        asked=since,
        offered=offered,
    )
