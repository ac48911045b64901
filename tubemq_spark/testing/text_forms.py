# SPDX-License-Identifier: Apache-2.0
"""Partitions as clients write them in requests; `protocol.metadata` has the forms that a client reads.

The functions raise `RefusalError` for other shapes, as a handler that threw.
"""

from __future__ import annotations

from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing.dispatch import bad_shape
from tubemq_spark.testing.java import parse_long


def parse_partition_info(text: str) -> tuple[Broker, Partition]:
    """Parse `brokerId:host:port#topic:partitionId`."""
    try:
        at, claim = text.split("#")[:2]
        broker_id, host, port = at.split(":")[:3]
        topic, partition_id = claim.split(":")[:2]
        broker = Broker(parse_long(broker_id), Address(host, parse_long(port)))
        return broker, Partition(broker.broker_id, topic, parse_long(partition_id))
    except ValueError as error:
        raise bad_shape() from error


def parse_subscribe_info(text: str) -> tuple[Broker, Partition]:
    """Parse `clientId@group#brokerId:host:port#topic:partitionId` (wire: SubscribeInfo)."""
    member, _, info = text.partition("#")
    if "@" not in member:
        raise bad_shape()
    return parse_partition_info(info)


def parse_held_partitions(text: str) -> list[Partition]:
    """Parse `topic#brokerId:partitionId,…` of a V2 report."""
    try:
        topic, items = text.split("#")[:2]
        pairs = [item.split(":")[:2] for item in items.rstrip(",").split(",")]
        return [Partition(parse_long(broker_id), topic, parse_long(partition_id)) for broker_id, partition_id in pairs]
    except ValueError as error:
        raise bad_shape() from error
