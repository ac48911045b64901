# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector runs rarely while a task writes, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.without_spark.sink import Writing, schema
from tubemq_spark.sink.task_writer import RARE, rare_collections

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, brokers=1) as running:
        yield running


@pytest.mark.parametrize("by_rows", [False, True], ids=["batches", "rows"])
def test_a_task_collects_rarely_and_leaves_the_setting_as_it_was(cluster: EmbeddedCluster, by_rows: bool) -> None:
    seen: list[int] = []
    rows = [{"value": b"%d" % n} for n in range(3000)]
    writing = Writing(cluster, schema(rows), "demo", by_rows=by_rows)

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    writing.write(rows[:1])
    gc.collect()
    gc.callbacks.append(note)
    try:
        writing.write(rows)
    finally:
        gc.callbacks.remove(note)
    assert len(seen) <= 6  # instead of about 30; some run before and after the task
    assert gc.get_threshold() == USUAL


def test_tasks_that_overlap_share_the_setting() -> None:
    one, other = rare_collections(), rare_collections()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() == (RARE, *USUAL[1:])
    other.__exit__(None, None, None)
    assert gc.get_threshold() == USUAL


def test_a_setting_that_changes_meanwhile_is_kept() -> None:
    with rare_collections():
        gc.set_threshold(5000, 5, 5)
    assert gc.get_threshold() == (5000, 5, 5)
    with rare_collections():
        assert gc.get_threshold() == (RARE, 5, 5)
    assert gc.get_threshold() == (5000, 5, 5)
