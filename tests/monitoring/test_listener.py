# SPDX-License-Identifier: Apache-2.0
"""Tests of the listener with its publishers, on events as Spark passes them."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.monitoring.events import BEGAN_AT, ID, RUN, ended, idle, offset, progress, source, started
from tubemq_spark.monitoring import JsonLines, PrometheusMetrics, TubeMQListener
from tubemq_spark.protocol import speedups


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def listener(registry: CollectorRegistry) -> TubeMQListener:
    return TubeMQListener(PrometheusMetrics(registry))


def value(registry: CollectorRegistry, name: str, **labels: object) -> float | None:
    given = {"query": "copy", **{label: str(text) for label, text in labels.items()}}
    return registry.get_sample_value(f"tubemq_spark_{name}", given)


def lag(registry: CollectorRegistry, partition: int) -> float | None:
    return value(registry, "lag_entries", source=0, topic="demo", broker=1, partition=partition)


def test_metrics_of_batches(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    listener.onQueryStarted(started())
    assert value(registry, "batches_total") == 0
    for batch in (0, 1):
        end = offset({"1:0": 280 * (batch + 1), "1:1": 0})
        listener.onQueryProgress(progress(source(end, offset({"1:0": 840, "1:1": 28}), 10), batch=batch, sink_rows=9))
    assert value(registry, "query_active") == 1
    assert value(registry, "batches_total") == 2
    assert value(registry, "batch_seconds_sum") == 4
    assert value(registry, "rows_total", source=0) == 20
    assert value(registry, "sink_rows_total") == 18
    assert value(registry, "last_report_timestamp_seconds") == BEGAN_AT + 2
    assert (lag(registry, 0), lag(registry, 1)) == (10, 1)


def test_an_idle_query_reports(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    listener.onQueryStarted(started())
    listener.onQueryIdle(idle())
    assert value(registry, "last_report_timestamp_seconds") == BEGAN_AT


def test_counters_grow_over_the_runs_of_a_query(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    """A source counts from 0 again in each run."""
    for totals in ((2, 5), (1,)):
        listener.onQueryStarted(started())
        for total in totals:
            counters = {"retries": total, "claimWaits": 0, "losses": 1, "lostEntries": 25}
            listener.onQueryProgress(progress(source(offset({"1:0": 28}), offset({"1:0": 28}, counters))))
        listener.onQueryTerminated(ended())
    assert value(registry, "driver_retries_total", source=0) == 6
    assert value(registry, "driver_claim_waits_total", source=0) == 0
    assert value(registry, "driver_losses_total", source=0) == 2
    assert value(registry, "driver_lost_entries_total", source=0) == 50


def test_counts_of_tasks_go_on_over_the_runs_of_a_query(
    listener: TubeMQListener, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accumulator lives as long as the application."""
    totals: dict[str, int] = {}
    monkeypatch.setattr("tubemq_spark.monitoring.report.task_counts", lambda query: dict(totals) if query == ID else {})
    for losses in (1, 3):
        listener.onQueryStarted(started())
        totals["losses"] = losses
        listener.onQueryProgress(progress(source(offset({"1:0": 28}), None)))
        listener.onQueryTerminated(ended())
    assert value(registry, "task_losses_total") == 3
    assert value(registry, "task_fetches_total") == 0


