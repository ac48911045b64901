# SPDX-License-Identifier: Apache-2.0
"""Writes through the names of tables: Spark stores the rows once, and keeps a table without the options."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED
from tests.stored import stored_in

pytestmark = pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)

WRITES: dict[str, Callable[[DataFrame, dict[str, str], str], None]] = {
    "saveAsTable": lambda rows, options, table: (
        rows.write.format("tubemq").options(**options).mode("append").saveAsTable(table)
    ),
    "writeTo": lambda rows, options, table: rows.writeTo(table).using("tubemq").options(**options).create(),
}


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    name = f"table_{uuid.uuid4().hex[:8]}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_that_creates_a_table_stores_its_rows_once(
    cluster: Cluster, spark: SparkSession, table: str, write: Callable[[DataFrame, dict[str, str], str], None]
) -> None:
    topic = cluster.new_topic("three")
    options = {"tubemq.master": cluster.master, "topic": topic}
    rows = spark.createDataFrame([(b"%d" % number,) for number in range(10)], "value binary")
    write(rows, options, table)
    assert sorted(message.body for message in stored_in(cluster, topic)) == [b"%d" % number for number in range(10)]
    # Spark gives the options of the first write to nobody.
    with pytest.raises(AnalysisException, match=r"option 'tubemq\.master' is required"):
        rows.writeTo(table).append()
    with pytest.raises(AnalysisException, match=r"option 'tubemq\.master' is required"):
        spark.table(table).count()
    rows.write.format("tubemq").options(**options).insertInto(table)
    assert len(stored_in(cluster, topic)) == 20


def test_a_stream_to_a_table_stores_its_rows_once(
    cluster: Cluster, spark: SparkSession, table: str, tmp_path: Path
) -> None:
    topic = cluster.new_topic("three")
    spark.range(5).selectExpr("cast(id AS string) AS value").write.text(str(tmp_path / "in"))
    rows = spark.readStream.text(str(tmp_path / "in")).selectExpr("cast(value AS binary) AS value")
    options = {"tubemq.master": cluster.master, "topic": topic, "checkpointLocation": str(tmp_path / "checkpoint")}
    query = rows.writeStream.format("tubemq").options(**options).trigger(availableNow=True).toTable(table)
    query.awaitTermination()
    assert sorted(message.body for message in stored_in(cluster, topic)) == [b"%d" % number for number in range(5)]
