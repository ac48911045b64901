"""Counts the messages of held partitions between their group's position and the end of their stores.

The cursor of a held partition is at the group's position, so a fetch needs no seek. A roll-back in the same write puts
the cursor back and returns the end of the store. The group's position does not change.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tubemq_spark.client.consumer.broker_requests import Exchange
from tubemq_spark.client.consumer.probe import Prober, write_batches
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)


class MessageCount(NamedTuple):
    """One fetch returned so many `messages`; the store ended at `end` afterwards."""

    messages: int
    end: int


def count_messages(prober: Prober, partitions: Sequence[Partition]) -> dict[Partition, MessageCount]:
    """Return how many messages one fetch of each partition finds.

    A partition is left out if its broker gives an unusual answer (`DriverClaims.refresh` handles that), or if its store
    has more messages by now than the prober's claims know of.
    """
    counts: dict[Partition, MessageCount] = {}
    for batch in write_batches(partitions):
        grown = {one.store for one, count in counts.items() if count.end != prober.claims.position(one).end}
        requests = {
            partition: [prober.fetch(partition, escape=True), prober.roll_back(partition)]
            for partition in batch
            if partition.store not in grown
        }
        for partition, exchanges in prober.exchange(requests).items():
            try:
                count = _count(exchanges, prober.claims.position(partition).group)
            except TransportError as error:
                _log.info("%s", error)
                prober.claims.mark_doubtful(partition)  # the fetch may still be running
                continue
            if count is not None:
                counts[partition] = count
    return counts


def _count(exchanges: Sequence[Exchange], group: int) -> MessageCount | None:
    """Return None if the fetch did not begin at the group's position, or read nothing."""
    (fetched, fetch_outcome), (rolled_back, outcome) = exchanges
    fetch = unwrap_reply(fetch_outcome, broker_pb.GetMessageResponseB2C, fetched.what)
    back = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, rolled_back.what)
    if back.errCode != ErrCode.SUCCESS:
        return None
    if fetch.errCode == ErrCode.NOT_FOUND:
        return MessageCount(0, back.maxOffset)
    if fetch.errCode == ErrCode.SUCCESS and fetch.currOffset == group:
        return MessageCount(len(fetch.messages), back.maxOffset)
    return None
