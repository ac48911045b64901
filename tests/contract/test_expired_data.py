# SPDX-License-Identifier: Apache-2.0
"""A real broker removes data files before their index while a batch read and a stream stand in the middle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import messages
from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.real.jars import PUBLISHED
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.waiting import wait_until
from tests.without_spark.source import UNIT, Row, Stream, options
from tubemq_spark.client import forget_servers
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import DataLossError

pytestmark = [pytest.mark.real, pytest.mark.thorough]

COUNT = 9_000
BODY = b"%08d" + b"." * 4088
TOPICS = {"own": 1, "shared": 3, "stream": 1}  # partitions, in one store
RANGE = re.compile(r"1:(\w+):(\d+): retention removed the data of \[(\d+), (\d+)\)")

Positions = dict[int, tuple[int, int]]  # of messages, by number: partition and position


@pytest.fixture(scope="module", params=PUBLISHED)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Data files of 8 MiB and index files of 20 000 entries, of which the broker keeps those of a minute."""
    topics = {
        topic: TopicSpec(partitions=count, delete_policy="delete,1m", settings=FLUSH_SOON)
        for topic, count in TOPICS.items()
    }
    segments = {"maxSegmentSize": "8388608", "maxIndexSegmentSize": "560000", "logClearupDurationMs": "60000"}
    with needs_tools():
        cluster = RealCluster(
            topics=topics,
            brokers=1,
            release=request.param,
            broker_options=segments,
            folder=tmp_path_factory.mktemp("retention"),
        )
    with cluster:
        yield cluster
        forget_servers()


def fill(cluster: RealCluster, topic: str) -> Positions:
    partitions = messages.partitions(cluster, topic)
    sent = messages.send(cluster, [(partitions[number % len(partitions)], BODY % number) for number in range(COUNT)])
    cluster.wait_flushed(topic)
    return {int(one.body[:8]): (p.partition_id, one.position) for p, several in sent.items() for one in several}


def wait_for_retention(cluster: RealCluster, topic: str) -> None:
    """Until only the data file in use is left, and all of the index."""
    store = cluster._data(1) / f"{topic}-0"
    wait_until(lambda: len(list(store.glob("*.tube"))) == 1, "retention", patience=420)
    assert len(list((store / "index").iterdir())) == 1


class BatchRead:
    """A batch read of a topic that was planned when all messages were there."""

    def __init__(self, cluster: RealCluster, topic: str) -> None:
        self._readers: dict[str, Any] = {}
        for fail in ("false", "true"):
            source = TubeMQDataSource(options(cluster, topic, failOnDataLoss=fail))
            self._readers[fail] = source.reader(source.schema())
        self._tasks = {fail: reader.partitions() for fail, reader in self._readers.items()}
        self._begun: list[Iterator[Any]] = []

    def begin(self, tasks: int) -> list[Row]:
        """The first rows of some tasks."""
        self._begun = [self._readers["false"].read(task) for task in self._tasks["false"][:tasks]]
        return [row for batches in self._begun for row in rows_of(next(batches))]

    def go_on(self) -> list[Row]:
        """All other rows, those of the other tasks, too."""
        others = [self._readers["false"].read(task) for task in self._tasks["false"][len(self._begun) :]]
        return [row for batches in (*self._begun, *others) for batch in batches for row in rows_of(batch)]

    def read_last_task(self) -> None:
        """Read it as a query that fails on data loss."""
        list(self._readers["true"].read(self._tasks["true"][-1]))


def rows_of(batch: Any) -> list[Row]:
    rows: list[Row] = batch.to_pylist()
    return rows


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["value"][:8]) for row in rows]


def check(topic: str, stored: Positions, rows: list[Row], caplog: pytest.LogCaptureFixture) -> None:
    """No row comes twice, and the log names a range for each that is missing."""
    read = set(numbers(rows))
    assert len(rows) == len(read)
    missing = [place for number, place in stored.items() if number not in read]
    assert missing, "the test must miss some messages"
    found = [one for record in caplog.records for one in RANGE.finditer(record.message) if one[1] == topic]
    ranges = [(int(one[2]), int(one[3]), int(one[4])) for one in found]
    assert [
        (partition, position)
        for partition, position in missing
        if not any(named == partition and begin <= position < end for named, begin, end in ranges)
    ] == []


def test_files_go_while_reads_stand_in_the_middle(cluster: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Of each batch read two tasks have begun then, as many as there are, and a stream has its first batch in work."""
    stored = {topic: fill(cluster, topic) for topic in TOPICS}
    rows: dict[str, list[Row]] = {topic: [] for topic in TOPICS}
    batch_reads = {topic: BatchRead(cluster, topic) for topic in ("own", "shared")}
    for topic, read in batch_reads.items():
        rows[topic] += read.begin(tasks=2)
    stream = Stream(cluster, "stream", maxOffsetsPerTrigger=1000, failOnDataLoss="false")
    with stream.running() as run:
        assert run.find_next()
        [tasks] = run.plan()
        batches = run.read(tasks)
        rows["stream"] += rows_of(next(batches))
        for topic in TOPICS:
            wait_for_retention(cluster, topic)
        for topic, read in batch_reads.items():
            rows[topic] += read.go_on()
            check(topic, stored[topic], rows[topic], caplog)
        for batch in batches:
            rows["stream"] += rows_of(batch)
        stream.commit(rows["stream"])
        while run.next() is not None:
            pass
    check("stream", stored["stream"], stream.rows, caplog)
    for read in batch_reads.values():
        with pytest.raises(DataLossError) as caught:
            read.read_last_task()
        assert (caught.value.asked, caught.value.offered >= 5000 * UNIT) == (0, True)
    failing = Stream(cluster, "stream")
    failing.checkpoint = stream.checkpoint
    failing.checkpoint.committed = 1
    with pytest.raises(DataLossError) as caught:
        failing.run()
    assert (caught.value.asked, caught.value.offered >= 5000 * UNIT) == (1000 * UNIT, True)
