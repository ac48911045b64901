# SPDX-License-Identifier: Apache-2.0
"""Helpers that read ranges in tests, and inspect a group as another client."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tests import messages
from tests.clusters import Cluster
from tests.messages import Sent
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.consumer.working_group import look_group
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, STORE_PARTITION_BASE
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import split_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES

UNIT = INDEX_MSG_UNIT_SIZE
OBSERVER = "observer"
_attempts = itertools.count()


class Row(NamedTuple):
    """A delivered message; `position` is None where the reader does not know it."""

    position: int | None
    message_id: int
    body: bytes


def new_query() -> str:
    return uuid.uuid4().hex[:16]


def next_claim(query: str = "tests") -> ClaimId:
    """Return a task's claim that is newer than the last one, with all optional parts."""
    label = label_of("host-1.example", "application_17_0001", "My app", "clicks")
    return ClaimId(query, run=1, batch=1, task=0, attempt=next(_attempts), stage=7, reader="5f", label=label)


def owns_store(cluster: Cluster, partition: Partition) -> bool:
    return cluster.topics[partition.topic].partitions == 1


def store_ids(cluster: Cluster, partition: Partition) -> range:
    first = partition.store_id * STORE_PARTITION_BASE
    return range(first, first + cluster.topics[partition.topic].partitions)


def wanted(cluster: Cluster, partition: Partition, start: int, end: int) -> RangeToRead:
    return RangeToRead(partition, start, end, owns_store=owns_store(cluster, partition))


def reader(
    cluster: Cluster,
    group: str,
    partition: Partition,
    start: int,
    end: int,
    *,
    claim: ClaimId | None = None,
    claim_timeout: float = 0.0,
    clock: Clock = SYSTEM_CLOCK,
) -> PartitionReader:
    """Return a reader that waits for no other client, unless `claim_timeout` says so."""
    return PartitionReader(
        replace(messages.settings(cluster), clock=clock),
        group,
        claim or next_claim(),
        wanted(cluster, partition, start, end),
        PartitionSnapshot(
            messages.broker(cluster, partition.broker_id), look_group(group), store_ids(cluster, partition)
        ),
        claim_timeout=claim_timeout,
    )


def rows_of(batches: Iterable[FetchedBatch]) -> list[Row]:
    rows = []
    for batch in batches:
        positions: Sequence[int | None] = batch.positions or [None] * len(batch.messages)
        for position, message in zip(positions, cast(Sequence[Any], batch.messages), strict=True):
            _, body = split_payload(message.payLoadData, message.flag)
            rows.append(Row(position, message.messageId, body))
    return rows


def read(cluster: Cluster, group: str, partition: Partition, start: int, end: int) -> list[Row]:
    return rows_of(reader(cluster, group, partition, start, end).batches())


def expected(sent: Iterable[Sent], start: int, end: int, *, sole: bool) -> list[Row]:
    """Return the rows of [start, end). `sent` are all messages of the partition, in order."""
    inside = [message for message in sent if start <= message.position < end]
    return [
        Row(message.position if sole and missing <= MAX_EMPTY_ENTRIES else None, message.message_id, message.body)
        for number, message in enumerate(inside)
        if (missing := (message.position - start) // UNIT - number) >= 0
    ]


def calls(cluster: Cluster, group: str) -> GroupRequests:
    return GroupRequests(messages.settings(cluster), group)


def visitor(cluster: Cluster, group: str, settings: ClientSettings | None = None) -> Visitor:
    requests = GroupRequests(settings or messages.settings(cluster), group)
    return Visitor(requests, lambda partition: messages.broker(cluster, partition.broker_id))


@contextmanager
def holding(
    settings: ClientSettings, group: str, *topics: str, claim: ClaimId | None = None, claim_timeout: float = 0.0
) -> Iterator[GroupClaims]:
    """Yield the claims of a driver, `claim` of a new query if none is given."""
    session = ConsumerSession(settings, group, topics)
    session.register()
    claims = GroupClaims(session, claim or ClaimId(new_query(), run=1, batch=1), claim_timeout)
    try:
        yield claims
    finally:
        claims.release()
        session.close()


def register(
    cluster: Cluster, group: str, partition: Partition, client_id: str, position: int | None = None
) -> broker_pb.RegisterResponseB2C:
    broker = messages.broker(cluster, partition.broker_id)
    return _registration(cluster, calls(cluster, group).register(broker, partition, client_id, position))


def unregister(cluster: Cluster, group: str, partition: Partition, client_id: str) -> broker_pb.RegisterResponseB2C:
    broker = messages.broker(cluster, partition.broker_id)
    return _registration(cluster, calls(cluster, group).unregister(broker, partition, client_id))


def group_position(cluster: Cluster, group: str, partition: Partition) -> GroupPosition:
    """Return the group's position and the end of the store. The partition must be free, and is free afterwards."""
    reply = register(cluster, group, partition, OBSERVER)
    assert reply.errCode == 200, f"{partition} is not free: {reply.errCode} {reply.errMsg}"
    assert unregister(cluster, group, partition, OBSERVER).errCode == 200
    return GroupPosition(reply.currOffset, reply.maxOffset)


def end_of(sent: Sequence[Sent]) -> int:
    """Return the position behind the last message."""
    return sent[-1].position + UNIT if sent else 0


def _registration(cluster: Cluster, call: ServerRequest) -> broker_pb.RegisterResponseB2C:
    (outcome,) = send_requests(messages.settings(cluster), [call])
    return unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
