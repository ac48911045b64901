# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` and its options: one message for each row, however many attempts a task has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Cells, Task, Writing, bodies, own, save, schema
from tubemq_spark.errors import ConfigError, RowError
from tubemq_spark.sink.commit import Written

ON_THE_CLIENT = pytest.mark.parametrize("cluster", [EMBEDDED, *REAL_THOROUGHLY], indirect=True)
"""The client alone decides; a real server proves it once more."""


pytestmark = pytest.mark.sink_option("effectivelyOnce")

ROWS = [{"value": b"%d" % n} for n in range(20)]
BODIES = sorted(row["value"] for row in ROWS)


class Query:
    """A stream of one task, with a checkpoint of its own."""

    def __init__(self, cluster: Cluster, topic: str | None, **given: Any) -> None:
        self.task = Task()
        self._cluster = cluster
        self._topic = topic
        self._given: dict[str, Any] = {
            "effectivelyOnce": True,
            "checkpointLocation": new_checkpoint(),
            **given,
        }
        self._writing: Writing | None = None

    def plan(self, rows: Sequence[Cells] = ROWS) -> Writing:
        """Begin a micro-batch."""
        self._writing = Writing(self._cluster, schema(rows), self._topic, streaming=True, **self._given)
        return self._writing

    def write(self, rows: Sequence[Cells] = ROWS) -> Written:
        return (self._writing or self.plan(rows)).write(rows, self.task)

    def again(self, rows: Sequence[Cells] = ROWS) -> Written:
        """Let Spark attempt the task again."""
        self.task = self.task.again()
        return self.write(rows)

    def in_repeated_stage(self, rows: Sequence[Cells] = ROWS) -> Written:
        """Let Spark attempt the task again, in another attempt of its stage."""
        self.task = self.task.in_repeated_stage()
        return self.write(rows)

    def replay(self, rows: Sequence[Cells] = ROWS) -> Written:
        """Restart the query, whose first micro-batch is the uncommitted one."""
        self.task = self.task.restarted()
        self.plan(rows)
        return self.write(rows)

    def commit(self, written: Written) -> None:
        assert self._writing is not None
        self._writing.commit([written], self.task.batch)
        self.task, self._writing = self.task.next(), None


TRIES = pytest.mark.parametrize("again", [Query.again, Query.replay], ids=["task", "batch"])


# Stored rows are not sent again


@TRIES
@pytest.mark.parametrize("stored", [0, 1, 12, 20])
def test_an_attempt_sends_only_missing_rows(cluster: Cluster, demo: str, again: Any, stored: int) -> None:
    query = Query(cluster, demo)
    query.write(ROWS[:stored])
    written = again(query)
    assert bodies(cluster, demo) == BODIES
    assert (written.already_stored, sum(written.rows.values())) == (stored, 20 - stored)
    assert {int(own(message)["spark_row"]) for message in stored_in(cluster, demo)} == set(range(20))


@ON_THE_CLIENT
@TRIES
def test_packed_and_compressed_rows_are_recognized(cluster: Cluster, again: Any) -> None:
    """A digest is that of the row, because the body of a pack contains the present time."""
    topic = cluster.new_topic("one")
    rows = [{"value": b"%d" % n, "inlong_group": "g", "inlong_stream": "s"} for n in range(10)]
    query = Query(cluster, topic, messageFormat="inlongmsg", compression="gzip")
    query.write(rows[:4])
    assert again(query, rows).already_stored == 4
    assert len(stored_in(cluster, topic)) == 10


# Unknown outcomes: `effectivelyOnceUncertain`


@ON_THE_CLIENT
@TRIES
@pytest.mark.sink_option("effectivelyOnceUncertain")
def test_changed_rows_fail_the_task(cluster: Cluster, demo: str, again: Any) -> None:
    changed = [*ROWS[:5], {"value": b"changed"}, *ROWS[6:]]
    careful = Query(cluster, demo)
    careful.write(ROWS[:10])
    with pytest.raises(ConfigError, match=r"^task partition 0 of batch 0: an earlier attempt .* stored 1 rows"):
        again(careful, changed)
    assert bodies(cluster, demo) == sorted([*BODIES, b"changed"])


@ON_THE_CLIENT
@TRIES
@pytest.mark.sink_option("effectivelyOnceUncertain")
def test_changed_rows_may_be_accepted(
    cluster: Cluster, demo: str, again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, demo, effectivelyOnceUncertain="sendAgain")
    query.write(ROWS[:10])
    written = again(query, [{"value": b"changed"}, *ROWS[1:]])
    assert (written.already_stored, sum(written.rows.values())) == (9, 11)
    assert bodies(cluster, demo) == sorted([*BODIES, b"changed"])
    assert "an earlier attempt of the task has stored 1 rows that are not among its rows now" in caplog.text
    assert "may store some rows twice, as option 'effectivelyOnceUncertain' allows" in caplog.text


@TRIES
def test_fewer_equal_rows_fail_the_task(cluster: Cluster, demo: str, again: Any) -> None:
    """The others may be rows of another task now."""
    query = Query(cluster, demo)
    query.write([ROWS[0]] * 3)
    with pytest.raises(ConfigError, match=r"an earlier attempt .* stored 2 rows"):
        again(query, ROWS[:1])


