# SPDX-License-Identifier: Apache-2.0
"""Monitoring of streaming queries, classic and Connect: docs/howto/monitoring.md.

    metrics = PrometheusMetrics()
    metrics.serve(9108)
    spark.streams.addListener(TubeMQListener(metrics, JsonLines("progress.jsonl")))

Each publisher, here two, receives one report for each micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubemq_spark.monitoring.json_lines import JsonLines
from tubemq_spark.monitoring.listener import Publisher, TubeMQListener
from tubemq_spark.monitoring.report import BatchReport, EndReport, PartitionReport, Query, SourceReport

if TYPE_CHECKING:
    from tubemq_spark.monitoring.prometheus import PrometheusMetrics

__all__ = [
    "BatchReport",
    "EndReport",
    "JsonLines",
    "PartitionReport",
    "PrometheusMetrics",
    "Publisher",
    "Query",
    "SourceReport",
    "TubeMQListener",
]


def __getattr__(name: str) -> object:
    # Imported on first use, because prometheus-client may be missing.
    if name == "PrometheusMetrics":
        from tubemq_spark.monitoring.prometheus import PrometheusMetrics

        return PrometheusMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
