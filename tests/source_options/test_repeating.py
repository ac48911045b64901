# SPDX-License-Identifier: Apache-2.0
"""A repeated micro-batch brings the same rows with any options, although more messages were sent."""

from __future__ import annotations

import pytest

from tests.source_options.conftest import Start
from tests.without_spark.source import Stream, fill

OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "filters": {"filters": "x"},
    "filters of one topic": {"filters": {"t": ["x", "y"]}},
    "assign": {"subscribe": None, "assign": {"t": ["1:0", "2:1"], "sole": ["2:0"]}},
    "limits": {"maxOffsetsPerTrigger": 50, "minOffsetsPerTrigger": 5},
    "merged tasks": {"maxPartitionsPerTask": 4},
    "keep": {"corruptMessages": "keep"},
    "no commits": {"commitOffsets": "false"},
    "from a time": {"startingTimestamp": "2026-01-01T12:02"},
    "from the group": {"startingOffsets": "group"},
    "unshared": {"tubemq_connections_shared": "false"},
}


@pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)
def test_repeated_batch_brings_the_same_rows(start: Start, given: dict[str, object]) -> None:
    """In the same order, also after partitions were added; a new run repeats the first batch, and another run a later
    one."""
    tubemq = start({"t": 2, "sole": 1}, brokers=2)

    def send(minute: int) -> None:
        for topic in ("t", "sole"):
            for number in range(40):
                fill(tubemq, topic, 1, msg_type="xyz"[number % 3], msg_time=f"2026010112{minute:02}")

    send(1)
    send(2)
    stream = Stream(tubemq, "t", "sole", **given)
    for minute, trigger in ((3, "processingTime"), (4, "availableNow")):
        with stream.running() as run:
            first = run.next()
        assert first
        assert stream.forget_commit() == first
        tubemq.create_topic("t", partitions=minute)
        send(minute)
        with stream.running(trigger, startingOffsets="latest") as run:
            assert run.next() == first
    stream.run("once")
    ids = [(row["topic"], row["broker_id"], row["partition"], row["message_id"]) for row in stream.rows]
    assert len(set(ids)) == len(ids)
