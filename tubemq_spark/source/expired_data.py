# SPDX-License-Identifier: Apache-2.0
"""Finds messages whose data files retention has removed, and not yet their index files.

Both have segments of their own, so the index lasts longer where messages have more than about 1.5 kB. A broker passes
over the entries without a word (wire: MsgFileStore), so a read from there would miss messages without an error. Later
batches of a stream notice it, because the last message that it has read is gone as well (`truncation_check`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.bound import GROUP
from tubemq_spark.source.input_partition import knows_offsets
from tubemq_spark.source.options import SourceOptions


def without_expired(
    starts: Mapping[Partition, int], options: SourceOptions, session: ConsumerSession, prober: Prober
) -> dict[Partition, int]:
    """Return `starts`, behind expired messages at positions of the user or the group. Report the loss of these to the
    loss policy. Only partitions that own their stores can be checked. Raises as `Prober.extents`."""
    places = options.starting.of(starts)
    asked = {
        one: start
        for one, start in starts.items()
        if (isinstance(places[one], int) or places[one] == GROUP) and knows_offsets(options, session, one)
    }
    losses = _losses(prober, asked) if asked else []
    for loss in losses:
        options.loss_policy.report(loss)
    return {**starts, **{Partition(loss.broker_id, loss.topic, loss.partition): loss.offered for loss in losses}}


def _losses(prober: Prober, asked: Mapping[Partition, int]) -> list[DataLossError]:
    """Return a loss for each partition that has no data at the position that is asked for, nor before it. The latter,
    because a message that no broker delivers looks like one without data."""
    extents = prober.extents(asked)
    starts = {one: start for one, start in asked.items() if extents[one].begin < start}
    found = prober.probe((one, at) for one, start in starts.items() for at in (start, start + UNIT))
    ids = {place: result.first_id for place, result in found.items()}
    expired = {one: ids[one, at] for one, at in starts.items() if ids.get((one, at), -1) == ids.get((one, at + UNIT))}
    losses = []
    for (partition, _), oldest in prober.probe((one, extents[one].begin) for one in expired).items():
        if oldest.first_id is not None and oldest.first_id == expired[partition]:
            start = starts[partition]
            first = _position(prober, partition, start, extents[partition].end, oldest.first_id)
            text = f"{partition}: retention removed the messages in [{start}, {first}), and not yet their index entries"
            losses.append(loss_of(partition, text, asked=start, offered=first))
    return losses


def _position(prober: Prober, partition: Partition, low: int, high: int, first_id: int) -> int:
    """Return the position in [low, high) of the message that comes first from `low` on."""
    while high - low > UNIT:
        middle = low + (high - low) // UNIT // 2 * UNIT
        found = prober.probe([(partition, middle)]).get((partition, middle))
        low, high = (middle, high) if found is not None and found.first_id == first_id else (low, middle)
    return low
