# SPDX-License-Identifier: Apache-2.0
"""Messages that a broker does not return while they are in its memory, because they are too long to be read there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.without_spark.query import Query
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import ServerError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

LONGEST = 1024 + MESSAGE_SIZE_SLACK  # the longest message a producer may send; the broker's reader adds 52 bytes
CONFIG = ServerConfig(max_msg_size=1024, mem_cache_flush_interval=3600.0)
SOLE = Partition(1, "one", 0)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"one": 1}, config=CONFIG) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def send(tubemq: EmbeddedTubeMQ, *sizes: int) -> None:
    for number, size in enumerate(sizes):
        tubemq.send("one", (b"%d " % number).ljust(size, b"."), 0)


@pytest.mark.parametrize("sizes", [
    (9, 9, LONGEST, 9, 9),
    (LONGEST, 9, 9),
    (9, 9, LONGEST),
    (LONGEST, LONGEST),
    (9, LONGEST, LONGEST - 52, LONGEST - 51, 9),
])  # fmt: skip
def test_long_messages_are_read_after_they_are_flushed(tubemq: EmbeddedTubeMQ, sizes: tuple[int, ...]) -> None:
    send(tubemq, *sizes)
    query = Query(tubemq, "one", retry_for=30.0)
    asked = tubemq.on("partition_register", client="_p0_", nth=4, times=1).run(lambda: tubemq.flush("one"))
    query.run()
    assert asked.fired == 1
    assert [len(row.body) for row in query.rows[SOLE]] == list(sizes)
    assert [row.offset for row in query.rows[SOLE]] == [28 * number for number in range(len(sizes))]


def test_task_fails_while_a_long_message_is_in_memory(tubemq: EmbeddedTubeMQ) -> None:
    send(tubemq, 9, 9, LONGEST, 9)
    query = Query(tubemq, "one", retry_for=0.3)
    with pytest.raises(ServerError, match=r"1:one:0 at .* not every entry of \[0, 112\) gave a message .* lower that"):
        query.run()
    tubemq.flush("one")
    query.run()
    assert len(query.rows[SOLE]) == 4


def test_long_messages_in_memory_of_a_shared_store_are_missed(tubemq: EmbeddedTubeMQ) -> None:
    """No reply distinguishes them from entries of the other partition."""
    tubemq.create_topic("pair", partitions=2)
    query = Query(tubemq, "pair", retry_for=30.0)
    for size in (9, LONGEST, 9):
        tubemq.send("pair", b"." * size, 0)
    query.run()
    tubemq.send("pair", b"." * LONGEST, 0)
    tubemq.flush("pair")
    query.run()
    assert [len(row.body) for row in query.rows[Partition(1, "pair", 0)]] == [9, 9, LONGEST]
