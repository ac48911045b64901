# SPDX-License-Identifier: Apache-2.0
"""Send messages to chosen partitions, and return the position and id that the broker gave each."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.clusters import Cluster
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import check_sum, encode_payload
from tubemq_spark.protocol.metadata import Broker, Partition, parse_addresses
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_ROUND = 2000  # messages in flight
_PATIENCE = 120.0  # seconds
_numbers = itertools.count()


@dataclass(frozen=True)
class Sent:
    """A stored message: the position of its index entry, its id, its body."""

    position: int
    message_id: int
    body: bytes


def settings(cluster: Cluster) -> ClientSettings:
    return ClientSettings(masters=parse_addresses(cluster.master), framing=Framing(cluster.framing))


def broker(cluster: Cluster, broker_id: int) -> Broker:
    (address,) = parse_addresses(cluster.broker_address(broker_id))
    return Broker(broker_id, address)


def partitions(cluster: Cluster, topic: str) -> list[Partition]:
    """Return all partitions of a topic, in order."""
    spec = cluster.topics[topic]
    return [
        Partition(broker_id, topic, store * 10_000 + number)
        for broker_id in spec.on(cluster.broker_ids)
        for store in range(spec.stores)
        for number in range(spec.partitions)
    ]


def send(
    cluster: Cluster,
    messages: Iterable[tuple[Partition, bytes]],
    *,
    attributes: bytes = b"",
    flag: int | None = None,
) -> dict[Partition, list[Sent]]:
    """Store messages, and return them in the order of their positions. The broker may change the order between them.

    `flag` 1 without attributes makes an entry that no fetch ever returns.
    """
    stored: dict[Partition, list[Sent]] = defaultdict(list)
    pending = deque(messages)
    deadline = time.monotonic() + _PATIENCE
    while pending:
        part = [pending.popleft() for _ in range(min(_ROUND, len(pending)))]
        calls = [
            send_call(broker(cluster, partition.broker_id), "tests", partition, body, attributes, flag)
            for partition, body in part
        ]
        for (partition, body), outcome in zip(part, send_requests(settings(cluster), calls), strict=True):
            reply = unwrap_reply(outcome, broker_pb.SendMessageResponseB2P, f"sending to {partition}")
            if reply.errCode == ErrCode.SERVER_RECEIVE_OVERFLOW and time.monotonic() < deadline:
                pending.append((partition, body))  # the broker stores nothing while it flushes its memory
                continue
            assert reply.success, reply
            stored[partition].append(Sent(reply.appendOffset, reply.messageId, body))
    for sent in stored.values():
        sent.sort(key=lambda message: message.position)
    return stored


def bring_into_files(cluster: Cluster, topics: Iterable[str]) -> None:
    """Bring all messages of `topics` into the brokers' files, also with `FLUSH_NEVER`: a broker that stops flushes its
    memory."""
    for broker_id in cluster.broker_ids:
        cluster.stop_broker(broker_id)
        cluster.start_broker(broker_id)
    for topic in topics:
        cluster.wait_flushed(
            topic
        )  # returns at once; on the embedded server it advances the clock, and with it message ids


def numbered(targets: Sequence[Partition], count: int, size: int = 40) -> list[tuple[Partition, bytes]]:
    """Return `count` different messages of about `size` bytes for `targets` in turn."""
    return [(targets[n % len(targets)], f"{next(_numbers)} ".encode().ljust(size, b".")) for n in range(count)]


def send_call(
    broker: Broker,
    client_id: str,
    partition: Partition,
    body: bytes,
    attributes: bytes = b"",
    flag: int | None = None,
    authorization: broker_pb.AuthorizedInfo | None = None,
) -> ServerRequest:
    data, usual_flag = encode_payload(body, attributes)
    message = broker_pb.SendMessageRequestP2B(
        clientId=client_id,
        topicName=partition.topic,
        partitionId=partition.partition_id,
        data=data,
        flag=usual_flag if flag is None else flag,
        checkSum=check_sum(data),
        sentAddr=0x7F000001,
        authInfo=authorization,
    )
    what = f"sending to {partition}"
    return ServerRequest(broker.address, ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, message, what)
