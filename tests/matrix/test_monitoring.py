# SPDX-License-Identifier: Apache-2.0
"""Monitoring on each release of Spark: the listener hears of a query, with lag and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.pipeline import HAS_READ_LIMITS, Pipeline
from tubemq_spark.monitoring import JsonLines, TubeMQListener


@pytest.mark.quick
def test_listener_reports_each_batch(pipe: Pipeline, tmp_path: Path) -> None:
    pipe.tubemq.create_topic("watched", partitions=2)
    pipe.tubemq.create_topic("copied")
    pipe.send("watched", *(b"%d" % number for number in range(20)))
    file = tmp_path / "lines.jsonl"
    listener = TubeMQListener(JsonLines(file))
    pipe.spark.streams.addListener(listener)

    def lines(event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in found if line["event"] == event]

    try:
        pipe.run_to_the_end(pipe.stream("watched"), "copied")
        pipe.wait_for(lambda: lines("ended"), "the last report")
    finally:
        pipe.spark.streams.removeListener(listener)
    assert len(lines("started")) == 1
    reported = [source for line in lines("batch") for source in line["sources"]]
    assert sum(source["rows"] for source in reported) == 20
    assert {one["lag"] for one in reported[-1]["partitions"]} == {0}
    assert {one["topic"] for one in reported[-1]["partitions"]} == {"watched"}
    assert ("retries" in reported[-1]["counters"]) is HAS_READ_LIMITS
    assert lines("ended")[0]["error"] is None
