# SPDX-License-Identifier: Apache-2.0
"""Tests that the dashboard and the alert rules ask for metrics that exist, and that a real Prometheus answers them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from tests.monitoring.events import ended, offset, progress, source, started
from tubemq_spark import register
from tubemq_spark.monitoring import PrometheusMetrics, TubeMQListener
from tubemq_spark.testing import EmbeddedTubeMQ

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS = FOLDER / "alerts.yml"
PANELS = DASHBOARD["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
_NAME = re.compile(r"\btubemq_spark_\w+")
SECONDS = 120.0
HIDDEN = ("_created", "_sum", "_count")  # that come with the others


def published() -> set[str]:
    """Return the names of all metrics, from a listener that has seen each event."""
    registry = CollectorRegistry()
    listener = TubeMQListener(PrometheusMetrics(registry))
    listener.onQueryStarted(started())
    with mock.patch("tubemq_spark.monitoring.report.task_counts", return_value={"fetches": 1}):
        listener.onQueryProgress(progress(source(offset({"1:0": 0}), offset({"1:0": 28}, {"retries": 1})), sink_rows=1))
    names = {sample.name for metric in registry.collect() for sample in metric.samples}
    listener.onQueryTerminated(ended("tubemq_spark.errors.ConfigError: x"))
    return names | {sample.name for metric in registry.collect() for sample in metric.samples}


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    asked = {name for _, query in QUERIES for name in _NAME.findall(query)}
    asked |= set(_NAME.findall(ALERTS.read_text(encoding="utf-8")))
    assert asked - published() == set()


def test_the_page_has_a_row_for_each_metric() -> None:
    page = (FOLDER.parent / "howto" / "monitoring.md").read_text(encoding="utf-8")
    rows = {name for line in page.splitlines() if line.startswith("| `") for name in _NAME.findall(line)}
    assert rows == {name.removesuffix("_bucket") for name in published() if not name.endswith(HIDDEN)}


def test_the_dashboard_shows_each_metric() -> None:
    shown = {name for _, query in QUERIES for name in _NAME.findall(query)}
    hidden = {name for name in published() if not name.endswith(HIDDEN)} - shown
    assert hidden == set()


# With a real Prometheus


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        problem = f"{name} is missing; on Debian: sudo apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    return found


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.1)
    return found


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as reply:
            return json.load(reply)["data"]

    def is_ready(self) -> bool:
        try:
            with urlopen(f"http://{self._address}/-/ready", timeout=30) as reply:
                return bool(reply.status == 200)
        except (URLError, ConnectionError):
            return False


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Prometheus]:
    """Run Prometheus with the alert rules; it asks `target`, a port of this machine, each second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "spark", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # YAML accepts JSON
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        server = Prometheus(address)
        wait_for(lambda: process.poll() is not None or server.is_ready(), "the start of Prometheus")
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(60)


def as_grafana_asks(query: str) -> str:
    """Return a query with Grafana's variables replaced, for a dashboard that shows all queries."""
    return query.replace("$query", ".*").replace("$__rate_interval", "1m")


@pytest.mark.thorough
def test_alert_rules_are_valid() -> None:
    command = [program("promtool"), "check", "rules", str(ALERTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout


@pytest.mark.thorough
def test_each_query_of_the_dashboard_has_data_from_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    program("prometheus")
    register(spark)
    metrics = PrometheusMetrics(CollectorRegistry())
    server = metrics.serve(0)
    listener = TubeMQListener(metrics)
    spark.streams.addListener(listener)
    try:
        with EmbeddedTubeMQ({"demo": 2}) as tubemq, prometheus(tmp_path, server.port) as prom:
            options = {"tubemq.master": tubemq.master, "subscribe": "demo", "startingOffsets": "earliest"}
            tubemq.send("demo", b"first")
            failing = spark.readStream.format("tubemq").options(**options, **{"tubemq.group": "failing"}).load()
            failed = failing.selectExpr("assert_true(value IS NULL)").writeStream.format("noop").queryName("failing")
            wrong = failed.option("checkpointLocation", str(tmp_path / "failing")).start()
            wait_for(lambda: not wrong.isActive, "the failure")

            frame = spark.readStream.format("tubemq").options(**options, **{"tubemq.group": "copying"}).load()
            writer = frame.select("value").writeStream.format("noop").queryName("copying")
            query = writer.option("checkpointLocation", str(tmp_path / "copying")).start()
            missing = {expression: title for title, expression in QUERIES}

            def all_answered() -> bool:
                tubemq.send("demo", b"next")
                for expression in list(missing):
                    result = prom.get("query", query=as_grafana_asks(expression))["result"]
                    if result and all(one["value"][1] != "NaN" for one in result):
                        del missing[expression]
                return not missing

            try:
                wait_for(all_answered, f"data for {sorted(set(missing.values()))}")
            finally:
                query.stop()
            rules = wait_for(lambda: prom.get("rules")["groups"], "the rules")[0]["rules"]
            wait_for(lambda: all(rule["health"] == "ok" for rule in prom.get("rules")["groups"][0]["rules"]), "rules")
            assert len(rules) == 4
            alerts = wait_for(lambda: prom.get("alerts")["alerts"], "an alert")
            assert "TubeMQQueryFailed" in {alert["labels"]["alertname"] for alert in alerts}
    finally:
        spark.streams.removeListener(listener)
        server.stop()
