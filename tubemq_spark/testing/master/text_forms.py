# SPDX-License-Identifier: Apache-2.0
"""Text forms that only a master writes or reads; `protocol.metadata` has those that a client reads or writes.

held partitions (V2)        topic#brokerId:partitionId,…
a member's claim            clientId@group#brokerId:host:port#topic:partitionId     (wire: SubscribeInfo)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import BROKER_PORT
from tubemq_spark.protocol.metadata import Address, Broker, Partition, TopicOnBroker, parse_number, partition_info


def format_broker(broker: Broker, default_port: int = BROKER_PORT) -> str:
    """Return the text form. The port is blank if it is the reader's default."""
    port = " " if broker.address.port == default_port else str(broker.address.port)
    return f"{broker.broker_id}:{broker.address.host}:{port}"


def format_producer_topic(layouts: Sequence[TopicOnBroker], *, with_size: bool) -> str:
    """Return the text form of one topic's `layouts`, at least one. From release 1.4 on it has the size, maybe empty."""
    parts = ",".join(f"{layout.broker_id}:{layout.partitions}:{layout.stores}" for layout in layouts)
    size = layouts[0].max_message_size
    return f"{layouts[0].topic}#{parts}" + (f"#{'' if size is None else size}" if with_size else "")


def format_consumer_topic(layouts: Sequence[TopicOnBroker]) -> str:
    """Return the text form of one topic's `layouts`, at least one."""
    parts = ",".join(f"{one.broker_id}:{one.stores}:{one.partitions}:{int(one.available)}" for one in layouts)
    return f"{layouts[0].topic}#{parts}"


def parse_held_partitions(text: str) -> list[Partition]:
    """Return the partitions in `topic#brokerId:partitionId,…` of a V2 report."""
    topic, hash_, rest = text.partition("#")
    found = []
    for item in rest.partition("#")[0].rstrip(",").split(","):
        broker_id, colon, partition_id = item.partition(":")
        if not hash_ or not colon:
            raise ProtocolError(f"'{shown(text)}' is not topic#brokerId:partitionId,…")
        number = parse_number(partition_id.partition(":")[0], text)
        found.append(Partition(parse_number(broker_id, text), topic, number))
    return found


class SubscribeInfo(NamedTuple):
    """A partition of one member of a group, in the assignments of server-side balance (rebalance)."""

    client_id: str
    group: str
    broker: Broker
    partition: Partition

    def __str__(self) -> str:
        return f"{self.client_id}@{self.group}#{partition_info(self.broker, self.partition)}"


def parse_subscribe_info(text: str) -> SubscribeInfo:
    try:
        member, at, claim, *_ = text.split("#")
        client_id, group, *_ = member.split("@")
        broker_id, host, port, *_ = at.split(":")
        topic, partition_id, *_ = claim.split(":")
    except ValueError:
        raise ProtocolError(f"'{shown(text)}' is not clientId@group#brokerId:host:port#topic:partitionId") from None
    broker = Broker(parse_number(broker_id, text), Address(host, parse_number(port, text)))
    return SubscribeInfo(client_id, group, broker, Partition(broker.broker_id, topic, parse_number(partition_id, text)))
