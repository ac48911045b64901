# SPDX-License-Identifier: Apache-2.0
"""Features of Spark 4.2 and later around the source: sources with names, and sources that are added to a query."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from tests import messages
from tests.clusters import Cluster
from tests.matrix.queries import run_to_the_end
from tests.spark.queries import Batches, Queries, Source
from tubemq_spark.cli.checkpoint import committed_positions

VERSION = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark 4.2 and later have named sources"),
]


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[None]:
    """With this setting each source has a name, and Spark writes the second version of the offset log."""
    spark.conf.set(EVOLUTION, "true")
    yield
    spark.conf.unset(EVOLUTION)


def named(source: Source, name: str, topic: str) -> DataFrame:
    """Return a stream of `topic` whose group has the name of the source in it."""
    group = f"{source.group}_{name}"
    options = source.options(topic, tubemq_group=group, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    return source.spark.readStream.format("tubemq").options(**options).name(name).load()


def send(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    sent = messages.send(cluster, messages.numbered(messages.partitions(cluster, topic), count))
    return [message.body for several in sent.values() for message in several]


@pytest.mark.usefixtures("evolving")
def test_sources_with_names_change_places_and_a_source_is_added(
    cluster: Cluster, source: Source, queries: Queries, tmp_path: Path
) -> None:
    """Each has a limit of its own, and one has nothing more to read before the others."""
    batches = Batches()
    sent: list[bytes] = []
    topics = {name: cluster.new_topic("one") for name in ("first", "second", "third")}
    for names in [("first", "second"), ("third", "second", "first"), ("third", "first")]:
        for place, name in enumerate(names, 1):
            sent += send(cluster, topics[name], 10 * place)
        frame = reduce(DataFrame.union, [named(source, name, topics[name]) for name in names])
        run_to_the_end(queries.start(frame, batches, tmp_path, availableNow=True))
        assert sorted(bytes(row["value"]) for row in batches.rows) == sorted(sent)
    assert (tmp_path / "offsets" / "0").read_text().startswith("v2\n")
    last = committed_positions(str(tmp_path), topics["first"])
    assert {partition.topic: position for partition, position in last.items()} == {topics["first"]: 3 * 10 * 28}


def test_unnamed_sources_with_the_second_version_of_the_offset_log(
    spark: SparkSession, cluster: Cluster, source: Source, queries: Queries, tmp_path: Path
) -> None:
    batches = Batches()
    topic = cluster.new_topic("one")
    sent: list[bytes] = []
    for version in ("2", "1"):  # a query keeps the version that its checkpoint has
        sent += send(cluster, topic, 20)
        spark.conf.set(VERSION, version)
        try:
            frame = source.stream(topic, startingOffsets="earliest")
            run_to_the_end(queries.start(frame, batches, tmp_path, availableNow=True))
        finally:
            spark.conf.unset(VERSION)
        assert sorted(bytes(row["value"]) for row in batches.rows) == sorted(sent)
        last = max((tmp_path / "offsets").glob("[0-9]"))
        assert last.read_text().startswith("v2\n")
