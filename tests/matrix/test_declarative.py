# SPDX-License-Identifier: Apache-2.0
"""Spark Declarative Pipelines: a streaming table and a materialized view of a topic, and a topic as a sink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tubemq_spark.testing import EmbeddedTubeMQ

pytest.importorskip("yaml", reason="needs pyspark[pipelines]")
pytest.importorskip("grpc", reason="needs pyspark[pipelines]")
pytest.importorskip("pyspark.pipelines", reason="needs Spark 4.1 or later")

SPEC = """
name: trial
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
MASTER = "{master}"
CLICKS = {{"tubemq.master": MASTER, "subscribe": "clicks", "startingOffsets": "earliest"}}


@dp.table
def clicks():
    return spark.readStream.format("tubemq").options(**CLICKS).option("tubemq.group", "table").load().select("value")


@dp.materialized_view
def counted():
    return spark.read.format("tubemq").options(**CLICKS).option("tubemq.group", "view").load().groupBy("topic").count()


dp.create_sink("copies", "tubemq", {{"tubemq.master": MASTER, "topic": "copies"}})


@dp.append_flow(target="copies")
def copy():
    return spark.readStream.table("clicks")
"""


def test_a_declarative_pipeline_reads_and_writes_topics(tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    for topic in ("clicks", "copies"):
        tubemq.create_topic(topic, partitions=1)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "transformations" / "flows.py").write_text(FLOWS.format(master=tubemq.master))
    sent = [tubemq.send("clicks", b"%d" % number, 0).body for number in range(3)]
    done = subprocess.run(
        [Path(sys.executable).parent / "spark-pipelines", "run", "--conf", "spark.ui.enabled=false"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert sorted(message.body for message in tubemq.messages("copies")) == sent
    assert tubemq.group_offset("table", "clicks", 1, 0) == 28 * len(sent)
