# SPDX-License-Identifier: Apache-2.0
"""`metadataIntervalMs`, and partitions that are added while a query runs or is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import Stream, StreamRun, bodies, fill, stored
from tubemq_spark.errors import DataLossError
from tubemq_spark.source.truncation_check import StoreChangedError, TruncationCheck
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.config import ServerConfig

Grow = Callable[[EmbeddedTubeMQ], object]


def add_broker(tubemq: EmbeddedTubeMQ) -> None:
    broker = tubemq.add_broker()
    tubemq.create_topic("t", 2, brokers=[broker])


GROWTHS: dict[str, Grow] = {
    "partitions": lambda tubemq: tubemq.create_topic("t", partitions=4),
    "stores": lambda tubemq: tubemq.create_topic("t", partitions=2, stores=3),
    "broker": add_broker,
}
growing = pytest.mark.parametrize("grow", GROWTHS.values(), ids=GROWTHS)


def all_came(tubemq: EmbeddedTubeMQ, stream: Stream, run: StreamRun) -> bool:
    run.next()
    return sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))


@pytest.mark.option("metadataIntervalMs")
@growing
def test_new_partitions_are_found_while_the_query_runs(start: Start, grow: Grow) -> None:
    """All their messages are read, also earlier ones, even if the query began at the latest."""
    tubemq = start({"t": 2})
    stream = Stream(tubemq, "t", metadataIntervalMs=100, startingOffsets="latest")
    with stream.running() as run:
        run.next()
        fill(tubemq, "t", 10)
        grow(tubemq)
        fill(tubemq, "t", 40)
        wait_until(lambda: all_came(tubemq, stream, run))
        fill(tubemq, "t", 40)
        wait_until(lambda: all_came(tubemq, stream, run))


@pytest.mark.parametrize("data_only", [False, True])
@pytest.mark.parametrize("growth", ["stores", "broker"])
def test_a_new_store_that_lost_its_beginning_is_a_loss(
    start: Start, caplog: pytest.LogCaptureFixture, growth: str, data_only: bool
) -> None:
    tubemq = start({"t": 2})
    fill(tubemq, "t", 10)
    stream = Stream(tubemq, "t", metadataIntervalMs=100)
    stream.run()
    GROWTHS[growth](tubemq)
    fill(tubemq, "t", 60)
    stream.run(failOnDataLoss="false", assign=json.dumps({"t": ["1:0", "1:1"]}), subscribe=None)
    tubemq.expire("t", keep=5, data_only=data_only)
    with pytest.raises(DataLossError, match="is new to the query and begins at") as raised:
        stream.run()
    assert (raised.value.asked, raised.value.partition < 2) == (0, growth == "broker")
    stream.run(failOnDataLoss="false")
    assert f"[data-loss] {raised.value.broker_id}:t:{raised.value.partition}: the store is new" in caplog.text
    assert set(bodies(stream.rows)) >= set(stored(tubemq, "t"))


def test_new_partitions_of_an_old_store_are_no_loss(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    tubemq = start({"t": 2})
    fill(tubemq, "t", 10)
    tubemq.expire("t", keep=5)
    stream = Stream(tubemq, "t", metadataIntervalMs=100)
    stream.run()
    tubemq.create_topic("t", partitions=4)
    fill(tubemq, "t", 60)
    stream.run()
    assert set(bodies(stream.rows)) >= set(stored(tubemq, "t"))
    assert "[new-partition-late]" in caplog.text


@pytest.mark.option("metadataIntervalMs")
@pytest.mark.parametrize(("given", "asks"), [(100, True), (3_600_000, False)])
def test_master_is_asked_once_an_interval(start: Start, given: int, asks: bool) -> None:
    tubemq = start({"t": 1})
    with Stream(tubemq, "t", metadataIntervalMs=given).running() as run:
        run.next()
        tubemq.create_topic("t", partitions=2)
        with tubemq.on("get_partition_meta").count() as asked:
            if asks:
                wait_until(lambda: (run.next(), asked.fired > 2)[1])
            else:
                for _ in range(50):
                    run.next()
                assert asked.fired == 0


@pytest.mark.parametrize("trigger", ["processingTime", "availableNow"])
def test_a_batch_ends_before_messages_of_a_partition_that_is_not_listed(
    start: Start, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """Nothing guards them: a crash loses them, and messages that come in their places must not count as read."""
    tubemq = start({"t": 2}, config=ServerConfig(consumer_balance_period=3600.0))
    stream = Stream(tubemq, "t")
    fill(tubemq, "t", 10, 0)
    stream.run()
    with stream.running(trigger) as run:
        run.reader.initialOffset()  # the run has asked for the partitions
        tubemq.create_topic("t", partitions=3)
        fill(tubemq, "t", 9, 2)
        fill(tubemq, "t", 1, 1)
        tubemq.flush("t")
        fill(tubemq, "t", 20, 2)
        assert len(run.next() or ()) == 1
        assert run.next() is None
    assert set(stream.end.values()) == {28 * 20}
    assert len([record for record in caplog.records if "[store-end-unowned]" in record.getMessage()]) == 1
    tubemq.crash_broker(1)
    tubemq.start_broker(1)
    new = fill(tubemq, "t", 30, 0)
    stream.run()
    assert set(bodies(stream.rows)) >= set(new)


def test_available_now_reads_a_message_that_many_of_another_partition_follow_meanwhile(start: Start) -> None:
    """So many that no probe passes them all."""
    tubemq = start({"t": 2}, config=ServerConfig(mem_cache_msg_count=5, max_index_segment_entries=8))
    fill(tubemq, "t", 1, 0)
    stream = Stream(tubemq, "t")
    stream.run()
    last = fill(tubemq, "t", 1, 1)
    come = partial(fill, tubemq, "t", 300, 0)
    with tubemq.on("partition_register", client="_look_", times=1).run(come) as probe:
        stream.run("availableNow")
    assert probe.fired
    assert set(bodies(stream.rows)) >= set(last)


def test_available_now_reads_a_new_partition_also_if_a_store_changes_meanwhile(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner looks twice then, and the run ends where the second look found the stores' ends."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 3)
    stream = Stream(tubemq, "t")
    stream.run()
    tubemq.create_topic("t", 1, stores=2)
    fill(tubemq, "t", 2, "1:0"), fill(tubemq, "t", 4, "1:10000")
    check, changes = TruncationCheck.check, iter([True])

    def disturbed(*args: Any, **given: Any) -> Any:
        found = check(*args, **given)
        if next(changes, False):
            raise StoreChangedError("a broker did not answer")
        return found

    monkeypatch.setattr(TruncationCheck, "check", disturbed)
    stream.run("availableNow")
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))
