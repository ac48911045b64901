# SPDX-License-Identifier: Apache-2.0
"""The examples of README.md and docs/sink.md do what their text says; `test_pages.py` runs those of all pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.documentation.pages import RUN, Shell, blocks
from tests.documentation.preparations import ADDRESS
from tests.spark.queries import wait_for
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq(spark: SparkSession) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"clicks": 3, "numbers": 3}) as cluster:
        yield cluster
        for query in spark.streams.active:
            query.stop()
        forget_servers()


def shell_for(page: str, spark: SparkSession, tubemq: EmbeddedTubeMQ, folder: Path) -> Shell:
    return Shell(page, spark, folder, {ADDRESS: tubemq.master})


def test_all_examples_of_the_readme_run(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    shell = shell_for("README.md", spark, tubemq, tmp_path)
    sent: Counter[tuple[str, str]] = Counter()

    def send(body: str, msg_type: str) -> None:
        tubemq.send("clicks", body.encode(), attributes={"customer": "c"}, msg_type=msg_type)
        sent[body, msg_type] += 1

    def in_the_lake() -> Counter[tuple[str, str]]:
        folder = tmp_path / "clicks"
        if not (folder / "_spark_metadata" / "0").exists():  # until then a file may be there without its rows
            return Counter()
        rows = spark.read.parquet(str(folder)).collect()
        assert all(row.attributes == {"customer": "c"} for row in rows)
        return Counter((row.value, row.msg_type) for row in rows)

    send("1", "click")
    send("2", "order")
    for block in blocks("README.md"):
        if block.language in RUN:
            shell.paste(block)
    send("3", "click")
    query = shell.names["query"]
    wait_for(lambda: in_the_lake() == sent, "the rows of the first example", query)
    assert query.exception() is None

    assert [result for result in shell.names["results"] if result.state == "failed"] == []

    numbers = {int(message.body): message.partition for message in tubemq.messages("numbers")}
    assert len(tubemq.messages("numbers")) == len(numbers) == 100
    assert all(numbers[number] == numbers[number % 10] for number in numbers)


def test_updates_are_written_by_foreach_batch(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    """Spark refuses the output mode `update` for sinks in Python."""
    tubemq.create_topic("counts", partitions=3)
    (tmp_path / "events").mkdir()
    events = spark.readStream.text(str(tmp_path / "events")).withColumnRenamed("value", "city")
    counts = events.groupBy("city").count().selectExpr("city AS key", "CAST(count AS STRING) AS value")
    directly = counts.writeStream.format("tubemq").outputMode("update").option("tubemq.master", tubemq.master)
    (tmp_path / "events" / "0.txt").write_text("Rome\nOslo\nRome")
    with pytest.raises(StreamingQueryException, match="tubemq does not support Update mode"):
        directly.option("topic", "counts").option("checkpointLocation", str(tmp_path / "no")).start().awaitTermination()
    assert not tubemq.messages("counts")

    (block,) = (block for block in blocks("docs/sink.md") if "foreachBatch" in block.code)
    shell = shell_for("docs/sink.md", spark, tubemq, tmp_path)
    shell.names["events"] = events
    shell.paste(block)
    wait_for(lambda: len(tubemq.messages("counts")) == 2, "the first micro-batch", shell.names["query"])
    (tmp_path / "events" / "1.txt").write_text("Rome")
    wait_for(lambda: len(tubemq.messages("counts")) == 3, "the second one", shell.names["query"])
    shell.names["query"].stop()
    found = [(message.partition, json.loads(message.body)) for message in tubemq.messages("counts")]
    rome = [(partition, told["count"]) for partition, told in found if told["city"] == "Rome"]
    assert [count for _, count in rome] == [2, 3]
    assert len({partition for partition, _ in rome}) == 1
