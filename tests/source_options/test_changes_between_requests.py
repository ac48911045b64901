# SPDX-License-Identifier: Apache-2.0
"""A server changes between two requests of a planner: their answers are not of one moment."""

from __future__ import annotations

from functools import partial

import pytest

from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import UNIT, Stream, bodies, fill, read_batch, stored
from tubemq_spark.errors import DataLossError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ


def crash(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.crash_broker(1)
    tubemq.start_broker(1)


@pytest.mark.parametrize("owners", [(1, 1, 1), (1, 1, 0)])
def test_other_messages_come_after_those_of_a_batch_were_counted(start: Start, owners: tuple[int, ...]) -> None:
    """None of the batch's messages was of partition 1. As many others have their places now."""
    tubemq = start({"t": 4})
    stream = Stream(tubemq, "t")
    fill(tubemq, "t", 4, "1:0")
    tubemq.flush("t")
    with stream.running() as run:
        run.next()
        fill(tubemq, "t", 3, "1:0")

        def replace() -> None:
            crash(tubemq)
            for number, owner in enumerate(owners):
                tubemq.send("t", b"other %d" % number, f"1:{owner}")

        with tubemq.on("partition_register", client="_look_", nth=5, times=1).run(replace) as look:
            run.next()
        assert look.fired
        for _ in range(3):
            tubemq.send("t", b"later", "1:1")
            run.next()
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t"))


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_broker_crashes_before_a_new_query_has_read_anything(start: Start, nth: int) -> None:
    """Nothing that the query was to read is lost."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 4)
    tubemq.flush("t")
    fill(tubemq, "t", 4)
    stream = Stream(tubemq, "t", startingOffsets="latest")
    with stream.running() as run:
        with tubemq.on("partition_register", client="_look_", nth=nth, times=1).run(partial(crash, tubemq)) as look:
            run.next()
        assert look.fired
        tubemq.send("t", b"later")
        run.next()
    assert bodies(stream.rows) == [b"later"]


def test_retention_empties_a_new_partition_while_it_is_found(start: Start) -> None:
    tubemq = start({"t": 1})
    stream = Stream(tubemq, "t", metadataIntervalMs=100, failOnDataLoss="false")
    fill(tubemq, "t", 4)
    with stream.running() as run:
        run.next()
        broker = tubemq.add_broker()
        tubemq.create_topic("t", 1, brokers=[broker])
        tubemq.send("t", b"early", f"{broker}:0")

        def remove() -> None:
            tubemq.send("t", b"late", f"{broker}:0")
            tubemq.expire("t", keep=0)

        with tubemq.on("partition_register", broker=broker, client="_look_", times=1).run(remove):
            wait_until(lambda: run.next() is not None and Partition(broker, "t", 0) in stream.end)
    assert stream.end[Partition(broker, "t", 0)] == 2 * UNIT


def test_a_broker_that_knew_no_topic_goes_away(start: Start) -> None:
    """Its last answer counts: the partition is not gone."""
    tubemq = start({"t": 1}, brokers=2)
    stream = Stream(tubemq, "t", tubemq_retry_maxElapsedMs=2000)
    fill(tubemq, "t", 4)
    tubemq.flush("t")
    with stream.running() as run:
        run.next()
        crash(tubemq)
        claims = partial(tubemq.on, "partition_register", broker=1, client="_driver", times=1)
        unknown = claims().fail(403, "Topic t partition not existed, please check")
        down = claims().run(partial(tubemq.crash_broker, 1))
        with pytest.raises(TransportError, match="Connection refused"):
            run.next()
        assert (unknown.fired, down.fired) == (1, 1)


@pytest.mark.parametrize("keep", [0, 10])
@pytest.mark.parametrize("nth", range(1, 90, 6))
def test_a_message_comes_while_expired_data_are_looked_for(start: Start, keep: int, nth: int) -> None:
    """It is none of those that retention removed."""
    tubemq = start({"t": 2})
    fill(tubemq, "t", 40, "1:0")
    tubemq.expire("t", keep=keep, data_only=True)
    given = {"startingOffsets": {"t": {"1:0": 5 * UNIT, "1:1": 5 * UNIT}}}
    come = partial(tubemq.send, "t", b"late", "1:1")
    look = tubemq.on("get_message", client="_look_", nth=nth, times=1).run(come)
    with look, pytest.raises(DataLossError) as caught:
        read_batch(tubemq, "t", **given)
    assert look.fired
    assert (caught.value.asked, caught.value.offered) == (5 * UNIT, (40 - keep) * UNIT)


def test_a_message_comes_while_a_time_is_searched_for(start: Start) -> None:
    """No message is late enough, so the read begins at the end, which is not behind the end that was named."""
    tubemq = start({"t": 1})
    tubemq.send("t", b"first", msg_time="202601011258")
    come = partial(tubemq.send, "t", b"early", msg_time="202601011259")
    given = {"startingTimestamp": "2026-01-01T13:00:00Z", "endingOffsets": {"t": {"1:0": UNIT}}}
    with tubemq.on("partition_register", client="_look_", times=1).run(come, after=True) as look:
        assert read_batch(tubemq, "t", **given) == []
    assert look.fired
