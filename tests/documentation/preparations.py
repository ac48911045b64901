# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a page need before they run, and what must hold afterwards.

A page's readers have these topics and messages already. Each function prepares one page; after its `yield` it checks.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.latency import LOW_LATENCY
from tests.certificates import Authority
from tests.documentation.pages import blocks
from tests.inlong_packs import pack_grouped
from tests.matrix.queries import wait_for
from tubemq_spark.testing import EmbeddedTubeMQ

# The addresses that pages use for masters
ADDRESS = r"(?:master(?:-1)?|127\.0\.0\.1|localhost):8715(?:,master-2:8715)?"


@dataclass
class Given:
    """What a preparation may use and change: `names` are those of the blocks, `replaced` as in `Shell`."""

    spark: SparkSession
    tubemq: EmbeddedTubeMQ
    folder: Path
    authority: Authority
    names: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)

    def topics(self, *names: str, partitions: int = 3, stores: int = 1) -> None:
        for name in names:
            self.tubemq.create_topic(name, partitions=partitions, stores=stores)

    def bodies(self, topic: str) -> list[str]:
        return sorted(message.body.decode() for message in self.tubemq.messages(topic))


def prepare_index(given: Given) -> Iterator[None]:
    given.topics("clicks", "orders")
    given.tubemq.send("clicks", b"1", msg_type="click")
    given.tubemq.send("clicks", b"2", msg_type="order")
    yield
    wait_for(lambda: given.bodies("orders") == ["2"], "the order", given.names["copy"])
    given.names["query"].processAllAvailable()
    assert given.spark.read.parquet(str(given.folder / "clicks")).count() == 2


def prepare_guide(given: Given) -> Iterator[None]:
    """The page's port may be in use, and its job runs until it is stopped."""
    given.topics("clicks", "orders", "numbers")
    for body, msg_type in ((b"1", "click"), (b"2", "order")):
        given.tubemq.send("clicks", body, attributes={"customer": "c"}, msg_type=msg_type)
    given.names["CollectorRegistry"] = CollectorRegistry
    given.replaced |= {
        r"PrometheusMetrics\(\)": "PrometheusMetrics(CollectorRegistry())",
        r"serve\(9108\)": "serve(0)",
        r"10 seconds": "0 seconds",
        r"query\.awaitTermination\(\)": "query.processAllAvailable()",
    }
    yield
    given.spark.streams.removeListener(given.names["listener"])
    given.names["server"].stop()
    assert [result for result in given.names["results"] if result.state == "failed"] == []
    for name in ("to_lake", "by_customer"):
        given.names[name].processAllAvailable()
    assert given.spark.read.parquet(str(given.folder / "clicks")).count() == 2
    assert given.bodies("orders") == ["2", "2"]  # from by_customer and from query
    assert len(given.bodies("numbers")) == 100


def prepare_tutorial(given: Given) -> Iterator[None]:
    given.topics("readings", "averages")
    yield
    assert len(given.bodies("readings")) == 7
    found = [json.loads(body) for body in given.bodies("averages")]
    assert sum(average["readings"] for average in found) == 6


def prepare_filters(given: Given) -> None:
    given.topics("clicks", "audit")
    for msg_type, minute, customer in (
        ("click", "202603010900", "c1"),
        ("order", "202603010930", "c1"),
        ("order", "202603011030", "c2"),
        ("refund", "202603011040", "c2"),
    ):
        given.tubemq.send("clicks", b"-", attributes={"customer": customer}, msg_type=msg_type, msg_time=minute)
    given.tubemq.send("audit", b"-", msg_type="click")
    given.tubemq.send("audit", b"-")


def prepare_replay(given: Given) -> None:
    """Send three messages, read them all in the group, and run the page's command, which moves it back."""
    given.topics("clicks")
    for body, minute in ((b"before", "202603011030"), (b"at", "202603011100"), (b"later", "202603011230")):
        given.tubemq.send("clicks", body, msg_time=minute)
    for partition in range(3):
        given.tubemq.move_group("clicks_to_lake", "clicks", 1, partition, 3 * 28)
    (command,) = (block.code for block in blocks("docs/howto/replay.md") if block.language == "sh")
    program, *arguments = command.split()
    assert program == "tubemq-spark"
    cluster = ["--master", given.tubemq.master, "--admin", given.tubemq.web_master]
    subprocess.run([sys.executable, "-m", "tubemq_spark.cli", *arguments, "--yes", *cluster], check=True, timeout=60)


