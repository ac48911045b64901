# SPDX-License-Identifier: Apache-2.0
"""A broker loses messages that a query has read: the check notices it, and finds each partition's first new message.

A query runs without Spark here, as `tests.faults.engine` runs it, on an embedded cluster.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.engine import GROUP, TOPICS, Query, Row, send_unreadable
from tubemq_spark.client import forget_servers
from tubemq_spark.client.clock import SystemClock
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.errors import DataLossError, PositionMovedError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source import store_check, truncation_check
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

CALM: dict[str, Any] = {"retry_for": 30.0, "rpc_timeout": 10.0}
RISING, FALLING, TURNING = 300.0, 2600.0, 2199.0  # seconds into the wave of message ids
TURNS = [
    2199.0,
    *(pytest.param(phase, marks=pytest.mark.thorough) for phase in (2140.0, 4397.0, 4340.0)),
]  # near a turn
SOLE = Partition(1, "one", 0)
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


# Nothing is lost


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from(["send", "send a little", "flush", "crash", "restart", "read", "read", "later"]), max_size=14
    ),
    st.sampled_from([RISING, FALLING, TURNING]),
)
def test_no_loss_is_reported_where_nothing_was_lost(steps: list[str], phase: float) -> None:
    """Restarts, crashes of a broker that has flushed everything, long pauses, and a turn of the wave of ids."""
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        story = Story(tubemq, fail=True)
        actions: dict[str, Callable[[], object]] = {
            "send": lambda: story.send(30),
            "send a little": lambda: story.send(1),
            "flush": story.flush,
            "crash": lambda: story.crash(flush=True),
            "restart": story.restart,
            "read": story.read,
            "later": lambda: tubemq.clock.advance(600),
        }
        for step in [*steps, "read"]:
            actions[step]()
        story.check()
        assert set(story.bodies()) == {row.body for rows in story.query.rows.values() for row in rows}
    forget_servers()


def test_a_restart_during_a_batch_is_no_loss(tubemq: EmbeddedTubeMQ) -> None:
    """Also if the ids change, as they do when the machine restarts."""
    story = Story(tubemq, fail=True)
    story.send(30)
    story.read()
    story.send(30)
    story.restart()
    tubemq.clock.advance(2000)
    story.send(30)
    story.query.planned = story.restart
    story.read()
    story.check()


class SetClock(SystemClock):
    """A class attribute holds the time, because tasks get pickled copies of the clock."""

    now = 0

    def time(self) -> float:
        return SetClock.now


def test_losses_are_reported_after_the_drivers_clock_was_set(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """By seconds or hours, back and forth, and to before the epoch."""
    story = Story(tubemq)
    story.query._options = replace(story.query._options, client=replace(story.query._options.client, clock=SetClock()))
    times = [1_700_000_000, *range(1_700_000_012, 1_699_999_999, -1), 1_600_000_000, -5, 1_700_000_000]
    for now in times:
        SetClock.now = now
        story.send(9, flush=True)
        story.read()
    story.check()
    story.send(90)
    story.read()
    story.crash(then_send=30)
    with caplog.at_level(logging.WARNING):
        story.read()
    assert len(losses_in(caplog)) == 3
    story.check()


class Again(Query):
    """Runs each task twice. The second attempt finds no claim of the driver, so the broker may have crashed."""

    def _run_task(self, task: TubeMQInputPartition) -> Iterator[tuple[Partition, Row]]:
        first = list(super()._run_task(task))
        assert list(super()._run_task(task)) == first
        return iter(first)


@pytest.mark.parametrize(
    "seconds", [0, 3798, *(pytest.param(one, marks=pytest.mark.thorough) for one in (600, 3770, 4398, 8000))]
)
def test_a_second_attempt_does_not_suspect_a_long_backlog(seconds: int) -> None:
    """Its first and last ids may be close to each other, because the wave of ids has turned between them."""
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=300.0)) as tubemq:
        story = Story(tubemq, fail=True)
        story.query = Again(tubemq, **CALM)
        for pause in (seconds // 2, seconds - seconds // 2, 0):
            story.send(30, flush=True)
            tubemq.clock.advance(pause)
        story.send(30)
        story.read()
        story.send(30)
        story.read()
        story.check()
    forget_servers()


@pytest.mark.parametrize("place", [("one", 0), ("pair", 1)])
def test_a_second_attempt_does_not_suspect_an_entry_without_a_message(
    tubemq: EmbeddedTubeMQ, place: tuple[str, int]
) -> None:
    """The batch ends with such an entry, and other messages come before the driver probes its last one."""
    story = Story(tubemq, fail=True)
    story.query = Again(tubemq, **CALM)
    story.query.planned = story.flush
    for _ in range(3):
        story.send(9)
        send_unreadable(tubemq, *place)
        with tubemq.on("get_message", client="_driver_", times=1).run(lambda: story.send(3, places=[place])):
            story.read()
        story.check()


# Messages are lost


def test_a_loss_in_a_store_with_a_large_memory_is_noticed(
    tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow query is far behind the end of a store that has flushed nothing."""
    monkeypatch.setattr(store_check, "UNFLUSHED_AT_MOST", 20 * UNIT)
    story = Story(tubemq)
    story.query._options = replace(story.query._options, max_offsets=60)
    story.send(900)
    batches = 0

    def stop_after_three() -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise KeyboardInterrupt

    story.query.found = stop_after_three
    with pytest.raises(KeyboardInterrupt):
        story.read()
    story.query.found = lambda: None
    story.crash(then_send=900)
    story.query._options = replace(story.query._options, max_offsets=None)
    story.read()
    story.check()


