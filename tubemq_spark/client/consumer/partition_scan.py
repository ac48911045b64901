# SPDX-License-Identifier: Apache-2.0
"""Scans a partition for the messages that an earlier attempt of a sink's batch has stored.

All scans of a query read in a few groups, so that brokers do not keep one record for each scan. A scan that cannot
claim the partition in one group tries the next: a process that was killed keeps its claim until the broker ends it.
Such a group's position has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tubemq_spark.client import system
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.consumer.short_claims import read_ends
from tubemq_spark.client.consumer.working_group import look_group, scan_group
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
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import split_payload
from tubemq_spark.protocol.metadata import Partition

MARGIN = 16_384
"""Index entries that a scan reads before the begin of a batch. A broker that crashes loses what its stores have in
memory (two blocks of 5120 messages by default) or did not write to their files yet, and stores other messages there."""

_GROUPS = 8
_TURN = 1.0  # seconds to wait for the claim in a group before the next one is tried; in the last one for longer


class ScannedMessage(NamedTuple):
    attributes: bytes  # empty without any
    message_id: int
    position: int | None  # in the index; None where other partitions share the store


def scan_groups(base: str) -> list[str]:
    """Return the groups in which scans of this process read, in the order in which they try them."""
    return [scan_group(base, (system.process_id() + n) % _GROUPS) for n in range(_GROUPS)]


def scan_partition(
    session: ProducerSession,
    base: str,
    partition: Partition,
    since: int,
    claim: ClaimId,
    *,
    until: int | None = None,
    retry_for: float | None = None,
) -> Iterator[ScannedMessage]:
    """Yield all messages of `partition` from `MARGIN` entries before the position `since` up to `until`, by default the
    present end.

    Messages with unreadable attributes are left out. A message may come twice if retention removes the beginning at the
    same time, or if the claim is lost. Only a scan that ends without an error is complete.

    In a group, the scan takes the partition over from older claims of the same `claim.query`, which should name a task
    and not a query.

    Raise `DataLossError` if retention has removed messages behind `since`; `PositionMovedError` if the broker lost
    messages in a crash after some were returned: start again; `FencedError` if a newer claim
    took the partition over; `PartitionOccupiedError` if others keep it for longer than `retry_for` seconds (default:
    those of the settings); `TransportError` or `ServerError` if the broker stays away or refuses for so long.
    """
    retry_for = session.settings.retry_for if retry_for is None else retry_for
    if until is None:
        until = read_ends(session, base, [partition], retry_for)[partition]
    start, end = _start(since, until), until
    has_read = False
    while start < end:
        try:
            for batch in _read(session, base, claim, partition, start, end, retry_for):
                has_read = True
                yield from _messages(batch)
            return
        except DataLossError as loss:
            if loss.asked < loss.offered:  # retention removed the beginning
                if since < loss.offered:
                    raise loss_of(
                        partition,
                        f"{partition}: the messages that an earlier attempt of the batch has stored cannot be found, "
                        f"because retention has removed messages in [{since}, {loss.offered})",
                        asked=since,
                        offered=loss.offered,
                    ) from None
                start = loss.offered
            elif has_read:
                raise PositionMovedError(
                    f"{partition}: the broker lost messages during a scan; it seems to have crashed: {loss}. Run the "
                    "task again"
                ) from None
            else:  # a crash before the scan moved the end
                start, end = _start(since, loss.offered), loss.offered


def _start(since: int, end: int) -> int:
    """Return where a scan begins. After a crash `since` may be behind the end."""
    return max(0, min(since, end) - MARGIN * UNIT)


def _read(
    session: ProducerSession, base: str, claim: ClaimId, partition: Partition, start: int, end: int, retry_for: float
) -> Iterator[FetchedBatch]:
    broker = session.known_broker(partition.broker_id)
    if broker is None:
        raise ConfigError(f"the master lists no broker {partition.broker_id}, which has {partition}")
    groups = scan_groups(base)
    turn = min(_TURN, retry_for / len(groups))
    for group in groups:
        reader = PartitionReader(
            replace(session.settings, retry_for=retry_for),
            group,
            claim,
            RangeToRead(partition, start, end, owns_store=session.cluster.owns_store(partition)),
            PartitionSnapshot(broker, look_group(base), session.cluster.store_ids(partition)),
            token=session.token,
            claim_timeout=retry_for - turn * (len(groups) - 1) if group == groups[-1] else turn,
            find_broker=session.current_broker,
        )
        try:
            with closing(reader.batches()) as batches:
                yield from batches
            return
        except FencedError:
            raise
        except PartitionOccupiedError as error:
            occupied = error
    raise PartitionOccupiedError(
        f"{partition} at {broker}: {occupied.holder} and others scan the partition for longer than {retry_for:g} s, in "
        f"the groups {scan_group(base, 0)} to {scan_group(base, _GROUPS - 1)}. If they are other tasks of this query, "
        "raise option 'tubemq.retry.maxElapsedMs'; else stop them, because the groups belong to this query",
        holder=occupied.holder,
    )


def _messages(batch: FetchedBatch) -> Iterator[ScannedMessage]:
    messages = cast(list[Any], batch.messages)
    positions = batch.positions if batch.positions is not None else [None] * len(messages)
    for message, position in zip(messages, positions, strict=True):
        try:
            attributes, _ = split_payload(message.payLoadData, message.flag)
        except ProtocolError:
            continue
        yield ScannedMessage(attributes, message.messageId, position)
