# SPDX-License-Identifier: Apache-2.0
"""Starts and stops of queries, and reads that end in the middle, leave nothing behind in a process that lives on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import UseTimings
from tests.sending import connections_to
from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import Stream, fill, options
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

ROUNDS = 40
WARM = 5  # rounds after which a process has all that it needs


def start_and_stop(tubemq: EmbeddedTubeMQ) -> None:
    with Stream(tubemq, "t").running() as run:
        run.next()


def abandon(tubemq: EmbeddedTubeMQ) -> None:
    """As Spark closes the rows of a task that is cancelled."""
    source = TubeMQDataSource(options(tubemq, "t"))
    reader = source.reader(source.schema())
    for task in reader.partitions():
        batches: Any = reader.read(task)
        assert next(batches)
        assert any(group.endswith("_spark_batch") for group, *_ in tubemq.claims())
        batches.close()


def kept(tubemq: EmbeddedTubeMQ) -> tuple[int, ...]:
    """Return the numbers of threads, files and connections."""
    return threading.active_count(), len(os.listdir("/proc/self/fd")), connections_to(tubemq)


@pytest.mark.timeout(60)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux shows them")
@pytest.mark.parametrize("once", [start_and_stop, abandon])
def test_nothing_grows(
    start: Start, use_timings: UseTimings, monkeypatch: pytest.MonkeyPatch, once: Callable[[EmbeddedTubeMQ], None]
) -> None:
    use_timings(heartbeat_period=0.02)
    monkeypatch.setattr("tubemq_spark.source.input_partition.ROWS", 20)
    tubemq = start({"t": 2}, config=ServerConfig(transfer_size=512))
    fill(tubemq, "t", 400)
    for _ in range(WARM):
        once(tubemq)
    early = kept(tubemq)
    for _ in range(ROUNDS):
        once(tubemq)

    def is_over() -> bool:
        """Heartbeats may open some connections at any time, and servers notice closed ones late."""
        return all(late < before + ROUNDS / 4 for late, before in zip(kept(tubemq), early, strict=True))

    wait_until(is_over, f"{early}")
    assert not tubemq.claims()