def test_flushed_messages_need_no_fingerprints(tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "UNFLUSHED_AT_MOST", 20 * UNIT)
    story = Story(tubemq, fail=True)
    story.query._options = replace(story.query._options, max_offsets=60)
    story.send(900, flush=True)
    looks = tubemq.on("get_message", client="_driver_").count()
    marked: list[bool] = []
    story.query.found = lambda: marked.append(bool(story.query.checkpoint.offset().fingerprints) or looks.fired > 0)
    story.read()
    story.check()
    assert not any(marked[: len(marked) // 2])
    assert marked[-1]


@pytest.mark.parametrize("after", [0, 5, 30, 100, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 29, 31))])
@pytest.mark.parametrize("kept", [0, 60])
def test_a_lost_tail_is_noticed_however_much_was_sent_since(
    tubemq: EmbeddedTubeMQ, kept: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(tubemq)
    story.send(kept, flush=True)
    story.read()
    story.send(90)
    story.read()
    story.crash()
    story.send(after * 3)
    with caplog.at_level(logging.WARNING):
        story.read()
    assert len(losses_in(caplog)) == 3
    story.check()
    story.send(9)
    story.read()
    story.check()
    assert len(losses_in(caplog)) == 3


@pytest.mark.parametrize("after", [0, 30, 100])
def test_the_error_names_the_exact_range_of_the_loss(tubemq: EmbeddedTubeMQ, after: int) -> None:
    story = Story(tubemq, fail=True)
    story.send(60, flush=True)
    story.read()
    story.send(90)
    story.read()
    rows = {partition: list(several) for partition, several in story.query.rows.items()}
    story.crash()
    story.send(after * 3)
    for _ in range(2):
        with pytest.raises(DataLossError) as lost:
            story.read()
        assert (lost.value.topic, lost.value.broker_id, lost.value.partition) == ("one", 1, 0)
        assert (lost.value.asked, lost.value.offered) == (50 * UNIT, 20 * UNIT)
        assert str(lost.value).startswith(
            f"1:one:0: the store {'has other messages from 560 on' if after else 'ends at 560'}, but the query has "
            "read up to 1400: the broker lost [560, 1400) after it was read and uses the positions for other messages"
        )
    assert story.query.rows == rows


@pytest.mark.parametrize("after", [5, 100])
def test_a_loss_between_plan_and_read_ends_the_run_and_the_next_run_goes_on(tubemq: EmbeddedTubeMQ, after: int) -> None:
    """The new messages have unexpected ids, which ends the query. Its next run probes the fingerprints and reads the
    new messages with the next batch.
    """
    story = Story(tubemq)
    story.send(60, flush=True)
    story.read()
    story.send(30, flush=True)
    story.send(60)

    def lose() -> None:
        story.query.planned = lambda: None
        story.crash()
        story.send(after * 3)

    story.query.planned = lose
    with pytest.raises(PositionMovedError, match="have other ids than those that stood there"):
        story.read()
    story.read()
    story.check()
    story.send(9)
    story.read()
    story.check()


def test_a_loss_between_plan_and_read_fails_the_next_run(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq, fail=True)
    story.send(60, flush=True)
    story.read()
    story.send(60)
    story.query.planned = lambda: story.crash(then_send=300)
    with pytest.raises(PositionMovedError, match=r"messages in \[560, 1120\) have other ids"):
        story.read()
    story.query.planned = lambda: None
    with pytest.raises(DataLossError) as again:
        story.read()
    assert (again.value.asked, again.value.offered) == (40 * UNIT, 20 * UNIT)


@pytest.mark.parametrize("after", [0, 5, 100])
@pytest.mark.parametrize("fail", [False, True])
def test_a_loss_while_a_query_is_stopped_within_a_batch(tubemq: EmbeddedTubeMQ, after: int, fail: bool) -> None:
    """Spark has logged the end of the batch, but not committed it."""
    story = Story(tubemq, fail=fail)
    story.send(60, flush=True)
    story.read()
    story.send(30, flush=True)
    story.send(60)

    def stop() -> None:
        raise KeyboardInterrupt

    story.query.found = stop
    with pytest.raises(KeyboardInterrupt):
        story.read()
    story.query.found = lambda: None
    story.crash()
    story.send(after * 3)
    if fail:
        with pytest.raises(DataLossError) as lost:
            story.read()
        assert lost.value.asked == 50 * UNIT
    else:
        story.read()
        story.check()


def test_losses_of_repeated_crashes(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq)
    story.send(60, flush=True)
    story.read()
    for _ in range(3):
        story.send(60)
        story.read()
        story.crash()
        story.send(30)
        story.crash()
        story.send(120)
        story.read()
        story.check()
        story.send(30)
        story.read()
        story.crash()
        story.send(99)
        story.read()
        story.check()


def test_a_topic_that_was_deleted_and_created_again(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    story = Story(tubemq)
    story.send(60, flush=True)
    story.read()
    story.send(60, flush=True)
    story.read()
    counts = {partition: len(rows) for partition, rows in story.query.rows.items()}
    for topic, partitions in TOPICS.items():
        tubemq.delete_topic(topic)
        tubemq.create_topic(topic, partitions=partitions)
    story.send(300)
    story.read()
    new = [row.body for partition, rows in story.query.rows.items() for row in rows[counts[partition] :]]
    assert sorted(new) == sorted(story.bodies())
    assert "the topic was created anew, or the checkpoint belongs to another cluster" in losses_in(caplog)[0]


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
        told = [record.getMessage() for record in caplog.records if "ids do not tell which messages" in record.msg]
        assert len(told) == 2  # stores
        ranges = {topic: re.search(rf"topic {topic}, .*\[(\d+), (\d+)\)", "\n".join(told)) for topic in TOPICS}
        for topic, found in ranges.items():
            assert found is not None
            missing = [message for message in tubemq.messages(topic) if message.body not in rows_read]
            assert missing
            assert all(int(found[1]) <= message.offset < int(found[2]) for message in missing)
    forget_servers()


@pytest.mark.parametrize("phase", TURNS)
def test_a_loss_between_plan_and_read_is_noticed_where_ids_turn(phase: float) -> None:
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        story = Story(tubemq)
        story.send(60, flush=True)
        story.read()
        story.send(60)

        def lose() -> None:
            story.query.planned = lambda: None
            story.crash(then_send=300)

        story.query.planned = lose
        with pytest.raises(PositionMovedError, match="have other ids than those that stood there"):
            story.read()
        story.read()
        rows_read = [row.body for rows in story.query.rows.values() for row in rows]
        assert len(rows_read) == len(set(rows_read))
        assert set(rows_read) <= set(story.bodies())
    forget_servers()


steps = st.sampled_from(
    ["send", "send", "send a little", "flush", "crash", "restart", "read", "read", "crash in a batch"]
)


@settings(max_examples=40)
@given(st.lists(steps, max_size=20), st.sampled_from([RISING, FALLING]))
def test_every_loss_is_noticed_in_any_history(history: list[str], phase: float) -> None:
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        story = Story(tubemq)

        def read_with_a_crash() -> None:
            def lose() -> None:
                story.query.planned = lambda: None
                story.crash()
                story.send(50)

            story.query.planned = lose
            with suppress(PositionMovedError):
                story.read()
            story.query.planned = lambda: None
            story.read()

        actions: dict[str, Callable[[], object]] = {
            "send": lambda: story.send(40),
            "send a little": lambda: story.send(1),
            "flush": story.flush,
            "crash": story.crash,
            "restart": story.restart,
            "read": story.read,
            "crash in a batch": read_with_a_crash,
        }
        for step in [*history, "read"]:
            actions[step]()
        story.check()
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


def test_a_store_that_is_too_short_is_noticed_without_fingerprints(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq, fail=True)
    story.send(60, flush=True)
    story.send(30)
    story.read()
    checkpoint = story.query.checkpoint
    checkpoint.offsets = [json.dumps(json.loads(text) | {"marks": {}}) for text in checkpoint.offsets]
    story.crash()
    with pytest.raises(DataLossError, match="the store ends at 560, but the query has read up to 840"):
        story.read()


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


def test_the_check_does_not_move_the_group(tubemq: EmbeddedTubeMQ) -> None:
    story = Story(tubemq)
    story.send(30)
    story.read()
    story.send(30)
    story.query.found = lambda: positions.update({SOLE: tubemq.group_offset(GROUP, "one", 1, 0)})
    positions: dict[Partition, int | None] = {}
    story.read()
    assert positions == {SOLE: 10 * UNIT}