def prepare_kafka(given: Given) -> Iterator[None]:
    """`old` is what a batch read of Kafka returns: a message, and a tombstone."""
    given.topics("orders_at", "orders_de", "all_orders", partitions=1, stores=3)
    given.replaced |= {r"master:8080": given.tubemq.web_master}
    given.names["old"] = given.spark.sql("""
        SELECT *, 'orders-de' AS topic, TIMESTAMP '2026-03-01 10:00:00' AS timestamp FROM VALUES
            (X'00FF', X'7B7D', array(named_struct('key', 'trace', 'value', X'01FE'))), (X'61', NULL, NULL)
        AS messages(key, value, headers)
    """)
    yield
    given.names["query"].processAllAvailable()
    options = {"tubemq.master": given.tubemq.master, "tubemq.group": "all_orders_look", "subscribe": "all_orders"}
    (row,) = given.spark.read.format("tubemq").options(**options).load().collect()
    assert (bytes(row["value"]), row["attributes"]) == (b"{}", {"trace": "01FE", "key": "00FF"})


def prepare_start_times(given: Given) -> None:
    given.topics("clicks", partitions=1)
    for body, minute in ((b"before", "1030"), (b"at", "1100"), (b"none", None), (b"later", "1130")):
        given.tubemq.send("clicks", body, msg_time=minute and f"20260301{minute}")


def prepare_patterns(given: Given) -> Iterator[None]:
    given.topics("orders_all", partitions=1)
    for topic in ("orders_at", "orders_de", "clicks"):
        given.topics(topic, partitions=1)
        given.tubemq.send(topic, topic[-2:].encode())
    given.replaced |= {r"master:8080": given.tubemq.web_master}
    yield
    given.names["query"].processAllAvailable()
    given.names["query"].processAllAvailable()
    assert given.bodies("orders_all") == ["at", "de"]


def prepare_sql(given: Given) -> Iterator[None]:
    given.topics("clicks", "counts")
    given.tubemq.send("clicks", b'{"page": "/home"}', msg_type="click")
    given.tubemq.send("clicks", b'{"page": "/cart"}', msg_type="click")
    given.tubemq.send("clicks", b'{"items": 3}', msg_type="order")
    yield
    counts = [json.loads(body) for body in given.bodies("counts")]
    assert counts == [{"msg_type": "click", "messages": 2}, {"msg_type": "order", "messages": 1}]


def prepare_newer_spark(given: Given) -> Iterator[None]:
    given.topics("clicks", "orders")
    for topic in ("clicks", "orders"):
        given.tubemq.send(topic, topic.encode())
    yield
    given.spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")
    rows = given.spark.read.parquet(str(given.folder / "lake")).collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"clicks", b"orders"]


def prepare_low_latency(given: Given) -> Iterator[None]:
    given.topics("clicks", "alarms")
    yield
    query = given.names["query"]
    query.processAllAvailable()  # it begins at the end of its topic
    given.tubemq.send("clicks", b"late")
    query.processAllAvailable()
    assert given.bodies("alarms") == ["late"]
    written = sorted((given.folder / "clicks_alarm" / "offsets").iterdir())
    assert [file.name for file in written] == [".0.crc", ".1.crc", "0", "1"]  # Spark's FileSystem API, and no file else
    query.stop()
    for name in LOW_LATENCY:
        given.spark.conf.unset(name)


def send_clicks(given: Given) -> None:
    """Send three messages to topic `clicks`."""
    given.topics("clicks")
    for number, msg_type in enumerate(("click", "click", "order")):
        given.tubemq.send("clicks", b"%d" % number, attributes={"order": str(number)}, msg_type=msg_type)


def stream_of(given: Given, topic: str, group: str) -> Any:
    options = {"tubemq.master": given.tubemq.master, "tubemq.group": group, "subscribe": topic}
    return given.spark.readStream.format("tubemq").options(**options, startingOffsets="earliest").load()


def prepare_delta(given: Given) -> None:
    """Two orders, the second one with an update."""
    given.topics("clicks")
    for number, (order, version) in enumerate((("0", "1"), ("1", "1"), ("1", "2"))):
        given.tubemq.send("clicks", b"%d" % number, attributes={"order": order, "version": version}, msg_type="order")
    given.names["clicks"] = stream_of(given, "clicks", "clicks_to_delta")
    options = {"tubemq.master": given.tubemq.master, "tubemq.group": "clicks_merge", "subscribe": "clicks"}
    given.names["messages"] = given.spark.read.format("tubemq").options(**options).load()


