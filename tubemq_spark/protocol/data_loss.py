# SPDX-License-Identifier: Apache-2.0
"""Data loss in a partition: its errors, the range that is left to read, and messages that replaced lost ones."""

from __future__ import annotations

from collections.abc import Mapping

from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol.fetched_batch import DeliveredLog
from tubemq_spark.protocol.log_fingerprint import KnownIds
from tubemq_spark.protocol.metadata import Partition


def loss_of(partition: Partition, text: str, *, asked: int, offered: int) -> DataLossError:
    """Return the error for a loss in `partition`. Positions are bytes of the index, see `DataLossError`."""
    broker_id, topic, number = partition
    return DataLossError(text, topic=topic, broker_id=broker_id, partition=number, asked=asked, offered=offered)


def lost_tails(
    reached: Mapping[Partition, int], offered: Mapping[Partition, int], log_ends: Mapping[Partition, int]
) -> dict[Partition, DataLossError]:
    """Return a loss for each partition that goes on, at `offered`, before the position that the query has `reached`."""
    losses: dict[Partition, DataLossError] = {}
    for partition, asked in reached.items():
        at = offered.get(partition, asked)
        if at >= asked:
            continue
        is_short = log_ends[partition] <= at
        found = f"the store ends at {log_ends[partition]}" if is_short else f"the store has other messages from {at} on"
        text = (
            f"{partition}: {found}, but the query has read up to {asked}: the broker lost [{at}, {asked}) after it was "
            "read and uses the positions for other messages, retention removed their data and not yet their index, the "
            "topic was created again, or the checkpoint belongs to another cluster"
        )
        losses[partition] = loss_of(partition, text, asked=asked, offered=at)
    return losses


def remaining_range(start: int, end: int, loss: DataLossError, delivered: DeliveredLog) -> tuple[int, int]:
    """Return the part of [start, end) to read after `loss`: a smaller range, maybe an empty one. Positions are bytes of
    the index.

    A store that lost its tail uses the positions again for messages that came after the range was planned. These do not
    belong to the range. Raise `ProtocolError` if nothing of this range is lost: a reader must not retry then.
    """
    delivered_end = delivered.last.end if delivered.last else start
    if loss.offered > loss.asked:  # retention removed the beginning
        remaining = max(loss.offered, delivered_end), end
    else:
        remaining = delivered_end, min(loss.offered, end)
    if remaining[0] >= remaining[1]:
        return end, end
    if remaining == (start, end):
        raise ProtocolError(f"[{start}, {end}) is whole although it was reported as lost: {loss}")
    return remaining


def may_be_replaced(ids: KnownIds, last: int | None) -> bool:
    """Return True if the last message of a range, with id `last`, may differ from the planned one. None: no message.

    If a broker crashes between the plan of a range and its reading, it may lose a part of the range and use the
    positions again for other messages. These have other ids (see `log_fingerprint`) and belong to a later range.

    A crash loses the end of a store, so only the last message is checked: if any was replaced, it was. This is only a
    suspicion, which a probe of `ids.mark` must prove. Perhaps no fetch returns the last entry, and the fingerprint
    names the message behind it. If its id is not known, the span of ids may be wrong: times of fingerprints may be
    unknown, clocks change, and ids wrap. The last message is near the last fingerprint, so it is rarely suspected. It
    is suspected, too, if neither is known.
    """
    if ids.last is not None:
        return last != ids.last
    return last is not None and (ids.span is None or not ids.span.has(last))


def unverified_error(partition: Partition, start: int, end: int) -> PositionMovedError:
    return PositionMovedError(
        f"{partition}: messages of [{start}, {end}) were lost while it was read, and nothing can prove that "
        "the task has read each of the others once. Run the batch again"
    )


def replaced_error(partition: Partition, start: int, end: int) -> PositionMovedError:
    return PositionMovedError(
        f"{partition}: messages in [{start}, {end}) have other ids than those that stood there when the batch was "
        "planned: the broker probably lost some in a crash and uses their positions again. Start the query again: it "
        "then finds out what was lost"
    )
