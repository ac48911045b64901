# SPDX-License-Identifier: Apache-2.0
"""A topic gets partitions while a query reads it: the checkpoint decides once which rows have an offset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.without_spark.query import Query, Row
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

FIRST = Partition(1, "one", 0)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"one": 1}, config=ServerConfig(transfer_size=2048)) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture
def query(tubemq: EmbeddedTubeMQ) -> Query:
    return Query(tubemq, "one", retry_for=30.0)


def send(tubemq: EmbeddedTubeMQ, count: int, partitions: int) -> None:
    for number in range(count):
        tubemq.send("one", b"%d of %d" % (number, count), number % partitions)
    tubemq.flush("one")


def add_partitions(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.create_topic("one", partitions=3)
    send(tubemq, 301, 3)  # the last one is of a partition that the query knows


def run_and_stop_at(query: Query, moment: str) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    setattr(query, moment, stop)
    with pytest.raises(KeyboardInterrupt):
        query.run()
    setattr(query, moment, lambda: None)


def test_checkpoint_decides_which_rows_have_offsets(tubemq: EmbeddedTubeMQ, query: Query) -> None:
    send(tubemq, 60, 1)
    run_and_stop_at(query, "found")
    decided = query.checkpoint.offset()
    assert decided.counted == {"one": frozenset([1])}
    query.checkpoint.offsets[-1] = json.dumps(replace(decided, counted={}).to_json())
    query.run()
    assert [row.offset for row in query.rows[FIRST]] == [None] * 60


class Twice(Query):
    """Runs each task twice; both runs must return the same rows."""

    def _run_task(self, task: TubeMQInputPartition) -> Iterator[tuple[Partition, Row]]:
        first = list(super()._run_task(task))
        assert list(super()._run_task(task)) == first
        return iter(first)


def test_batch_planned_before_partitions_were_added_needs_few_seeks(tubemq: EmbeddedTubeMQ) -> None:
    """The driver's lists are older than the partitions."""
    send(tubemq, 20, 1)
    query = Twice(tubemq, "one", retry_for=30.0)
    query._options = replace(query._options, metadata_interval=3600.0)
    registers = tubemq.on("partition_register", client="_p0_").count()
    added = 0

    def add_once() -> None:
        nonlocal added
        added += 1
        if added == 1:
            add_partitions(tubemq)

    query.given = add_once
    query.run()
    offsets = [row.offset for row in query.rows[FIRST]]
    assert len(offsets) == 121
    assert offsets.index(None) == 20 + 1 + MAX_EMPTY_ENTRIES // 2
    assert 20 < registers.fired < 200
