# SPDX-License-Identifier: Apache-2.0
"""Batch reads through Spark."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality

from tests.clusters import LAYOUTS
from tests.clusters.servers import EMBEDDED_THOROUGHLY, REAL
from tests.messages import numbered, partitions, send
from tests.spark.queries import Source, by_partition, expected
from tubemq_spark.source.schema import SPARK_SCHEMA


@pytest.mark.parametrize("cluster", [EMBEDDED_THOROUGHLY, *REAL], indirect=True)
def test_batch_reads_everything_in_the_same_order(source: Source) -> None:
    """The default is from the earliest to the latest position. Every read gives the same rows in the same order."""
    topics = [source.cluster.new_topic(layout) for layout in LAYOUTS]
    everywhere = [partition for topic in topics for partition in partitions(source.cluster, topic)]
    sent = send(source.cluster, numbered(everywhere, 2800))
    sent = {p: sent[p] + more for p, more in send(source.cluster, numbered(everywhere, 700, size=3000)).items()}

    frame = source.batch(*topics)
    assert frame.schema == SPARK_SCHEMA
    assert frame.count() == 3500
    assert by_partition(frame.collect()) == expected(source.cluster, sent)
    assert_df_equality(source.batch(*topics), frame)


def test_password_is_in_no_plan(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"tubemq.user": "u", "tubemq.password": "p4ssw0rd-of-nobody"}
    for read in (source.stream, source.batch):
        read(source.cluster.new_topic("one"), **options).explain(True)
        shown = capsys.readouterr().out
        assert "tubemq" in shown
        assert "p4ssw0rd" not in shown


def test_redaction_setting_hides_options_in_plans(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """The documentation shows the setting; Spark prints the options of streams."""
    frame = source.stream(source.cluster.new_topic("one"), **{"tubemq.user": "u-of-nobody", "tubemq.password": "p"})
    frame.explain(True)
    assert "tubemq.user=u-of-nobody" in capsys.readouterr().out
    source.spark.conf.set("spark.sql.redaction.options.regex", "(?i)url|user")
    try:
        frame.explain(True)
        shown = capsys.readouterr().out
    finally:
        source.spark.conf.unset("spark.sql.redaction.options.regex")
    assert "tubemq.user=***" in shown
    assert "u-of-nobody" not in shown
