# SPDX-License-Identifier: Apache-2.0
"""The driver's commit note reaches the plan of the next batch in any worker process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from tests.clusters.embedded import embedded_cluster
from tests.real.topics import TopicSpec
from tubemq_spark.datasource import TubeMQDataSource

FILES = 2


def that_tells(said: str) -> type[TubeMQDataSource]:
    """A source that records the note that it finds at each plan and commit."""

    class Telling(TubeMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "tubemq_telling"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            from tubemq_spark.sink.options import SinkOptions
            from tubemq_spark.sink.task_attempts import read_commit_note

            once = SinkOptions.from_options(self.options).effectively_once
            assert once is not None
            note = read_commit_note(once.group)
            with open(said, "a") as file:
                print(json.dumps([os.environ["SPARK_LOCAL_DIRS"], note.run, note.topics]), file=file)
            return super().streamWriter(schema, overwrite)

    return Telling


@pytest.mark.thorough
def test_plan_of_a_batch_knows_the_last_commit(spark: SparkSession, tmp_path: Path) -> None:
    said, source = tmp_path / "said", tmp_path / "in"
    source.mkdir()
    for file in range(FILES):
        (source / f"{file}.txt").write_text("\n".join(f"{file} {line}" for line in range(10)))
    spark.dataSource.register(that_tells(str(said)))
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}, brokers=1) as cluster:
        query = (
            spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(source))
            .writeStream.format("tubemq_telling")
            .option("tubemq.master", cluster.master)
            .option("topic", "demo")
            .option("effectivelyOnce", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert len(cluster.tubemq.messages("demo")) == 10 * FILES
    told = [json.loads(line) for line in said.read_text().splitlines()]
    assert len({folder for folder, *_ in told}) == 1
    # Each batch is planned once, and its commit creates another writer.
    known = [[None, []], *[[query.runId, ["demo"]]] * (FILES - 1)]
    assert [one[1:] for one in told] == [one for one in known for _ in range(2)]
