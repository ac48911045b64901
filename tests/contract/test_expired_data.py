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
RANGE = re.compile(r"1:\w+:(\d+): retention removed the data of \[(\d+), (\d+)\)")

Positions = dict[int, tuple[int, int]]  # of messages, by number: partition and position


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Data files of 8 MiB and index files of 20 000 entries, of which the broker keeps those of a minute."""
    topics = {
        topic: TopicSpec(partitions=count, delete_policy="delete,1m", settings=FLUSH_SOON)
        for topic, count in TOPICS.items()
    }
    segments = {"maxSegmentSize": "8388608", "maxIndexSegmentSize": "560000", "logClearupDurationMs": "60000"}
    with needs_tools():
        cluster = RealCluster(
            topics=topics, brokers=1, broker_options=segments, folder=tmp_path_factory.mktemp("retention")
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
    wait_until(lambda: len(list(store.glob("*.tube"))) == 1, "retention", patience=240)
    assert len(list((store / "index").iterdir())) == 1


def rows_of(batch: Any) -> list[Row]:
    rows: list[Row] = batch.to_pylist()
    return rows


def numbers(rows: list[Row]) -> list[int]:
    return [int(row["value"][:8]) for row in rows]


def check(stored: Positions, rows: list[Row], caplog: pytest.LogCaptureFixture) -> None:
    """No row comes twice, and the log names a range for each that is missing."""
    read = set(numbers(rows))
    assert len(rows) == len(read)
    missing = [place for number, place in stored.items() if number not in read]
    assert missing, "the test must miss some messages"
    ranges = [tuple(map(int, one.groups())) for record in caplog.records for one in RANGE.finditer(record.message)]
    assert [
        (partition, position)
        for partition, position in missing
        if not any(named == partition and begin <= position < end for named, begin, end in ranges)
    ] == []


@pytest.mark.parametrize("topic", ["own", "shared"])
def test_a_batch_read_whose_rows_are_taken_slowly(
    cluster: RealCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two tasks have begun when the files go, and one has not."""
    stored = fill(cluster, topic)
    source = {fail: TubeMQDataSource(options(cluster, topic, failOnDataLoss=fail)) for fail in ("false", "true")}
    readers = {fail: one.reader(one.schema()) for fail, one in source.items()}
    tasks = {fail: reader.partitions() for fail, reader in readers.items()}
    rows: list[Row] = []
    reading = [readers["false"].read(task) for task in tasks["false"][:2]]
    for batches in reading:
        rows += rows_of(next(batches))
    wait_for_retention(cluster, topic)
    reading += [readers["false"].read(task) for task in tasks["false"][2:]]
    for batches in reading:
        for batch in batches:
            rows += rows_of(batch)
    check(stored, rows, caplog)
    with pytest.raises(DataLossError) as caught:
        list(readers["true"].read(tasks["true"][-1]))
    assert caught.value.asked == 0
    assert 5000 * UNIT <= caught.value.offered <= COUNT * UNIT


def test_a_stream_whose_first_batch_is_in_work(cluster: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    stored = fill(cluster, "stream")
    stream = Stream(cluster, "stream", maxOffsetsPerTrigger=1000, failOnDataLoss="false")
    with stream.running() as run:
        assert run.find_next()
        [tasks] = run.plan()
        batches = run.read(tasks)
        rows = next(batches).to_pylist()
        wait_for_retention(cluster, "stream")
        for batch in batches:
            rows += batch.to_pylist()
        stream.commit(rows)
        while run.next() is not None:
            pass
    check(stored, stream.rows, caplog)
    failing = Stream(cluster, "stream")
    failing.checkpoint = stream.checkpoint
    failing.checkpoint.committed = 1
    with pytest.raises(DataLossError) as caught:
        failing.run()
    assert caught.value.asked == 1000 * UNIT
    assert caught.value.offered >= 5000 * UNIT
