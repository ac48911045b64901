# SPDX-License-Identifier: Apache-2.0
"""Tasks of the sink that Spark gives up because what comes before the sink fails, on a topic that is slow to write."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.spark_jvm import quick_start

ROOT = Path(__file__).parents[2]
ROWS = 3000  # of each of the two tasks


def run(cluster: EmbeddedCluster, folder: Path, attempts: int, **sink: str) -> subprocess.CompletedProcess[str]:
    given = {
        "sink": {"tubemq.master": cluster.master, "topic": "demo", "checkpointLocation": str(folder / "c"), **sink},
        "folder": str(folder),
        "attempts": attempts,
        "java": quick_start(),
    }
    command = [sys.executable, "-m", "tests.spark.failing_upstream", json.dumps(given)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["a task is retried", "the query starts again"])
def test_each_row_once_if_what_comes_before_the_sink_fails(tmp_path: Path, how: str) -> None:
    """A broker needs 1 ms for a message, so most rows still wait in the writer when Spark ends its input. The topic is
    new, so it takes no marks."""
    (tmp_path / "in").mkdir()
    rows = [f"{file} {number}" for file in range(2) for number in range(ROWS)]
    for file in range(2):
        (tmp_path / "in" / f"{file}.txt").write_text("\n".join(rows[file * ROWS : (file + 1) * ROWS]))
    attempts = 4 if how == "a task is retried" else 1
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, brokers=1) as cluster:
        cluster.tubemq.on("send_message").run(lambda: time.sleep(0.001))
        first = run(cluster, tmp_path, attempts, effectivelyOnce="true")
        assert (first.returncode == 0) == (attempts > 1), first.stderr[-3000:]
        if attempts == 1:
            assert "what comes before the sink fails" in first.stderr
            again = run(cluster, tmp_path, attempts, effectivelyOnce="true")
            assert again.returncode == 0, again.stderr[-3000:]
        assert (tmp_path / "failed").exists()
        assert bodies_in(cluster) == Counter(row.encode() for row in rows)