def prepare_security(given: Given) -> None:
    send_clicks(given)
    password = given.folder / "password"
    password.write_text("secret\n")
    given.replaced |= {
        r"master-1:8716": given.tubemq.tls_master,
        r"/etc/tubemq/ca\.pem": str(given.authority.own.cert),
        r"/etc/tubemq/password": str(password),
    }


def prepare_migrate(given: Given) -> Iterator[None]:
    given.topics("orders", partitions=1)
    for number in range(4):
        given.tubemq.send("orders", b"order %d" % number)
    given.tubemq.move_group("order_service", "orders", 1, 0, 2 * 28)
    yield
    assert given.tubemq.group_offset("order_service", "orders", 1, 0) == 4 * 28


def prepare_lost_checkpoint(given: Given) -> None:
    given.topics("clicks", partitions=1)
    for number in range(5):
        given.tubemq.send("clicks", b"%d" % number)
    given.tubemq.move_group("clicks_to_lake", "clicks", 1, 0, 3 * 28)


def prepare_data_loss(given: Given) -> Iterator[None]:
    """A query has read five messages; a crash loses the last three of them, and a new one comes."""
    given.topics("clicks", partitions=1)
    given.replaced |= {r"10 seconds": "0 seconds"}
    for number in range(2):
        given.tubemq.send("clicks", b"%d" % number)
    given.tubemq.flush("clicks")
    for number in range(2, 5):
        given.tubemq.send("clicks", b"%d" % number)

    def run() -> None:
        options = {"path": str(given.folder / "clicks"), "checkpointLocation": str(given.folder / "clicks_to_lake")}
        columns = "CAST(value AS STRING) AS value", "msg_type", "msg_time"
        rows = stream_of(given, "clicks", "clicks_to_lake").selectExpr(*columns)
        rows.writeStream.format("parquet").options(**options).trigger(availableNow=True).start().awaitTermination()

    run()
    given.tubemq.crash_broker(1)
    given.tubemq.start_broker(1)
    given.tubemq.send("clicks", b"new")
    for _ in range(2):  # the error stays
        with pytest.raises(StreamingQueryException, match=r"the broker lost \[56, 140\) after it was read"):
            run()
    yield
    given.names["query"].processAllAvailable()
    given.tubemq.send("clicks", b"last")
    given.names["query"].processAllAvailable()
    rows = given.spark.read.parquet(str(given.folder / "clicks")).collect()
    assert sorted(row["value"] for row in rows) == ["0", "1", "2", "3", "4", "last", "new"]


def prepare_logging(given: Given) -> Iterator[None]:
    given.topics("clicks")
    yield
    given.spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    logging.getLogger("tubemq_spark").setLevel(logging.NOTSET)


def prepare_testing(given: Given) -> Iterator[None]:
    yield
    assert sum(name.startswith("test_") for name in given.names) == 4


def prepare_sink(given: Given) -> Iterator[None]:
    given.topics("my_topic", "my_other_topic", "counts")
    given.tubemq.send("my_topic", b"a")
    (given.folder / "events").mkdir()
    (given.folder / "events" / "0.txt").write_text("Rome\nOslo\nRome")
    given.names["events"] = given.spark.readStream.text(str(given.folder / "events")).withColumnRenamed("value", "city")
    numbers = given.spark.readStream.format("rate").load()
    given.names["df"] = numbers.selectExpr("value AS id", "CAST(value AS STRING) AS payload")
    given.names["options"] = {
        "tubemq.master": given.tubemq.master,
        "tubemq.group": "stamps",
        "subscribe": "my_topic",
        "startingOffsets": "earliest",
    }
    yield
    wait_for(lambda: len(given.bodies("counts")) == 2, "the counts", given.names["query"])
    (given.folder / "events" / "1.txt").write_text("Rome")
    wait_for(lambda: len(given.bodies("counts")) == 3, "the second micro-batch", given.names["query"])
    rome = [message for message in given.tubemq.messages("counts") if b"Rome" in message.body]
    assert [json.loads(message.body)["count"] for message in rome] == [2, 3]
    assert len({message.partition for message in rome}) == 1
    cities = given.names["events"].selectExpr("city AS value").writeStream.format("tubemq").outputMode("update")
    cities = cities.options(**given.names["options"], topic="counts", checkpointLocation=str(given.folder / "no"))
    with pytest.raises(StreamingQueryException, match="tubemq does not support Update mode"):
        cities.start().awaitTermination()


