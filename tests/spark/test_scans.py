# SPDX-License-Identifier: Apache-2.0
"""Queries that scan the same data several times: unions, joins, sequential and simultaneous actions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.scans import THREADS
from tests.spark.test_exactly_once import ROOT
from tests.spark_jvm import quick_start
from tubemq_spark.testing import EmbeddedTubeMQ

ROWS = 240
STANDS = 14 * 28  # the position of the batch reads' group, before and after
END = ROWS * 28  # of the store


@pytest.mark.usefixtures("spark")  # it skips the test if Java is missing
@pytest.mark.thorough  # in `make test`: tests/client/consumer/test_claim_acquirer.py, without Spark
@pytest.mark.parametrize("master", ["local[6]", "local-cluster[2,2,1024]"])
def test_every_scan_gives_all_rows(master: str, tmp_path: Path) -> None:
    with EmbeddedTubeMQ(topics={"demo": 3}) as tubemq:
        for number in range(ROWS):
            tubemq.send("demo", b"%d" % number)
        for partition in range(3):
            tubemq.move_group("batches", "demo", 1, partition, STANDS)
        options = {"tubemq.master": tubemq.master, "subscribe": "demo"}
        given = {
            "spark": master,
            "options": {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS // 2)},
            "folder": str(tmp_path),
            "java": quick_start(),
        }
        with tubemq.on("partition_register", client="_look_").count() as plans:
            ran = subprocess.run(
                [sys.executable, "-m", "tests.spark.scans", json.dumps(given)], cwd=ROOT, capture_output=True, text=True
            )
        assert ran.returncode == 0, ran.stderr[-5000:]
        assert plans.fired > 0
        assert tubemq.claims() == {}
        stands = {group: tubemq.group_offset(group, "demo", 1, 0) for group in ("batches", "streams")}
        assert stands == {"batches": STANDS, "streams": END}
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found == {
        "batch": {**each(ROWS), "loads": 2 * ROWS, "plans": [ROWS] * THREADS},
        "micro-batch 0": each(ROWS // 2),
        "micro-batch 1": {"count": ROWS // 2},
        "union": ROWS,
    }


def each(rows: int) -> dict[str, object]:
    threads = [rows] * THREADS
    return {"count": rows, "union": 2 * rows, "join": rows, "threads": threads, "cached": threads}
