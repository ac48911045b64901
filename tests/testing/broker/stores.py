# SPDX-License-Identifier: Apache-2.0
"""Stores without a broker, and functions that fill and read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.testing.master.calls import StoppedClock
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.store import NO_CODE, ReadResult, Store
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.config import ServerConfig

CONFIG = ServerConfig()
NO_LIMIT = 1 << 40
ROOMY = replace(CONFIG, mem_cache_msg_count=NO_LIMIT, mem_cache_msg_size=NO_LIMIT, transfer_size=NO_LIMIT)
FILES, FLUSHING, ALL = 1, 2, 3  # read policies


def make_store(
    partitions: int = 1,
    *,
    max_bytes: int = NO_LIMIT,
    config: ServerConfig = CONFIG,
    clock: StoppedClock | None = None,
) -> Store:
    return Store(TopicLayout(partitions, 1), replace(config, topic_max_bytes=max_bytes), clock or StoppedClock())


def append(
    store: Store, count: int = 1, *, partition: int = 0, code: int = NO_CODE, payload: bytes = b"x", first: int = 0
) -> list[int]:
    """Append messages with ids from `first` on; return their positions."""
    return [store.append(partition, code, first + n, 0, 0, payload) for n in range(count)]


def read(
    store: Store,
    position: int = 0,
    *,
    partition: int = 0,
    codes: Sequence[int] | None = None,
    policy: int = ALL,
    size_limit: int = NO_LIMIT,
) -> ReadResult:
    wanted = None if codes is None else frozenset(codes)
    return store.read(position, partition, wanted, policy, size_limit, -2)


def messages(found: ReadResult) -> list[pb.TransferedMessage]:
    reply = pb.GetMessageResponseB2C()
    reply.MergeFromString(b"".join(found.chunks))
    return list(reply.messages)


def ids(found: ReadResult) -> list[int]:
    return [message.messageId for message in messages(found)]


def drain(store: Store, partition: int = 0, policy: int = ALL) -> list[int]:
    position, seen = store.min_offset, []
    while position < store.max_offset:
        found = read(store, position, partition=partition, policy=policy)
        seen += ids(found)
        position += found.advance
    return seen