def prepare_dead_letters(given: Given) -> Iterator[None]:
    given.topics("dead_letters", "clicks")
    master = {"tubemq.master": given.tubemq.master}
    rows = "SELECT * FROM VALUES ('a', 'news'), ('b', ' news') AS rows(value, msg_type)"
    bad = given.spark.sql(rows).write.format("tubemq").mode("append").options(**master)
    bad.options(topic="clicks", failedRows="deadLetter", deadLetterTopic="dead_letters").save()
    given.names["df"] = stream_of(given, "clicks", "dead_letters_of")
    given.names["tubemq"] = {**master, "tubemq.group": "restore", "startingOffsets": "earliest"}
    yield
    assert given.bodies("clicks") == ["a", "b"]


def prepare_inlong(given: Given) -> Iterator[None]:
    given.topics("my_topic")
    (given.folder / "packs").mkdir()
    sold = "SELECT 'a' AS value, TIMESTAMP '2026-03-01 10:00:00' AS sold_at"
    given.names["rows"] = given.spark.sql(sold)
    yield
    assert len(given.tubemq.messages("my_topic")) == 3  # the page writes its row three times


def prepare_inlong_table(given: Given) -> None:
    given.topics("shop")
    for minute, stream, body in (
        (0, "orders", rb"anna|12.50"),
        (4, "orders", rb"bob\|son|7"),
        (8, "clicks", b"page=/home&ms=31"),
        (12, "readings", b'{"sensor":7,"bar":2.5}'),
    ):
        attributes = f"groupId=g_shop&streamId={stream}&dt={1_772_359_200_000 + 60_000 * minute}"  # from 10:00 on
        given.tubemq.send("shop", pack_grouped(1, [(attributes, body)]), msg_type=stream)


def prepare_monitoring(given: Given) -> Iterator[None]:
    """The page's port may be in use, and a process has only one default registry."""
    given.names["CollectorRegistry"] = CollectorRegistry
    given.replaced |= {
        r"PrometheusMetrics\(\)": "PrometheusMetrics(CollectorRegistry())",
        r"serve\(9108\)": "serve(0)",
        r"progress\.jsonl": str(given.folder / "progress.jsonl"),
    }
    yield
    for listener in (given.names["listener"], given.names["lines"]):
        given.spark.streams.removeListener(listener)
    given.names["server"].stop()


PREPARATIONS: Mapping[str, Callable[[Given], Iterator[None] | None]] = {
    "docs/dead-letters.md": prepare_dead_letters,
    "docs/howto/deployment.md": lambda given: given.topics("clicks"),
    "docs/kafka.md": prepare_kafka,
    "docs/pulsar.md": lambda given: given.topics("clicks"),
    "docs/howto/data-loss.md": prepare_data_loss,
    "docs/howto/logging.md": prepare_logging,
    "docs/howto/lost-checkpoint.md": prepare_lost_checkpoint,
    "docs/howto/monitoring.md": prepare_monitoring,
    "docs/howto/values.md": lambda given: given.topics("readings"),
    "docs/howto/migrate-consumer.md": prepare_migrate,
    "docs/howto/sizing.md": send_clicks,
    "docs/howto/low-latency.md": prepare_low_latency,
    "docs/howto/testing.md": prepare_testing,
    "docs/howto/inlong-table.md": prepare_inlong_table,
    "docs/inlong.md": prepare_inlong,
    "docs/sink.md": prepare_sink,
    "docs/howto/delta.md": prepare_delta,
    "docs/howto/security.md": prepare_security,
    "docs/howto/filters.md": prepare_filters,
    "docs/howto/patterns.md": prepare_patterns,
    "docs/howto/replay.md": prepare_replay,
    "docs/howto/start-times.md": prepare_start_times,
    "docs/howto/newer-spark.md": prepare_newer_spark,
    "docs/howto/sql.md": prepare_sql,
    "docs/guide.md": prepare_guide,
    "docs/index.md": prepare_index,
    "docs/tutorial.md": prepare_tutorial,
}
