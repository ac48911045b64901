# SPDX-License-Identifier: Apache-2.0
"""Rows and messages against the official Java client, over the embedded and a real server: what one side writes, the
other reads equal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED_THOROUGHLY, REAL
from tests.interop.java_client import JavaClient, Outgoing, Receipt, Received
from tests.interop.shapes import (
    SAME_HASH,
    body_of,
    cleared_messages,
    java_messages,
    minute,
    msg_type,
    withheld_messages,
    word,
)
from tests.messages import numbered, partitions, send
from tests.without_spark.source import bodies, read_batch

# What Java does on the embedded server is in test_embedded.py.
pytestmark = pytest.mark.parametrize("cluster", [EMBEDDED_THOROUGHLY, *REAL], indirect=True)

COUNT = 2_000
SCHEMA = "value binary, attributes map<string,string>, msg_type string, msg_time string"


@pytest.fixture(scope="module")
def java(cluster: Cluster, java_at: Callable[..., JavaClient]) -> JavaClient:
    return java_at(cluster.master, cluster.framing)


def test_spark_reads_java_messages_of_all_shapes(
    cluster: Cluster, spark: SparkSession, java: JavaClient, group: str
) -> None:
    topic = cluster.new_topic("three")
    messages, withheld = java_messages(COUNT), withheld_messages(50)
    sent = messages + withheld
    random.Random(5).shuffle(sent)
    receipts = java.produce(topic, sent)

    rows = read(cluster, spark, topic, group).collect()

    visible = [(message, receipt) for message, receipt in zip(sent, receipts, strict=True) if message not in withheld]
    assert_equal_multisets(map(row_of, rows), (expected_row(message, receipt) for message, receipt in visible))
    assert len(rows) == COUNT


def test_a_body_is_whole_after_its_attributes_were_cleared(
    cluster: Cluster, spark: SparkSession, java: JavaClient, group: str
) -> None:
    """The Java client's own consumer removes the first four bytes."""
    topic = cluster.new_topic("three")
    messages = cleared_messages(30)
    receipts = java.produce(topic, messages)

    rows = read(cluster, spark, topic, group).collect()

    assert_equal_multisets(map(row_of, rows), map(expected_row, messages, receipts))


def test_offset_is_the_position_that_the_java_producer_was_told(
    cluster: Cluster, spark: SparkSession, java: JavaClient, group: str
) -> None:
    topic = cluster.new_topic("one")
    receipts = java.produce(topic, [Outgoing(f"message {n}".encode()) for n in range(1000)])

    rows = read(cluster, spark, topic, group).select("message_id", "offset").collect()

    assert Counter((row.message_id, row.offset) for row in rows) == Counter(
        (receipt.message_id, receipt.append_offset) for receipt in receipts
    )


def test_java_reads_and_filters_rows_that_spark_wrote(
    cluster: Cluster, spark: SparkSession, java: JavaClient, group: str
) -> None:
    topic = cluster.new_topic("three")
    rows = spark_rows(COUNT)
    write(cluster, spark.createDataFrame(rows, SCHEMA).repartition(3), topic)

    received = java.consume(topic, group, count=COUNT)
    assert_equal_multisets(map(message_of, received), map(expected_message, rows))

    wanted = {SAME_HASH[0], "news"}
    matching = [row for row in rows if row[2] in wanted]
    cluster.wait_flushed(topic)  # a filter consumer of the Java client reads only from files
    selected = java.consume(topic, f"{group}_filtered", filters=wanted, count=len(matching))
    assert_equal_multisets(map(message_of, selected), map(expected_message, matching))


def test_rows_without_msg_time_get_the_minute_of_their_write(
    cluster: Cluster, spark: SparkSession, java: JavaClient, group: str
) -> None:
    topic = cluster.new_topic("three")
    before = datetime.now(timezone.utc).strftime("%Y%m%d%H%M")
    write(cluster, spark.createDataFrame([(f"text {n} ü",) for n in range(100)], "value string"), topic)
    after = datetime.now(timezone.utc).strftime("%Y%m%d%H%M")

    received = java.consume(topic, group, count=100)

    assert sorted(message.body.decode() for message in received) == sorted(f"text {n} ü" for n in range(100))
    assert all(message.msg_time is not None and before <= message.msg_time <= after for message in received)
    assert all(message.msg_type is None and message.attributes is None for message in received)


