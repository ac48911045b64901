# SPDX-License-Identifier: Apache-2.0
"""`register(spark, ship=True)` with workers that lack the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubemq_spark
from tests.matrix.bare_python import bare_python
from tests.matrix.pipeline import CONNECT
from tests.matrix.shipped import PUSHES, run
from tubemq_spark.testing import EmbeddedTubeMQ

COUNT = 20


@pytest.mark.quick
def test_batch_stream_and_sink(tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    for topic in ("from", "into"):
        tubemq.create_topic(topic)
    for number in range(COUNT):
        tubemq.send("from", b"%d-a" % number, msg_type="odd" if number % 2 else "even")
    python = bare_python(tmp_path / "bare")
    found, _ = run(python, tmp_path / "run", {"tubemq.master": tubemq.master}, connect=CONNECT)
    assert found == {
        "batch": COUNT,
        "filters": COUNT // 2,
        **({"pushed": COUNT // 2} if PUSHES else {}),
        "fields": ["1", "a"],
        "receipts": COUNT,
        "counted": not CONNECT,  # it has no accumulators
        "problems": [],
        "package": [f"{tubemq_spark.__version__} travels from the driver"],
    }
    copies = sorted(message.body for message in tubemq.messages("into"))
    assert copies == sorted(2 * [b"%d-a" % number for number in range(COUNT)])