def test_tasks_that_cannot_report_have_no_series(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    listener.onQueryProgress(progress(source(offset({"1:0": 28}), None)))
    assert value(registry, "task_losses_total") is None


def test_lag_disappears_with_partition_and_query(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    listener.onQueryProgress(progress(source(offset({"1:0": 0, "1:1": 0}), offset({"1:0": 28, "1:1": 28}))))
    listener.onQueryProgress(progress(source(offset({"1:1": 0}), offset({"1:1": 28}))))
    assert (lag(registry, 0), lag(registry, 1)) == (None, 1)
    listener.onQueryTerminated(ended())
    assert lag(registry, 1) is None
    assert value(registry, "query_active") == 0


@pytest.mark.parametrize(("exception", "error"), [("tubemq_spark.errors.ConfigError: x", "ConfigError"), (None, None)])
def test_failures_are_counted_by_error(
    listener: TubeMQListener, registry: CollectorRegistry, exception: str | None, error: str | None
) -> None:
    listener.onQueryStarted(started())
    listener.onQueryTerminated(ended(exception))
    assert value(registry, "query_failures_total", error=error or "ConfigError") == (1 if error else None)


def test_a_failing_publisher_does_not_stop_the_others(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    written = io.StringIO()
    listener = TubeMQListener(JsonLines(tmp_path / "missing" / "lines.jsonl"), JsonLines(written))
    listener.onQueryStarted(started())
    assert json.loads(written.getvalue())["event"] == "started"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "[monitor-failed] JsonLines could not publish a report" in record.getMessage()


@pytest.mark.parametrize("to_file", [True, False])
def test_json_lines(tmp_path: Path, to_file: bool) -> None:
    stream, file = io.StringIO(), tmp_path / "lines.jsonl"
    listener = TubeMQListener(JsonLines(file if to_file else stream))
    listener.onQueryStarted(started())
    listener.onQueryProgress(progress(source(offset({"1:0": 28}), offset({"1:0": 84}, {"retries": 2}), 1), batch=3))
    listener.onQueryIdle(idle())
    listener.onQueryTerminated(ended("tubemq_spark.errors.ConfigError: column 'a' is bad"))
    text = file.read_text() if to_file else stream.getvalue()
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["started", "batch", "idle", "ended"]
    assert all((line["query"], line["id"], line["run"]) == ("copy", ID, RUN) for line in lines)
    start, batch, is_idle, end = lines
    assert start["decoders"] == speedups.state
    assert (batch["time"], batch["batch"], batch["seconds"], batch["sinkRows"]) == (BEGAN_AT, 3, 2.0, None)
    place = {"topic": "demo", "broker": 1, "partition": 0, "position": 28, "logEnd": 84, "lag": 2}
    assert batch["sources"] == [{"source": 0, "rows": 1, "partitions": [place], "counters": {"retries": 2}}]
    assert is_idle["time"] == BEGAN_AT
    assert (end["error"], end["text"]) == ("ConfigError", "column 'a' is bad")


def test_prometheus_can_read_the_metrics(registry: CollectorRegistry) -> None:
    from urllib.request import urlopen

    metrics = PrometheusMetrics(registry)
    TubeMQListener(metrics).onQueryStarted(started())
    server = metrics.serve(0)
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as reply:
        assert b'tubemq_spark_query_active{query="copy"} 1.0' in reply.read()
    server.stop()


def test_series_of_ended_queries_do_not_stay_for_ever(listener: TubeMQListener, registry: CollectorRegistry) -> None:
    """Those of the last 20 stay, and those of queries that run; errors have a limited number of names, too."""

    def lines() -> int:
        return len(generate_latest(registry).splitlines())

    sizes = []
    listener.onQueryStarted(started("runs", run="other"))
    for number in range(200):
        listener.onQueryStarted(started(f"query {number}"))
        read = source(offset({"1:0": 28}), offset({"1:0": 56}), 1)
        listener.onQueryProgress(progress(read, name=f"query {number}", sink_rows=1))
        listener.onQueryTerminated(ended(f"tubemq_spark.errors.{'X' * (number % 60)}{chr(65 + number % 26)}Error: x"))
        sizes.append(lines())
    assert sizes[40] == sizes[199]
    found = {(sample.labels["query"]) for metric in registry.collect() for sample in metric.samples if sample.labels}
    assert found == {"runs", *(f"query {number}" for number in range(180, 200))}
    errors = {sample.labels.get("error") for metric in registry.collect() for sample in metric.samples}
    assert "other" in errors
