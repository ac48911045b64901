# SPDX-License-Identifier: Apache-2.0
"""Commits and aborts are logged with what the tasks have written."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructType

from tests.clusters.embedded import EmbeddedCluster
from tests.without_spark.sink import options
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.writers import TubeMQStreamRowWriter, batch_writer

SCHEMA = StructType().add("value", BinaryType())


@pytest.mark.parametrize("messages", [[None], [Written(), None], [Written(), WriterCommitMessage()]])
def test_a_commit_without_the_report_of_a_task_is_refused(
    cluster: EmbeddedCluster, messages: list[WriterCommitMessage | None]
) -> None:
    """With trigger(continuous=…) Spark does not run the sink's tasks."""
    writer = batch_writer(options(cluster, "demo"), SCHEMA, False)
    with pytest.raises(ConfigError, match=r"use trigger\(processingTime=…\)"):
        TubeMQStreamRowWriter(writer._plan).commit(messages, 5)


def test_commits_and_aborts_are_logged(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    done = [Written({"1:demo:0": 2}), Written({"1:demo:0": 1, "2:demo:0": 4})]
    with caplog.at_level("DEBUG", "tubemq_spark.sink"):
        writer = batch_writer(options(cluster, "demo"), SCHEMA, False)
        writer.commit(done)
        writer.abort(done)
        stream = TubeMQStreamRowWriter(writer._plan)
        stream.commit(done, 5)
        stream.abort([], 6)
    records = [record for record in caplog.records if record.name.startswith("tubemq_spark.sink")]
    assert [record.levelname for record in records] == ["DEBUG", "WARNING", "DEBUG", "WARNING"]
    messages = [record.getMessage() for record in records]
    assert "7 rows in 2 partitions" in messages[0]
    assert "batch 5" in messages[2]
    assert "batch 6" in messages[3]
