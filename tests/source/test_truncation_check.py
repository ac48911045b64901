# SPDX-License-Identifier: Apache-2.0
"""A broker loses messages that a query has read: the check notices it, and finds each partition's first new message.

A query runs without Spark here, as `tests.without_spark.query` runs it, on an embedded cluster.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.without_spark.query import TOPICS, Query
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.source import truncation_check
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

CALM: dict[str, Any] = {"retry_for": 30.0, "rpc_timeout": 10.0}
RISING, FALLING, TURNING = 300.0, 2600.0, 2199.0  # seconds into the wave of message ids
TURNS = [
    2199.0,
    *(pytest.param(phase, marks=pytest.mark.thorough) for phase in (2140.0, 4397.0, 4340.0)),
]  # near a turn
PLACES = [("one", 0), ("pair", 0), ("pair", 1)]


@pytest.fixture(autouse=True)
def one_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check divide the stores as it does with many."""
    monkeypatch.setattr(truncation_check, "_STORES_AT_ONCE", 1)


@pytest.fixture(params=[RISING, pytest.param(FALLING, marks=pytest.mark.thorough)], ids=["rising", "falling"])
def tubemq(request: pytest.FixtureRequest) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=request.param)) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


class Story:
    """A query, the messages that were sent, and those that a crash of the broker lost."""

    def __init__(self, tubemq: EmbeddedTubeMQ, *, fail: bool = False) -> None:
        self.tubemq = tubemq
        self.query = Query(tubemq, **CALM)
        self.query._options = replace(self.query._options, loss_policy=LossPolicy(fail))
        self._sent = 0
        self._lost: list[bytes] = []

    def send(self, count: int, *, flush: bool = False, places: list[tuple[str, int]] | None = None) -> None:
        for _ in range(count):
            topic, partition = (places or PLACES)[self._sent % len(places or PLACES)]
            self.tubemq.send(topic, b"%d" % self._sent, partition)
            self._sent += 1
        if flush:
            self.flush()

    def flush(self) -> None:
        for topic in TOPICS:
            self.tubemq.flush(topic)

    def bodies(self) -> list[bytes]:
        return [message.body for topic in TOPICS for message in self.tubemq.messages(topic)]

    def crash(self, *, flush: bool = False, then_send: int = 0) -> None:
        if flush:
            self.flush()
        before = self.bodies()
        self.tubemq.crash_broker(1)
        self.tubemq.start_broker(1)
        kept = set(self.bodies())
        self._lost += [body for body in before if body not in kept]
        self.send(then_send)

    def restart(self) -> None:
        self.tubemq.stop_broker(1)
        self.tubemq.start_broker(1)

    def read(self) -> None:
        self.query.run()

    def check(self) -> None:
        """Each stored message was read once, in order. Each lost message was read once at most."""
        rows_read = [row.body for rows in self.query.rows.values() for row in rows]
        assert len(rows_read) == len(set(rows_read))
        assert set(self.bodies()) <= set(rows_read) <= set(self.bodies()) | set(self._lost)
        for rows in self.query.rows.values():
            numbers = [int(row.body) for row in rows]
            assert numbers == sorted(numbers)


def losses_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the broker lost [" in record.getMessage()]


# Messages are lost


def test_a_store_that_becomes_shorter_while_it_is_checked_is_checked_again(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq, fail=True)
    story.send(60, flush=True)
    story.read()
    story.send(90)
    crash = tubemq.on("partition_register", client="_look_", times=1).run(story.crash)
    story.read()
    assert crash.fired
    assert story._lost
    story.check()


@pytest.mark.parametrize("phase", TURNS)
def test_no_message_comes_twice_where_ids_turn(phase: float, caplog: pytest.LogCaptureFixture) -> None:
    """The query skips new messages then, and logs their range, so that a batch can read them."""
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        story = Story(tubemq)
        story.send(60, flush=True)
        story.read()
        story.send(60, flush=True)
        story.send(60)
        story.read()
        story.crash()
        story.send(300)
        with caplog.at_level(logging.WARNING):
            story.read()
        rows_read = [row.body for rows in story.query.rows.values() for row in rows]
        assert len(rows_read) == len(set(rows_read))
        assert len(losses_in(caplog)) == 3
        told = [record.getMessage() for record in caplog.records if "ids do not show which messages" in record.msg]
        assert len(told) == 2  # stores
        ranges = {topic: re.search(rf"topic {topic}, .*\[(\d+), (\d+)\)", "\n".join(told)) for topic in TOPICS}
        for topic, found in ranges.items():
            assert found is not None
            missing = [message for message in tubemq.messages(topic) if message.body not in rows_read]
            assert missing
            assert all(int(found[1]) <= message.offset < int(found[2]) for message in missing)
    forget_servers()


# What the checkpoint holds


def test_new_fingerprints_alone_make_no_new_batch(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq)
    story.send(30)
    story.read()
    batches = len(story.query.checkpoint.offsets)
    story.restart()
    story.read()
    assert len(story.query.checkpoint.offsets) == batches
    offset = story.query.checkpoint.offset()
    assert set(offset.fingerprints) == {(1, "one", 0), (1, "pair", 0)}


def test_an_idle_query_fetches_nothing(tubemq: EmbeddedTubeMQ) -> None:
    """Except one probe of its last fingerprints when it starts."""
    story = Story(tubemq)
    story.send(30)
    story.read()
    driver = MicroBatchPlanner(story.query._options)
    try:
        end = story.query.checkpoint.offset()
        assert driver.latest(end) == end
        with tubemq.on("get_message").count() as fetches:
            assert driver.latest(end) == end
    finally:
        driver.stop()
    assert fetches.fired == 0
