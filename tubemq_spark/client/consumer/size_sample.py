# SPDX-License-Identifier: Apache-2.0
"""Sizes of the messages from a position on, sampled with one fetch. The driver limits micro-batches by bytes with them.

The index has one entry of 28 bytes for a message of any size, and no request returns where a byte of the data file
is. A fetch returns two things: the messages that it returns, and how many bytes of the data file lie behind them (wire:
`currDataDlt`). Each message takes 52 bytes there besides its payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition

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
        the sample shows nothing."""
        means = []
        if self.messages:
            means.append(self.payload / self.messages)
        following = self.entries - self.messages
        if self.lag > 0 and following > 0:
            means.append(max(1.0, self.lag / following - _DATA_HEADER))
        return max(means, default=None)


def sample_sizes(prober: Prober, places: Mapping[Partition, int]) -> dict[Partition, SizeSample]:
    """Return a sample of each partition from its position on. A partition is left out if its broker gives no clear
    answer. Raise `AuthError`, `ConfigError` or `ServerError` for a permanent refusal.
    """
    samples: dict[Partition, SizeSample] = {}
    for partition, (at, reply) in prober.fetch_once(places).items():
        if reply.errCode == ErrCode.SUCCESS:
            payload = sum(len(message.payLoadData) for message in reply.messages)
            entries = (max(at.maxOffset, reply.maxOffset) - at.currOffset) // UNIT
            samples[partition] = SizeSample(len(reply.messages), payload, reply.currDataDlt, entries)
    return samples