@TRIES
def test_copies_of_rows_do_not_fail_the_task(
    cluster: Cluster, demo: str, again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark repeats a stage, and the topic has too few messages for marks: both attempts store all rows."""
    query = Query(cluster, demo)
    query.commit(query.write(ROWS[:1]))
    query.write()
    assert query.in_repeated_stage(ROWS[::-1]).already_stored == 0
    assert again(query).already_stored == 20
    assert bodies(cluster, demo) == sorted([ROWS[0]["value"], *2 * BODIES])
    assert "[rows-twice] task partition 0 of batch 1: earlier attempts have stored 20 copies of its rows" in caplog.text


@TRIES
@pytest.mark.sink_option("effectivelyOnceMaxOffsets", "effectivelyOnceUncertain")
def test_too_many_messages_to_search_fail_the_task(cluster: Cluster, demo: str, again: Any) -> None:
    query = Query(cluster, demo, effectivelyOnceMaxOffsets=5)
    query.write(ROWS[:10])
    with pytest.raises(ConfigError, match=rf"topic {demo} received \d+ messages .*'effectivelyOnceMaxOffsets' .* 5 "):
        again(query)
    assert bodies(cluster, demo) == sorted(row["value"] for row in ROWS[:10])


@ON_THE_CLIENT
@TRIES
@pytest.mark.sink_option("effectivelyOnceMaxOffsets", "effectivelyOnceUncertain")
def test_without_a_search_all_rows_may_be_sent_again(
    cluster: Cluster, demo: str, again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(cluster, demo, effectivelyOnceMaxOffsets=5, effectivelyOnceUncertain="SendAgain")
    query.write(ROWS[:10])
    assert again(query).already_stored == 0
    assert bodies(cluster, demo) == sorted([*(row["value"] for row in ROWS[:10]), *BODIES])
    assert "'effectivelyOnceMaxOffsets' lets a task read only 5" in caplog.text


@pytest.mark.sink_option("effectivelyOnceMaxOffsets")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_task_reads_as_many_messages_as_the_option_allows(cluster: Cluster, layout: Layout) -> None:
    """It does not matter how many partitions share a store."""
    topic = cluster.new_topic(layout)
    query = Query(cluster, topic, effectivelyOnceMaxOffsets=10)
    query.write(ROWS[:10])
    assert query.again().already_stored == 10
    assert bodies(cluster, topic) == BODIES
    with pytest.raises(ConfigError, match=f"topic {topic} received 20 messages since"):
        query.again()


# Where the state is: `effectivelyOnceLocation`, or the checkpoint


@ON_THE_CLIENT
@pytest.mark.sink_option("effectivelyOnceLocation")
@pytest.mark.parametrize("where", ["checkpoint", "location"])
def test_the_state_is_in_one_file(cluster: Cluster, demo: str, where: str, tmp_path: Path) -> None:
    checkpoint, location = new_checkpoint(), tmp_path / "once"
    given = {"effectivelyOnceLocation": location, "checkpointLocation": None} if where == "location" else {}
    query = Query(cluster, demo, **{"checkpointLocation": checkpoint, **given})
    query.commit(query.write())
    folder = location if where == "location" else Path(checkpoint, "tubemq")
    assert [file.name for file in folder.iterdir()] == ["effectively-once.json"]
    query.write(ROWS[:10])
    query.commit(query.replay())
    assert bodies(cluster, demo) == sorted(2 * BODIES)


def test_only_an_unfinished_batch_is_searched(cluster: Cluster, demo: str) -> None:
    """A query that was stopped between two batches begins as a new one does, whatever others have written."""
    query = Query(cluster, demo, effectivelyOnceMaxOffsets=1)
    for _ in range(3):
        query.commit(query.write())
        query.task = query.task.restarted()
    assert bodies(cluster, demo) == sorted(3 * BODIES)


def test_a_batch_that_spark_did_not_note_is_found_again(cluster: Cluster, demo: str) -> None:
    """Spark crashes between the commit of the sink and its own."""
    query = Query(cluster, demo)
    task = query.task
    query.commit(query.write())
    query.task = task
    query.plan()
    assert query.write().already_stored == 20
    query.commit(query.again())
    query.commit(query.write())
    assert bodies(cluster, demo) == sorted(2 * BODIES)


# Rows that name their topic: `effectivelyOnceTopics`


@pytest.mark.sink_option("effectivelyOnceTopics", "failedRows")
@pytest.mark.parametrize("failed_rows", ["fail", "drop"])
def test_rows_may_name_the_topics_of_the_option(cluster: Cluster, demo: str, topic: str, failed_rows: str) -> None:
    other = cluster.new_topic("one")
    some = [{**row, "topic": name} for row in ROWS[:5] for name in (demo, topic)]
    query = Query(cluster, None, effectivelyOnceTopics=f"{demo}, {topic}", failedRows=failed_rows)
    query.write(some[:4])
    written = query.again(some)
    assert (written.already_stored, sum(written.rows.values())) == (4, 6)
    query.commit(written)
    stray = [{"value": b"stray", "topic": other}]
    if failed_rows == "drop":
        assert query.write([*some[:1], *stray]).dropped == 1
    else:
        with pytest.raises(RowError, match=r"topic.*'effectivelyOnceTopics' names: add it"):
            query.write(stray)
    assert bodies(cluster, other) == []


@ON_THE_CLIENT
@pytest.mark.parametrize("checkpoint", [None, "/somewhere"])
def test_a_batch_write_refuses_it(cluster: Cluster, demo: str, checkpoint: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^option 'effectivelyOnce' is for streams; a batch write may use option '"):
        save(cluster, ROWS, demo, effectivelyOnce=True, checkpointLocation=checkpoint)
