# SPDX-License-Identifier: Apache-2.0
"""Tests of reports: what is taken from Spark's events, and what is said if an event lacks something."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.monitoring.events import ID, RUN, offset, progress, source
from tubemq_spark.monitoring.report import Query, batch_report, end_report

QUERY = Query(ID, RUN, "copy")


@pytest.mark.parametrize("spelled", [json.dumps, str], ids=["JSON", "Python"])
def test_offsets_may_be_json_or_the_text_of_a_python_object(spelled: Callable[[object], str]) -> None:
    """Spark Connect 4.0 and 4.1 passes `str(dict)`."""
    event = progress(source(offset({"1:0": 280}), offset({"1:0": 560}, {"retries": 2}), rows=3))
    given = event.progress.sources[0]
    end, latest = (spelled(json.loads(text)) for text in (given.endOffset, given.latestOffset))
    event.progress.sources[0] = SimpleNamespace(endOffset=end, latestOffset=latest, numInputRows=3)
    (one,) = batch_report(event.progress).sources
    assert ([each.lag for each in one.partitions], one.counters) == ([10], {"retries": 2})


@pytest.mark.parametrize("latest", [None, "", "None"])
def test_without_a_latest_offset_there_is_no_lag(latest: str | None) -> None:
    (one,) = batch_report(progress(source(offset({"1:0": 280}), latest)).progress).sources
    assert [each.lag for each in one.partitions] == [0]


def test_a_partition_beyond_the_latest_offset_has_no_lag() -> None:
    """The batch may end behind the ends that were asked for: new partitions, a store that lost its tail."""
    (one,) = batch_report(progress(source(offset({"1:0": 280, "1:1": 28}), offset({"1:0": 28}))).progress).sources
    assert [each.lag for each in one.partitions] == [0, 0]


@pytest.mark.parametrize("other", ['{"demo":{"0":12}}', "17", "not JSON", "{[", None])
def test_other_sources_are_left_out_and_keep_their_place(other: str | None) -> None:
    report = batch_report(progress(source(other, other), source(offset({"1:0": 28}), None, rows=1)).progress)
    assert [(one.number, one.rows) for one in report.sources] == [(1, 1)]


def test_a_sink_that_does_not_tell_its_rows() -> None:
    assert batch_report(progress(sink_rows=-1).progress).sink_rows is None


def test_a_query_without_a_name_is_known_by_its_id() -> None:
    assert batch_report(progress(name=None).progress).query.label == ID


@pytest.mark.parametrize(
    ("exception", "error", "text"),
    [
        (None, None, None),
        (
            "org.apache.spark.SparkException: [STREAM_FAILED] x\nTraceback:\n"
            "tubemq_spark.errors.DataLossError: 1:demo:0 lost [28, 56)\n SQLSTATE: 38000",
            "DataLossError",
            "1:demo:0 lost [28, 56)",
        ),
        (
            "Traceback\ntubemq_spark.client.cluster.producer_session.NotListedError: no topic\n",
            "NotListedError",
            "no topic",
        ),
        ("x: [DIVIDE_BY_ZERO] Division by zero.\nat y", "DIVIDE_BY_ZERO", "x: [DIVIDE_BY_ZERO] Division by zero."),
        # Texts that the pattern would search for minutes if it were quadratic.
        ("tubemq_spark." * 200_000, "unknown", "tubemq_spark." * 200_000),
        ("tubemq_spark." + "a" * 2_000_000, "unknown", "tubemq_spark." + "a" * 2_000_000),
        ("java.lang.OutOfMemoryError\nat y", "unknown", "java.lang.OutOfMemoryError"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_says_why_a_query_ended(exception: str | None, error: str | None, text: str | None) -> None:
    report = end_report(QUERY, exception)
    assert (report.error, report.text) == (error, text)