def read(cluster: Cluster, spark: SparkSession, topic: str, group: str) -> DataFrame:
    """Return all messages of the topic."""
    return (
        spark.read.format("tubemq")
        .option("tubemq.master", cluster.master)
        .option("tubemq.group", group)
        .option("subscribe", topic)
        .load()
    )


def write(cluster: Cluster, rows: DataFrame, topic: str) -> None:
    rows.write.format("tubemq").mode("append").option("tubemq.master", cluster.master).option("topic", topic).save()


Comparable = tuple[Any, ...]
"""Two of them are equal if the messages are; hashable."""


def row_of(row: Row) -> Comparable:
    moment = row["msg_time"] and row["msg_time"].astimezone(timezone.utc).strftime("%Y%m%d%H%M")
    return (
        f"{row['broker_id']}:{row['topic']}:{row['partition']}",
        row["message_id"],
        bytes(row["value"]),
        frozen(row["attributes"]),
        row["msg_type"],
        moment,
    )


def expected_row(message: Outgoing, receipt: Receipt) -> Comparable:
    attributes, kind = message.attributes, message.msg_type
    if message.raw_attribute:
        parts = dict(part.partition("=")[::2] for part in message.raw_attribute.split(","))
        kind = parts.pop("$msgType$", None)
        attributes = parts
    return (receipt.partition, receipt.message_id, message.body, frozen(attributes), kind, message.msg_time)


def spark_rows(count: int) -> list[tuple[bytes, dict[str, str] | None, str | None, str]]:
    """Return rows of ``SCHEMA``."""
    rng = random.Random(6)
    return [
        (
            body_of(rng, n),
            {f"{word(rng)}{k}": word(rng) if k else "" for k in range(rng.randrange(4))} if n % 3 else None,
            msg_type(rng) if n % 2 else None,
            minute(n).strftime("%Y%m%d%H%M"),
        )
        for n in range(count)
    ]


def message_of(message: Received) -> Comparable:
    return (message.body, frozen(message.attributes), message.msg_type, message.msg_time)


def expected_message(row: tuple[bytes, dict[str, str] | None, str | None, str]) -> Comparable:
    body, attributes, kind, moment = row
    return (body, frozen(attributes), kind, moment)


def frozen(attributes: Any) -> frozenset[tuple[str, str]] | None:
    """On the wire, None and no attributes are the same."""
    return frozenset(attributes.items()) if attributes else None


def assert_equal_multisets(found: Iterable[Comparable], expected: Iterable[Comparable]) -> None:
    """Compare counters. A failure shows a few differences, shortened, and not all messages."""
    have, want = Counter(found), Counter(expected)
    missing, extra = want - have, have - want
    assert not missing, f"{missing.total()} missing: {shortened(missing)}; {extra.total()} extra: {shortened(extra)}"
    assert not extra, f"{extra.total()} extra: {shortened(extra)}"


def shortened(messages: Counter[Comparable]) -> list[str]:
    return [repr(tuple(part[:40] if isinstance(part, bytes) else part for part in key)) for key in list(messages)[:3]]


@pytest.mark.thorough  # in `make test`: error 424 in tests/failures/test_errors.py
def test_a_read_waits_until_the_master_forgets_a_killed_consumer(
    cluster: Cluster, java: JavaClient, group: str
) -> None:
    """Until then the master refuses other kinds of consumers."""
    topic = cluster.new_topic("three")
    sent = send(cluster, numbered(partitions(cluster, topic), 10))
    with java.member(topic, group) as member:
        member.wait_until(lambda received: len(received) == 10)
        member.kill()
        rows = read_batch(cluster, topic, tubemq_group=group, tubemq_claim_timeoutMs=120_000)
    assert sorted(bodies(rows)) == sorted(one.body for several in sent.values() for one in several)
