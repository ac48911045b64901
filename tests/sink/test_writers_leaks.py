# SPDX-License-Identifier: Apache-2.0
"""Hundreds of micro-batches leak nothing in one process, because Spark's workers live as long."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, connections_to, counted
from tests.waiting import wait_until
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, Writing, schema
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import IDENTITY_GROUP

WARM = 20  # batches after which a process has all that it needs
# A heartbeat that finds no idle connection in the pool opens one, which stays: one for each server, here with a file at
# either end and one for the thread.
BEATS = 4


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    topics = {"demo": TopicSpec(partitions=2), "other": TopicSpec(partitions=1)}
    use_timings(task_settling=0.0)
    with embedded_cluster(topics=topics) as running:
        yield running


class Kept(NamedTuple):
    """The resources of a query in this process and at the servers."""

    threads: int
    files: int
    producers: int
    connections: int
    groups: tuple[str, ...]


def kept(cluster: EmbeddedCluster, registered: Any, closed: Any) -> Kept:
    servers = cluster.tubemq._servers.brokers.values()

    def collect() -> tuple[str, ...]:
        return tuple(sorted({key.group for server in servers for key in server.service.offsets._records}))

    groups = cluster.tubemq._on_thread(collect)
    files = len(os.listdir("/proc/self/fd"))
    return Kept(
        threading.active_count(), files, registered.fired - closed.fired, connections_to(cluster.tubemq), groups
    )


def _roles(groups: Iterable[str]) -> set[str]:
    """Return the groups of the sink that each batch needs, those of its scans as one: a scan takes one of a few, where
    no other one reads. The group of looks is needed only where a store may have lost messages."""
    roles = {re.sub(r"_scan_\d+$", "_scan", group) for group in groups} - {IDENTITY_GROUP}
    return {one for one in roles if not one.endswith("_spark_look")}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux shows them")
@pytest.mark.parametrize("once", [False, True], ids=["stamped", "once"])
@pytest.mark.parametrize("batches", [150, pytest.param(1000, marks=pytest.mark.thorough)])
def test_nothing_grows(cluster: EmbeddedCluster, once: bool, batches: int) -> None:
    """Each tenth task fails at a bad row, and Spark attempts it again."""
    registered, closed = counted(cluster, "producer_register"), counted(cluster, "producer_close")
    given = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()} if once else {"stampRows": True}
    task = Task()
    written: Counter[bytes] = Counter()
    early: Kept | None = None
    for _ in range(40):  # a store without messages takes no marks of tasks
        cluster.tubemq.send("demo", b"before")
    written[b"before"] = 40
    for batch in range(batches):
        rows = [{"value": b"%d %d" % (batch, row), "key": b"k" if row else None} for row in range(3)]
        writing = Writing(cluster, schema(rows), "demo", streaming=True, **given)
        if batch % 10 == 9:
            with pytest.raises(ConfigError, match="row 1 of task partition 0, column 'value': it is null"):
                writing.write([rows[0], {"value": None, "key": None}, rows[2]], task)
            written[rows[0]["value"]] += not once  # type: ignore[index]
            done = writing.write(rows, task.again())
        else:
            done = writing.write(rows, task)
        writing.commit([done], batch)
        written.update(row["value"] for row in rows)  # type: ignore[misc]
        task = task.next()
        if batch == WARM:
            early = kept(cluster, registered, closed)
    assert bodies_in(cluster) == written
    assert early is not None
    # The session's heartbeat has a thread from its first beat on, some seconds after its start.
    allowed = early._replace(
        threads=early.threads + 1, files=early.files + 3 * BEATS, connections=early.connections + BEATS
    )

    def is_over() -> bool:
        """A reader's heartbeat ends after the reader, and servers notice closed connections late."""
        late = kept(cluster, registered, closed)
        return all(getattr(late, what) <= getattr(allowed, what) for what in ("threads", "files", "connections"))

    wait_until(is_over, f"{allowed}")
    late = kept(cluster, registered, closed)
    assert late.producers == early.producers == 1
    assert _roles(late.groups) == _roles(early.groups)
    assert len(_roles(late.groups)) == (3 if once else 0)
