# SPDX-License-Identifier: Apache-2.0
"""Sizes of batches and tasks: `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`,
`maxPartitionsPerTask`; and `headsIntervalMs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.clocks import SkippingClock
from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import Stream, bodies, fill, ranges_of, stored
from tubemq_spark.testing import EmbeddedTubeMQ


def sizes(batches: list[list[dict[str, Any]]]) -> list[int]:
    return [len(rows) for rows in batches]


@pytest.mark.option("maxOffsetsPerTrigger")
def test_batch_reads_at_most_max_offsets(start: Start) -> None:
    """The limit is in index entries; these are messages if all partitions of a store are read."""
    tubemq = start({"t": 2})
    fill(tubemq, "t", 100)
    stream = Stream(tubemq, "t", maxOffsetsPerTrigger=30)
    assert sizes(stream.run()) == [30, 30, 30, 10]
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))
    fill(tubemq, "t", 40)
    with stream.running() as run:
        assert [len(run.next() or ()) for _ in range(3)] == [30, 10, 0]


def send_sizes(tubemq: EmbeddedTubeMQ, topic: str, sizes: Iterable[int], partition: int | str | None = None) -> None:
    for size in sizes:
        tubemq.send(topic, b"x" * size, partition)


def byte_sizes(batches: list[list[dict[str, Any]]]) -> list[int]:
    return [sum(len(row["value"]) for row in rows) for rows in batches]


@pytest.mark.option("maxBytesPerTrigger")
@pytest.mark.parametrize("partitions", [1, 3])
def test_batch_reads_at_most_max_bytes(start: Start, partitions: int) -> None:
    tubemq = start({"t": partitions})
    send_sizes(tubemq, "t", [1000] * 100)
    stream = Stream(tubemq, "t", maxBytesPerTrigger=25_000)
    batches = stream.run()
    assert sum(sizes(batches)) == 100
    assert max(byte_sizes(batches)) <= 25_000
    assert len(batches) == 4
    send_sizes(tubemq, "t", [5000] * 10)
    assert byte_sizes(stream.run()) == [25_000, 25_000]


@pytest.mark.option("maxBytesPerTrigger")
def test_stores_share_max_bytes(start: Start) -> None:
    """A store with long messages takes more of the limit, and no store starves."""
    tubemq = start({"t": 1}, brokers=2)
    send_sizes(tubemq, "t", [4000] * 100, "1:0")
    send_sizes(tubemq, "t", [400] * 100, "2:0")
    batches = Stream(tubemq, "t", maxBytesPerTrigger=44_000).run()
    assert byte_sizes(batches) == [44_000] * 10
    assert all(Counter(row["broker_id"] for row in rows) == {1: 10, 2: 10} for rows in batches)


@pytest.mark.option("maxBytesPerTrigger")
def test_a_message_longer_than_max_bytes_is_read(start: Start) -> None:
    tubemq = start({"t": 1})
    send_sizes(tubemq, "t", [100_000] * 3)
    assert byte_sizes(Stream(tubemq, "t", maxBytesPerTrigger=1000).run()) == [100_000] * 3


@pytest.mark.option("maxBytesPerTrigger")
def test_long_messages_behind_short_ones_make_batches_smaller(start: Start) -> None:
    """What waits behind the next messages counts, so that the memory of tasks suffices."""
    tubemq = start({"t": 1})
    send_sizes(tubemq, "t", [10] * 100 + [500_000] * 6 + [10] * 20)
    batches = Stream(tubemq, "t", maxBytesPerTrigger=600_000).run()
    assert sum(sizes(batches)) == 126
    assert max(byte_sizes(batches)) <= 3 * 600_000


@pytest.mark.option("maxBytesPerTrigger", "maxOffsetsPerTrigger")
@pytest.mark.parametrize(("most_bytes", "most_offsets", "first"), [(10_000, 50, 10), (100_000, 50, 50)])
def test_the_smaller_limit_applies(start: Start, most_bytes: int, most_offsets: int, first: int) -> None:
    tubemq = start({"t": 1})
    send_sizes(tubemq, "t", [1000] * 100)
    stream = Stream(tubemq, "t", maxBytesPerTrigger=most_bytes, maxOffsetsPerTrigger=most_offsets)
    assert sizes(stream.run())[0] == first


@pytest.mark.option("maxBytesPerTrigger")
def test_bytes_are_limited_when_a_broker_hides_sizes(start: Start) -> None:
    """A message counts with 64 KiB then."""
    tubemq = start({"t": 1})
    send_sizes(tubemq, "t", [1000] * 40)
    stream = Stream(tubemq, "t", maxBytesPerTrigger=640 * 1024)
    with tubemq.on("get_message", times=1).fail(404, "Can't found Message by index!"):
        assert sizes(stream.run()) == [10, 30]


@pytest.mark.option("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable),
        ({"maxOffsetsPerTrigger": 5}, ReadMaxRows),
        ({"minOffsetsPerTrigger": 5}, ReadMaxRows),
        ({"maxBytesPerTrigger": 5}, ReadMaxBytes),
        ({"maxBytesPerTrigger": 5, "maxOffsetsPerTrigger": 5}, ReadMaxRows),
        ({"maxTriggerDelay": "5s"}, ReadAllAvailable),
    ],
)
def test_default_read_limit_tells_spark_about_limits(start: Start, given: dict[str, Any], limit: type) -> None:
    with Stream(start({"t": 1}), "t", **given).running() as run:
        assert isinstance(run.reader.getDefaultReadLimit(), limit)


@pytest.mark.option("minOffsetsPerTrigger")
def test_batch_waits_for_min_offsets(start: Start) -> None:
    """Only a run's first batch does not wait."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 5)
    stream = Stream(tubemq, "t", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    with stream.running() as run:
        assert len(run.next() or ()) == 5
        for _ in range(9):
            fill(tubemq, "t", 1)
            assert run.next() is None
        fill(tubemq, "t", 1)
        assert len(run.next() or ()) == 10


@pytest.mark.option("minOffsetsPerTrigger", "maxOffsetsPerTrigger")
def test_a_batch_waits_for_the_minimum_and_ends_at_the_maximum(start: Start) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 25)
    given = {"minOffsetsPerTrigger": 15, "maxOffsetsPerTrigger": 20, "maxTriggerDelay": "1h"}
    with Stream(tubemq, "t", **given).running() as run:
        assert [len(run.next() or ()) for _ in range(2)] == [20, 0]
        fill(tubemq, "t", 18)
        assert [len(run.next() or ()) for _ in range(2)] == [20, 0]


