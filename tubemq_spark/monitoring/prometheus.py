# SPDX-License-Identifier: Apache-2.0
"""Reports as Prometheus metrics. Needs the extra `metrics` (prometheus-client)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics import MetricWrapperBase

from tubemq_spark.client.counters import Count
from tubemq_spark.monitoring.report import BatchReport, EndReport, Query

M = TypeVar("M", bound=MetricWrapperBase)

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MAX_ENDED = 20
_MAX_ERRORS = 50
_OTHER = "other"
_PARTITION = ("query", "source", "topic", "broker", "partition")


class MetricsServer:
    """A running HTTP server. `port` is where it listens."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self.port: int = server.server_port
        self._server = server
        self._thread = thread

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class PrometheusMetrics:
    """Metrics of all queries that the listener hears of, labelled `query` with the query's name, or its id without one.

    A query's lag disappears when the query ends. Its counters stay, as Prometheus expects, until 20 other queries have
    ended. After 50 different errors, further ones are counted as `other`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        query, source = ("query",), ("query", "source")
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        self._active = gauge("tubemq_spark_query_active", "1 while the query runs", query)
        self._heard = gauge("tubemq_spark_last_report_timestamp_seconds", "When the query reported last", query)
        self._batches = counter("tubemq_spark_batches", "Micro-batches that have ended", query)
        self._seconds = Histogram(
            "tubemq_spark_batch_seconds", "How long a micro-batch took", query, buckets=_SECONDS, registry=registry
        )
        self._rows = counter("tubemq_spark_rows", "Rows read from TubeMQ", source)
        self._sink_rows = counter("tubemq_spark_sink_rows", "Rows written, if Spark reports them", query)
        self._lag = gauge(
            "tubemq_spark_lag_entries",
            "Index entries of the partition's store that were not read when the batch was planned",
            _PARTITION,
        )
        self._failures = counter("tubemq_spark_query_failures", "Runs that ended with an error", ("query", "error"))
        self._counters = {
            one.key: counter(f"tubemq_spark_driver_{one.name.lower()}", f"{one.text}: in the driver's source", source)
            for one in Count
            if not one.tasks_only
        }
        self._task_counts = {
            one.key: counter(f"tubemq_spark_task_{one.name.lower()}", f"{one.text}: in tasks", query) for one in Count
        }
        self._totals: dict[tuple[str, ...], int] = {}  # by run, source and key, or by query and key: counted so far
        self._shown: dict[str, set[tuple[str, ...]]] = {}  # by run: the labels of its lag
        self._series: defaultdict[str, set[tuple[Any, tuple[str, ...]]]] = defaultdict(set)  # by query, without the lag
        self._ended: dict[str, None] = {}  # queries, in the order of their ends
        self._errors: set[str] = set()

    def serve(self, port: int, address: str = "127.0.0.1") -> MetricsServer:
        """Answer Prometheus at http://address:port/metrics in a daemon thread, until `stop` or the end of the process.

        With port 0 the system chooses one. For a Prometheus on another machine, give the address of this one.
        """
        return MetricsServer(*start_http_server(port, addr=address, registry=self.registry))

    def started(self, query: Query) -> None:
        self._ended.pop(query.label, None)
        self._of(self._active, query.label).set(1)
        self._of(self._batches, query.label)  # from now on it is 0, so that the first increase counts
        self._of(self._heard, query.label).set_to_current_time()

    def batch(self, report: BatchReport) -> None:
        label = report.query.label
        self._of(self._active, label).set(1)
        self._of(self._batches, label).inc()
        self._of(self._seconds, label).observe(report.seconds)
        self._of(self._heard, label).set(report.began + report.seconds)
        if report.sink_rows is not None:
            self._of(self._sink_rows, label).inc(report.sink_rows)
        for source in report.sources:
            self._of(self._rows, label, str(source.number)).inc(source.rows)
            self._count(report.query, self._counters, source.counters, str(source.number))
        if report.task_counts:  # else tasks may be unable to report: no series, because a 0 would say that all is well
            self._count(report.query, self._task_counts, report.task_counts)
        self._show_lag(report)

    def idle(self, query: Query, at: float) -> None:
        self._of(self._heard, query.label).set(at)

    def ended(self, report: EndReport) -> None:
        label, run = report.query.label, report.query.run_id
        self._of(self._active, label).set(0)
        if report.error is not None:
            error = report.error if report.error in self._errors or len(self._errors) < _MAX_ERRORS else _OTHER
            self._errors.add(error)
            self._of(self._failures, label, error).inc()
        for labels in self._shown.pop(run, ()):
            self._lag.remove(*labels)
        self._totals = {key: total for key, total in self._totals.items() if key[0] != run}
        self._ended.pop(label, None)
        self._ended[label] = None
        if len(self._ended) > _MAX_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            for metric, labels in self._series.pop(oldest):
                metric.remove(*labels)

    def _of(self, metric: M, query: str, *more: str) -> M:
        """Return the series of a query."""
        labels = (query, *more)
        self._series[query].add((metric, labels))
        return metric.labels(*labels)

    def _count(self, query: Query, metrics: Mapping[str, Counter], totals: Mapping[str, int], *source: str) -> None:
        for key, metric in metrics.items():
            total, counted = totals.get(key, 0), (query.run_id if source else query.id, *source, key)
            series = self._of(metric, query.label, *source)
            series.inc(max(total - self._totals.get(counted, 0), 0))
            self._totals[counted] = total

    def _show_lag(self, report: BatchReport) -> None:
        shown: set[tuple[str, ...]] = set()
        for source in report.sources:
            for one in source.partitions:
                where = one.partition
                place = (where.topic, str(where.broker_id), str(where.partition_id))
                labels = (report.query.label, str(source.number), *place)
                self._lag.labels(*labels).set(one.lag)
                shown.add(labels)
        for gone in self._shown.get(report.query.run_id, set()) - shown:
            self._lag.remove(*gone)
        self._shown[report.query.run_id] = shown
