# SPDX-License-Identifier: Apache-2.0
"""The task writer makes messages of rows, and names rows that can never be sent; the plan is checked on the driver."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, connect, settings
from tests.stored import stored_in
from tests.without_spark.sink import batches, schema
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.testing import ServerConfig


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    topics = {"demo": TopicSpec(partitions=2), "other": TopicSpec(partitions=1)}
    with embedded_cluster(topics=topics, config=ServerConfig(max_msg_size=1000)) as running:
        yield running


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return next(batches(rows, schema(rows)))


def options(cluster: EmbeddedCluster, topic: str | None = "demo") -> WritePlan:
    return WritePlan(SinkOptions(settings(cluster), topic))


def test_batches_of_all_sizes_are_written(cluster: EmbeddedCluster) -> None:
    connect(cluster)
    sizes = [0, 1, 999, 1000, 1001, 2500]
    rows = [[{"value": b"%d %d" % (n, size)} for n in range(size)] for size in sizes]
    empty = pa.record_batch([pa.array([], pa.binary())], names=["value"])
    written = write_batches(options(cluster), [batch(part) if part else empty for part in rows])
    assert bodies_in(cluster) == {row["value"]: 1 for part in rows for row in part}
    assert sum(written.rows.values()) == sum(sizes)
    assert written.rows.keys() == {"1:demo:0", "1:demo:1", "2:demo:0", "2:demo:1"}


def test_long_rows_are_converted_a_few_at_a_time(cluster: EmbeddedCluster) -> None:
    """Objects of a whole batch, which Spark fills up to 64 MB, would need that much memory again, and more."""
    connect(cluster)
    many = pa.record_batch(
        [pa.array([b"x" * 900_000] * 40), pa.array(["t"] * 39 + [None])], names=["value", "msg_type"]
    )
    tracemalloc.start()
    try:
        write_batches(WritePlan(SinkOptions(settings(cluster), "demo", compression="gzip")), [many])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12_000_000 < many.nbytes
    assert sum(bodies_in(cluster).values()) == 40


def test_a_task_without_rows_sends_no_request(cluster: EmbeddedCluster, master_calls: Callable[[], int]) -> None:
    assert write_batches(options(cluster), []) == Written({})
    assert master_calls() == 0


def test_an_error_that_ends_the_producer_is_reported_once(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names no row before the bad one."""

    def refuse(*_: object) -> None:
        raise ProtocolError("no frame takes it")

    rows = batch([{"value": b"a"}] * 500)
    connect(cluster)  # so that rows leave before all are taken
    monkeypatch.setattr("tubemq_spark.client.producer.sender.BrokerChannel.submit", refuse)
    with pytest.raises(ConfigError, match=r"^row \d+ of the task, or one behind it, is too long for broker [^;]*: no "):
        write_batches(options(cluster), [rows])


@pytest.mark.parametrize(("failed_rows", "stored"), [("drop", (1, 0)), ("deadletter", (0, 1))])
def test_a_row_that_is_too_long_for_a_frame_is_a_bad_row(failed_rows: str, stored: tuple[int, int]) -> None:
    """Servers 1.2 take only frames of 5 MiB, also if the topic has a greater limit."""
    topics = {name: TopicSpec(partitions=1) for name in ("demo", "other")}
    config = ServerConfig(max_msg_size=10 << 20)
    with embedded_cluster(topics=topics, framing="prefixed", config=config) as cluster:
        dead_topic = "other" if failed_rows == "deadletter" else None
        given = SinkOptions(settings(cluster), "demo", failed_rows=failed_rows, dead_letter_topic=dead_topic)
        rows = batch([{"value": value} for value in (b"a", bytes(6 << 20), b"b")])
        written = write_batches(WritePlan(given, write_id="id"), [rows])
        assert (written.dropped, written.dead_letters) == stored
        assert sorted(message.body for message in cluster.tubemq.messages("demo")) == [b"a", b"b"]
        assert b"".join(message.body for message in cluster.tubemq.messages("other")) == bytes(6 << 20) * stored[1]


def numbered(count: int, **others: Any) -> list[dict[str, Any]]:
    return [{"value": b"%d" % n, **others} for n in range(count)]


def write(given: WritePlan, cluster: EmbeddedCluster, *rows: list[dict[str, Any]]) -> Written:
    """Write when the task's process knows the topic and is connected, as it is after the first rows."""
    connect(cluster)
    return write_batches(given, [batch(part) for part in ([{"value": b"first"}], *rows)])


def test_rows_that_differ_in_their_values_are_stored(cluster: EmbeddedCluster) -> None:
    write(options(cluster), cluster, numbered(2500), numbered(300, msg_type="t"))
    assert bodies_in(cluster) == {b"first": 1, **{b"%d" % n: 1 + (n < 300) for n in range(2500)}}
    assert sum(message.attributes.msg_type == "t" for message in stored_in(cluster, "demo")) == 300


def test_a_bad_row_among_many_is_named(cluster: EmbeddedCluster) -> None:
    rows = numbered(3000)
    rows[2345] = {"value": bytes(1001)}
    with pytest.raises(ConfigError, match=r"^row 2346 of the task.*value has 1001 bytes"):
        write(options(cluster), cluster, rows)
    found = bodies_in(cluster)
    assert all(found[b"%d" % n] == 1 for n in range(2345))
    assert not any(b"%d" % n in found for n in range(2346, 3000))


def test_bad_rows_among_many_are_dropped(cluster: EmbeddedCluster) -> None:
    rows = numbered(5000)
    bad = {100: None, 1999: bytes(1001), 2000: None, 4999: bytes(2000)}
    for n, value in bad.items():
        rows[n] = {"value": value}
    given = WritePlan(SinkOptions(settings(cluster), "demo", failed_rows="drop"))
    written = write(given, cluster, rows)
    assert written.dropped == 4
    wanted = {b"%d" % n: 1 for n in range(5000) if n not in bad}
    assert bodies_in(cluster) == {b"first": 1, **wanted}
