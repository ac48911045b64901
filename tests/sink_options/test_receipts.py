# SPDX-License-Identifier: Apache-2.0
"""`receipts`: where each row landed, to be believed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.clusters import Cluster
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, Writing, bodies, own, read_back, save, schema
from tubemq_spark.errors import ConfigError

pytestmark = pytest.mark.sink_option("receipts")

ROWS: list[dict[str, Any]] = [{"value": b"%d" % n, "key": b"%d" % (n % 5)} for n in range(30)]


def receipts(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each file."""
    return {file.name: pq.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))}


def landed(cluster: Cluster, topic: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return all rows as the source reads them, by their location."""
    found = {}
    for row in read_back(cluster, topic):
        found[row["broker_id"], row["partition"], row["message_id"]] = row
    return found


@pytest.mark.parametrize("streaming", [True, False])
def test_receipts_locate_the_messages(cluster: Cluster, tmp_path: Path, streaming: bool) -> None:
    """If a partition has a store of its own, also by their positions."""
    topic = cluster.new_topic("one")
    writing = Writing(cluster, schema(ROWS), topic, streaming=streaming, receipts=tmp_path)
    tasks = [Task("query", batch=12, partition=part) for part in (1, 0)]
    began = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    written = [writing.write(ROWS[10 * part : 20 + 10 * part], task) for part, task in enumerate(tasks)]
    ended = datetime.now(timezone.utc)
    assert list(tmp_path.iterdir()) == []
    writing.commit(written, 12)

    name = "query-0000000012" if streaming else str(writing.plan.write_id)
    ((file, rows),) = receipts(tmp_path).items()
    assert file == f"{name}.parquet"
    assert {row["spark_id"] for row in rows} == {"query" if streaming else writing.plan.write_id}
    assert {row["spark_batch"] for row in rows} == {12 if streaming else None}
    assert [(row["spark_partition"], row["spark_row"]) for row in rows] == [(p, n) for p in (0, 1) for n in range(20)]
    there = landed(cluster, topic)
    assert len(there) == 40
    for row in rows:
        message = there[row["broker_id"], row["partition"], row["message_id"]]
        assert row["topic"] == topic
        assert message["value"] == ROWS[row["spark_row"] + (10 if row["spark_partition"] == 0 else 0)]["value"]
        assert message["offset"] == row["offset"]
        # Other tests may have put the embedded servers' clock forward.
        assert began <= row["append_time"] <= ended + timedelta(days=1)


def test_rows_of_an_earlier_attempt_have_receipts(cluster: Cluster, tmp_path: Path) -> None:
    topic, task = cluster.new_topic("one"), Task()
    once: dict[str, Any] = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()}
    writing = Writing(cluster, schema(ROWS), topic, streaming=True, receipts=tmp_path, **once)
    writing.write(ROWS[:10], task)
    writing.commit([writing.write(ROWS, task.again())], 0)
    ((_, rows),) = receipts(tmp_path).items()
    there = landed(cluster, topic)
    bodies_of = [there[row["broker_id"], row["partition"], row["message_id"]]["value"] for row in rows]
    assert bodies_of == [row["value"] for row in ROWS]


@pytest.mark.sink_option("failedRows", "deadLetterTopic")
@pytest.mark.parametrize("failed_rows", ["drop", "deadLetter"])
def test_rows_that_were_not_sent_have_no_receipts(cluster: Cluster, tmp_path: Path, failed_rows: str) -> None:
    topic, dead = cluster.new_topic("one"), cluster.new_topic("one")
    rows = [{"value": None if n % 3 else b"%d" % n} for n in range(10)]
    given: dict[str, Any] = {"deadLetterTopic": dead} if failed_rows == "deadLetter" else {}
    save(cluster, rows, topic, failedRows=failed_rows, receipts=tmp_path, **given)
    ((_, found),) = receipts(tmp_path).items()
    assert [(row["spark_row"], row["topic"]) for row in found] == [(n, topic) for n in (0, 3, 6, 9)]


def test_a_batch_without_rows_has_an_empty_file(cluster: Cluster, demo: str, tmp_path: Path) -> None:
    writing = Writing(cluster, schema(), demo, streaming=True, receipts=tmp_path)
    writing.commit([writing.write([], Task("query"))])
    assert receipts(tmp_path) == {"query-0000000000.parquet": []}


def test_without_the_option_there_are_no_receipts(cluster: Cluster, demo: str) -> None:
    assert save(cluster, ROWS, demo).receipts is None


def test_an_impossible_folder_fails_in_the_plan(cluster: Cluster, demo: str, tmp_path: Path) -> None:
    """The plan fails before any row is sent."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "inside", "nosuch://bucket/x"):
        with pytest.raises(ConfigError, match=r"^option 'receipts': folder '.*' .*; name a folder that the driver can"):
            save(cluster, ROWS, demo, receipts=folder)
    assert bodies(cluster, demo) == []


def test_a_folder_that_disappears_before_the_commit(cluster: Cluster, demo: str, tmp_path: Path) -> None:
    """The commit creates it again. If that fails, the error says that the rows are stored."""
    folder = tmp_path / "folder"
    writing = Writing(cluster, schema(ROWS), demo, streaming=True, receipts=folder)
    written = writing.write(ROWS, Task("query"))
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(ConfigError, match=r"^the rows are stored, but not their receipts: option 'receipts': "):
        writing.commit([written])
    folder.unlink()
    writing.commit([written])
    assert [len(rows) for rows in receipts(folder).values()] == [30]
    assert {own(message).get("spark_row") for message in stored_in(cluster, demo)} == {None}
