# SPDX-License-Identifier: Apache-2.0
"""Sizes of the messages from a position on, sampled with one fetch. The driver limits micro-batches by bytes with them.

The index has one entry of 28 bytes for a message of any size, and no request tells where a byte of the data file is. A
fetch tells two things: the messages that it returns, and how many bytes of the data file lie behind them (wire:
`currDataDlt`). Each message takes 52 bytes there besides its payload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from tubemq_spark.client.consumer.broker_requests import unwrap_seek
from tubemq_spark.client.consumer.probe import Prober, write_batches
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb

_log = logging.getLogger(__name__)

_DATA_HEADER = 52  # bytes of a message in the data file besides its payload


class SizeSample(NamedTuple):
    """The first `messages` of a partition have `payload` bytes together; behind them, `lag` bytes of the store's data
    file follow. The store has `entries` from the position on, those of other partitions included."""

    messages: int
    payload: int
    lag: int
    entries: int

    @property
    def mean(self) -> float | None:
        """The bytes of a message, estimated: the mean of the sample or of what follows, whichever is greater. None if
        the sample tells nothing."""
        means = []
        if self.messages:
            means.append(self.payload / self.messages)
        following = self.entries - self.messages
        if self.lag > 0 and following > 0:
            means.append(max(1.0, self.lag / following - _DATA_HEADER))
        return max(means, default=None)


def sample_sizes(prober: Prober, places: Mapping[Partition, int]) -> dict[Partition, SizeSample]:
    """Return a sample of each partition from its position on; the prober's claims must hold it. The group stays where
    it is. A partition is left out if its broker gives no clear answer.

    A claim that was lost is taken again. Raises as `Prober.probe`.
    """
    samples: dict[Partition, SizeSample] = {}
    lost: list[Partition] = []
    for batch in write_batches(list(places)):
        requests = {
            partition: [
                prober.seek(partition, places[partition]),
                prober.fetch(partition, escape=True),
                prober.seek_back(partition),
            ]
            for partition in batch
        }
        for partition, (seek, fetch, back) in prober.exchange(requests).items():
            try:
                unwrap_seek(back)
                at = unwrap_seek(seek)
                reply = unwrap_reply(fetch[1], pb.GetMessageResponseB2C, fetch[0].what)
            except TransportError as error:
                _log.info("%s", error)
                prober.claims.mark_doubtful(partition)  # the fetch may still be running
                lost.append(partition)
                continue
            if reply.errCode == ErrCode.SUCCESS:
                payload = sum(len(message.payLoadData) for message in reply.messages)
                entries = (max(at.maxOffset, reply.maxOffset) - at.currOffset) // UNIT
                samples[partition] = SizeSample(len(reply.messages), payload, reply.currDataDlt, entries)
    if lost:
        prober.claim_again(lost)
    return samples