@pytest.mark.option("maxTriggerDelay")
def test_batch_waits_for_min_offsets_at_most_max_trigger_delay(start: Start) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 5)
    with Stream(tubemq, "t", minOffsetsPerTrigger=10, maxTriggerDelay="100ms").running() as run:
        assert len(run.next() or ()) == 5
        fill(tubemq, "t", 1)
        found: list[object] = []

        def come() -> bool:
            found.extend(run.next() or ())
            return bool(found)

        wait_until(come)
        assert len(found) == 1


# Tasks


@pytest.mark.option("maxPartitionsPerTask")
@pytest.mark.parametrize(("given", "tasks"), [(None, 8), (1, 8), (3, 3), (8, 1), (100, 1)])
def test_partitions_with_little_to_read_share_tasks(start: Start, given: int | None, tasks: int) -> None:
    tubemq = start({"t": 4}, brokers=2)
    fill(tubemq, "t", 80)
    stream = Stream(tubemq, "t", maxPartitionsPerTask=given)
    with stream.running() as run:
        run.next()
    assert len(run.tasks) == tasks
    assert max(map(len, ranges_of(run.tasks))) - min(map(len, ranges_of(run.tasks))) <= 1
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))


@pytest.mark.option("maxPartitionsPerTask")
def test_partition_with_much_to_read_has_its_own_task(start: Start) -> None:
    tubemq = start({"much": 1, "little": 3})
    fill(tubemq, "much", 4500)
    fill(tubemq, "little", 9)
    stream = Stream(tubemq, "much", "little", maxPartitionsPerTask=10)
    with stream.running() as run:
        run.next()
    assert sorted(map(len, ranges_of(run.tasks))) == [1, 3]


@pytest.mark.option("maxPartitionsPerTask")
def test_thousand_idle_partitions_do_not_make_a_thousand_tasks(start: Start) -> None:
    """Partitions with nothing to read make no task; those with a little share tasks, also without the option."""
    tubemq = start({"t": 500}, brokers=2)
    stream = Stream(tubemq, "t")
    with stream.running() as run:
        assert (run.next(), run.tasks) == ([], [])
        fill(tubemq, "t", 1, "1:7")
        assert len(run.next() or ()) == 1
        fill(tubemq, "t", 1000)
        assert len(run.next() or ()) == 1000
        assert 1 < len(run.tasks) <= 64
        assert run.next() is None
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))


# Log ends


@pytest.mark.option("headsIntervalMs")
@pytest.mark.parametrize(("given", "seconds"), [(0, 0), (3_600_000, 3600)])
def test_brokers_are_asked_for_log_ends_once_an_interval(
    start: Start, skipping_clock: SkippingClock, given: int, seconds: int
) -> None:
    """The source lets Spark wait, and does not answer with what it knows."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 5)
    with Stream(tubemq, "t", headsIntervalMs=given).running() as run:
        assert len(run.next() or ()) == 5
        run.latest()
        with tubemq.on("commit_offset").count() as asked:
            for _ in range(5):
                run.latest()
        assert asked.fired == 5
        assert sum(skipping_clock.pauses) == pytest.approx(5 * seconds, abs=30)
        fill(tubemq, "t", 1)
        assert len(run.next() or ()) == 1
