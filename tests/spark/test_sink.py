# SPDX-License-Identifier: Apache-2.0
"""Spark writes to TubeMQ; plain requests read the messages back."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED_THOROUGHLY, REAL
from tests.stored import stored_in
from tubemq_spark import register
from tubemq_spark.protocol.message import Attributes

MOMENT = datetime(2026, 11, 21, 8, 30, 59, tzinfo=timezone.utc)
MINUTE = int(MOMENT.timestamp()) // 60 * 60_000_000
COLUMNS = "value binary, attributes map<string,string>, msg_type string, msg_time timestamp"
SHAPES: list[tuple[bytes, Mapping[str, str] | None, str | None, datetime | None]] = [
    (b"plain", None, None, None),
    (b"attributes", {"city": "Zürich", "empty": "", "日本": "語"}, None, MOMENT),
    (b"no attributes", {}, None, MOMENT),
    (b"type", None, "news", None),
    (b"everything", {"a": "1"}, "news", MOMENT),
    (b"", {"a": "2"}, None, MOMENT),
    (bytes(range(256)), None, None, MOMENT),
    (b"x" * 8192, None, None, MOMENT),
    (b"m" * (1 << 20), {"a": "3"}, "long", MOMENT),
]


def save(rows: DataFrame, cluster: Cluster, **options: str) -> None:
    rows.write.format("tubemq").options(**{"tubemq.master": cluster.master, **options}).mode("append").save()


@pytest.mark.thorough
def test_a_thread_can_write_once_it_has_registered(cluster: Cluster, spark: SparkSession) -> None:
    """Spark looks for sources in Python in the active session of the thread; a new thread has none."""
    rows, topic = spark.createDataFrame([(b"x",)], "value binary"), cluster.new_topic("one")
    save(rows, cluster, topic=topic)  # Spark keeps what its first look finds as long as the JVM lives
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(save, rows, cluster, topic=topic).result()
        thread.submit(register, spark).result()
        thread.submit(save, rows, cluster, topic=topic).result()
    assert [message.body for message in stored_in(cluster, topic)] == [b"x", b"x"]


@pytest.mark.parametrize("cluster", [EMBEDDED_THOROUGHLY, *REAL], indirect=True)
def test_spark_writes_all_columns(cluster: Cluster, spark: SparkSession) -> None:
    topic = cluster.new_topic("three")
    before = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    save(spark.createDataFrame(SHAPES, COLUMNS), cluster, topic=topic)
    after = datetime.now(timezone.utc)

    stored = {message.body: message.attributes for message in stored_in(cluster, topic)}
    assert stored.keys() == {body for body, *_ in SHAPES}
    for body, own, msg_type, msg_time in SHAPES:
        found = stored[body]
        assert found == Attributes(own or None, msg_type, MINUTE if msg_time else found.msg_time)
        if msg_time is None:
            assert found.msg_time is not None
            assert before <= datetime.fromtimestamp(found.msg_time / 1e6, timezone.utc) <= after


# What users see when it cannot work


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    """All failing tests share one topic."""
    return cluster.new_topic("three")


def test_only_append_mode_is_accepted(cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    rows = spark.sql("select 'a' value").write.format("tubemq").option("tubemq.master", cluster.master)
    errors = {"overwrite": "TubeMQ only appends", "ignore": '"Ignore" mode', "error": '"ErrorIfExists" mode'}
    for mode, error in errors.items():
        with pytest.raises(AnalysisException, match=error):
            rows.option("topic", topic).mode(mode).save()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .groupBy("value")
        .count()
        .select("value")
        .writeStream.format("tubemq")
        .option("tubemq.master", cluster.master)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .start()
    )
    with pytest.raises(StreamingQueryException, match="TubeMQ only appends"):
        query.awaitTermination()


def test_passwords_are_in_no_plan(cluster: Cluster, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    topic = cluster.new_topic("one")
    rows = spark.sql("select 'a' value")
    save(rows, cluster, topic=topic, **{"tubemq.user": "me", "tubemq.password": "geheim"})
    with pytest.raises(PythonException) as caught:
        save(
            spark.sql("select cast(null as string) value"),
            cluster,
            topic=topic,
            **{"tubemq.user": "me", "tubemq.password": "geheim"},
        )
    shown = capfd.readouterr()
    assert "column 'value': it is null" in str(caught.value)
    assert "geheim" not in str(caught.value) + shown.out + shown.err
