# SPDX-License-Identifier: Apache-2.0
"""Limits of in-flight messages: `tubemq.producer.maxInFlight`, `tubemq.producer.maxInFlightBytes`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.clusters import Cluster
from tests.without_spark.sink import Writing, batches, bodies, save, schema
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.sink.task_writer import write_batches

ROWS = [{"value": b"%04d" % n} for n in range(400)]


@pytest.mark.sink_option("tubemq.producer.maxInFlight")
@pytest.mark.parametrize("most", [1, 7])
def test_a_connection_has_no_more_unanswered_sends_than_allowed(
    cluster: Cluster, demo: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The limit counts for each connection, and is reached."""
    sizes, seen = [], []
    submit = BrokerChannel.submit

    def count(link: BrokerChannel, batch: RecordBatch, target: bytes) -> None:
        submit(link, batch, target)
        sizes.append(len(batch))
        seen.append(link.in_flight)

    monkeypatch.setattr(BrokerChannel, "submit", count)
    save(cluster, ROWS, demo, tubemq_producer_maxInFlight=most)
    assert sum(sizes) == 400
    assert max(seen) == most
    assert bodies(cluster, demo) == [row["value"] for row in ROWS]


@pytest.mark.sink_option("tubemq.producer.maxInFlightBytes")
@pytest.mark.parametrize(("most", "ahead"), [(1, 0), (20_000, 4), (None, 19)])
def test_a_task_takes_no_more_rows_than_may_be_in_memory(cluster: Cluster, most: int | None, ahead: int) -> None:
    """Only the last row and one that Arrow has already given may exceed the limit. By default, the task takes all these
    few rows before one is stored."""
    topic = cluster.new_topic("one")
    rows = [{"value": b"%04d" % n + bytes(5000)} for n in range(20)]
    columns = schema(rows)
    stored_counts = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches(rows, columns, 1):
            stored_counts.append(len(bodies(cluster, topic)))
            yield batch

    writing = Writing(cluster, columns, topic, tubemq_producer_maxInFlightBytes=most)
    written = write_batches(writing.plan, watched())
    assert sum(written.rows.values()) == 20
    found = max(taken - stored for taken, stored in enumerate(stored_counts))
    assert found == ahead if most is None else found <= ahead
    assert bodies(cluster, topic) == [row["value"] for row in rows]
