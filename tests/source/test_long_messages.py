# SPDX-License-Identifier: Apache-2.0
"""Messages that are too long for a broker to deliver from memory, in topics whose limit is above the cluster's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.clocks import SkippingClock
from tests.without_spark.source import Stream, bodies, read_batch, stored
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK
from tubemq_spark.testing import EmbeddedTubeMQ, Release, ServerConfig

CLUSTER, OWN = 1024, 4096
LONG = OWN + MESSAGE_SIZE_SLACK - 100  # bytes of a body; leaves room for attributes
# Nothing is flushed by time, unless a test advances the cluster's clock.
CONFIG = ServerConfig(max_msg_size=CLUSTER, mem_cache_flush_interval=3600.0)
Start = Callable[..., EmbeddedTubeMQ]


@pytest.fixture
def start(skipping_clock: SkippingClock) -> Iterator[Start]:
    clusters: list[EmbeddedTubeMQ] = []

    def start(**changed: object) -> EmbeddedTubeMQ:
        """A cluster with the topic `long`, whose store has three partitions, and the ordinary topic `short`."""
        tubemq = EmbeddedTubeMQ(topics={"short": 3}, config=replace(CONFIG, **changed))  # type: ignore[arg-type]
        clusters.append(tubemq)
        tubemq.create_topic("long", 3, max_msg_size=OWN)
        return tubemq

    yield start
    for tubemq in clusters:
        tubemq.close()
    forget_servers()


@pytest.fixture
def tubemq(start: Start) -> EmbeddedTubeMQ:
    return start()


def send(tubemq: EmbeddedTubeMQ, count: int = 6, topic: str = "long", msg_type: str | None = None) -> None:
    """Every third message is long, and for another partition than the message before it."""
    for number in range(count):
        body = b"%d " % number
        tubemq.send(topic, body.ljust(LONG, b".") if number % 3 == 1 else body, number % 3, msg_type=msg_type)


def flush_at(tubemq: EmbeddedTubeMQ, clock: SkippingClock, seconds: float, topic: str = "long") -> None:
    """Flush the topic when pauses of the client have taken so many seconds."""
    do_at(clock, seconds, lambda: tubemq.flush(topic))


def do_at(clock: SkippingClock, seconds: float, do: Callable[[], None]) -> None:
    def check(_: float) -> None:
        if sum(clock.pauses) >= seconds:
            clock._on_sleep = lambda _: None
            do()

    clock._on_sleep = check


def exactly(stream: Stream, tubemq: EmbeddedTubeMQ, topic: str = "long") -> bool:
    return sorted(bodies(stream.rows)) == sorted(stored(tubemq, topic))


@pytest.mark.parametrize("filters", [None, "a"])
def test_a_stream_reads_them_when_they_are_in_files(tubemq: EmbeddedTubeMQ, filters: str | None) -> None:
    stream = Stream(tubemq, "long", filters=filters)
    send(tubemq, msg_type="a")
    with stream.running() as run:
        assert run.next() == []
        tubemq.flush("long")
        assert len(run.next() or ()) == 6
        send(tubemq, msg_type="a")
        assert run.next() is None
        assert run.reported["offsets"]["long"]["1:0"] == 12 * 28  # progress reports show what is stored
        tubemq.flush("long")
        assert len(run.next() or ()) == 6
    assert exactly(stream, tubemq)


def test_a_new_run_goes_on_where_the_last_one_ended(tubemq: EmbeddedTubeMQ) -> None:
    stream = Stream(tubemq, "long", maxOffsetsPerTrigger=4)
    for _ in range(3):
        send(tubemq)
        with stream.running() as run:
            run.next()
            tubemq.flush("long")
            run.next()
    with stream.running() as run:
        while run.next() is not None:
            pass
    assert exactly(stream, tubemq)


@pytest.mark.parametrize("behind", [0, 2])
def test_a_start_waits_for_the_flush_if_the_message_before_it_may_be_long(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock, behind: int
) -> None:
    """The message behind it is no fingerprint of its entry."""
    tubemq.send("long", b"1 ".ljust(LONG, b"."), 0)
    starts = '{"long": {"1:0": 28, "1:1": 28, "1:2": 28}, "short": {"1:0": 0, "1:1": 0, "1:2": 0}}'
    for number in range(behind):
        tubemq.send("long", b"%d" % number, number)
    flush_at(tubemq, skipping_clock, 15.0)
    stream = Stream(tubemq, "short", "long", startingOffsets=starts)
    with stream.running() as run:
        assert len(run.next() or ()) == behind
        assert 15.0 <= sum(skipping_clock.pauses) < 16.0
        tubemq.send("short", b"2", 0)
        assert len(run.next() or ()) == 1


def test_a_topic_may_be_deleted_while_a_start_waits_for_its_flush(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    """A query that tolerates losses then does not wait for it any more."""
    tubemq.send("long", b"1 ".ljust(LONG, b"."), 0)
    starts = '{"long": {"1:0": 28, "1:1": 28, "1:2": 28}, "short": {"1:0": 0, "1:1": 0, "1:2": 0}}'
    do_at(skipping_clock, 15.0, lambda: tubemq.delete_topic("long"))
    stream = Stream(tubemq, "short", "long", startingOffsets=starts, failOnDataLoss="false")
    with stream.running() as run:
        assert run.next() == []
        tubemq.send("short", b"2", 0)
        assert len(run.next() or ()) == 1


def test_a_start_notices_that_the_store_is_replaced_before_the_first_row(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    send(tubemq, 2)  # the last one is long
    flush_at(tubemq, skipping_clock, 15.0)
    stream = Stream(tubemq, "long", startingOffsets="latest", failOnDataLoss="false")
    with stream.running() as run:
        assert run.next() == []
    tubemq.crash_broker(1)
    tubemq.lose_disk(1)
    tubemq.start_broker(1)
    send(tubemq, 3)
    tubemq.flush("long")
    stream.run()
    assert exactly(stream, tubemq)


def test_a_limit_that_is_raised_counts_from_the_next_batch_on(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    """Before that, messages are read from memory."""
    stream = Stream(tubemq, "short")
    tubemq.send("short", b"first", 0)
    with stream.running() as run:
        assert len(run.next() or ()) == 1
        tubemq.create_topic("short", max_msg_size=OWN)
        skipping_clock.advance(1.0)  # a broker takes longer for a reload
        send(tubemq, topic="short")
        assert run.next() is None
        tubemq.flush("short")
        assert len(run.next() or ()) == 6
    assert exactly(stream, tubemq, "short")


def test_a_limit_that_is_lowered_still_counts(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    """Messages that were sent before may be in memory."""
    stream = Stream(tubemq, "long")
    tubemq.send("long", b"first", 0)
    with stream.running() as run:
        run.next()
        send(tubemq)
        tubemq.create_topic("long", max_msg_size=CLUSTER)
        skipping_clock.advance(5.0)
        assert run.next() is None
        tubemq.flush("long")
        assert len(run.next() or ()) == 7


def test_a_batch_never_ends_before_it_begins(tubemq: EmbeddedTubeMQ) -> None:
    """A start at the latest message lies behind the flushed end."""
    stream = Stream(tubemq, "long", startingOffsets="latest")
    send(tubemq)
    with stream.running() as run:
        assert run.next() == []
        assert set(stream.end.values()) == {6 * 28}
        tubemq.send("long", b"L" * LONG, 0)
        assert run.next() is None
        tubemq.flush("long")
        assert [len(body) for body in bodies(run.next() or ())] == [LONG]


def test_other_topics_cost_no_request_more(tubemq: EmbeddedTubeMQ) -> None:
    def requests(topic: str) -> int:
        """How often the planner registers for a micro-batch."""
        stream = Stream(tubemq, topic)
        with stream.running() as run:
            run.next()
            tubemq.send(topic, b"second", 0)
            tubemq.flush(topic)
            counted = tubemq.on("partition_register", group="readers_spark_look").count()
            assert len(run.next() or ()) == 1
            return counted.fired

    assert requests("long") == requests("short") + 1


def test_the_master_is_asked_at_most_once_a_second_and_only_for_new_messages(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    asked = tubemq.on("producer_heartbeat").count()
    with Stream(tubemq, "short").running() as run:
        run.next()
        assert asked.fired == 0
        tubemq.send("short", b"row", 0)
        begun = skipping_clock.monotonic()
        for _ in range(10):
            assert run.next()
            tubemq.send("short", b"row", 0)
        assert asked.fired <= 1 + skipping_clock.monotonic() - begun
        run.next()
        last = asked.fired
        for _ in range(10):
            skipping_clock.advance(5.0)
            assert run.next() is None
        assert asked.fired == last


# Reads that end with what was stored when they began


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_run_with_available_now_waits_for_the_flush(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock, partitions: int
) -> None:
    tubemq.create_topic("other", partitions, max_msg_size=OWN)
    for number in range(4):
        tubemq.send("other", b"x" * (LONG if number % 2 else 9), number % partitions)
    flush_at(tubemq, skipping_clock, 15.0, "other")
    stream = Stream(tubemq, "other")
    with stream.running("availableNow") as run:
        assert run.next() == []
        tubemq.send("other", b"later", 0)
        assert len(run.next() or ()) == 4
        assert run.next() is None
    assert 15.0 <= sum(skipping_clock.pauses) < 16.0


NOT_FLUSHED = (
    r"1:long:\d: topic long may have messages that are too long for its broker to deliver from memory, and in 30 s the "
    r"broker did not write \[0, 168\) to files.* Raise option 'tubemq.retry.maxElapsedMs' above the topic's "
    r"memCacheFlushIntvl, or lower that"
)


def test_a_run_with_available_now_fails_if_the_broker_never_flushes(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    send(tubemq)
    stream = Stream(tubemq, "long", tubemq_retry_maxElapsedMs=30_000)
    with pytest.raises(ServerError, match=NOT_FLUSHED):
        stream.run()
    assert 30.0 <= sum(skipping_clock.pauses) < 32.0
    tubemq.flush("long")
    stream.run()
    assert exactly(stream, tubemq)


def test_a_run_with_available_now_does_not_wait_for_what_a_crash_took(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    send(tubemq)
    tubemq.flush("long")
    send(tubemq)

    def crash(_: float) -> None:
        skipping_clock._on_sleep = lambda _: None
        tubemq.crash_broker(1)
        tubemq.start_broker(1)

    skipping_clock._on_sleep = crash
    stream = Stream(tubemq, "long")
    stream.run()
    assert exactly(stream, tubemq)
    assert len(stream.rows) == 6


def test_a_batch_read_waits_for_the_flush(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    send(tubemq)
    flush_at(tubemq, skipping_clock, 15.0)
    assert sorted(bodies(read_batch(tubemq, "long"))) == sorted(stored(tubemq, "long"))
    assert 15.0 <= sum(skipping_clock.pauses) < 16.0


def test_a_batch_read_fails_if_the_broker_never_flushes(tubemq: EmbeddedTubeMQ) -> None:
    send(tubemq)
    with pytest.raises(ServerError, match=NOT_FLUSHED):
        read_batch(tubemq, "long", tubemq_retry_maxElapsedMs=30_000)


def test_a_batch_read_that_ends_in_files_does_not_wait(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    send(tubemq)
    tubemq.flush("long")
    send(tubemq)
    ends = {"long": {f"1:{partition}": 6 * 28 for partition in range(3)}}
    assert len(read_batch(tubemq, "long", endingOffsets=ends)) == 6
    assert skipping_clock.pauses == []


@pytest.mark.parametrize("is_end", [False, True], ids=["start", "end"])
def test_a_search_by_time_does_not_pass_over_one(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock, is_end: bool
) -> None:
    """The first message that is late enough is long, and in memory."""
    for minute, size in [("202601010000", 9), ("202601010010", LONG), ("202601010020", 9)]:
        tubemq.send("long", minute.encode().ljust(size, b"."), 0, msg_time=minute)
    flush_at(tubemq, skipping_clock, 3.0)
    option = "endingTimestamp" if is_end else "startingTimestamp"
    rows = read_batch(tubemq, "long", **{option: "2026-01-01T00:10:00Z", "startingOffsets": None})
    assert [body[:12] for body in bodies(rows)] == ([b"202601010000"] if is_end else [b"202601010010", b"202601010020"])


def test_a_batch_read_of_a_topic_whose_limit_no_master_tells(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    """A topic that is closed for producers may still have long messages in memory."""
    send(tubemq)
    tubemq.close_topic("long", subscribe=False)
    flush_at(tubemq, skipping_clock, 3.0)
    assert len(read_batch(tubemq, "long")) == 6


# Masters that do not answer, or do not tell the limits


def test_a_stream_reads_files_while_no_master_answers(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    """The limit of any topic may have been raised meanwhile. A silent master does not delay the batches."""
    stream = Stream(tubemq, "long,short", metadataIntervalMs=20_000)
    for topic in ("long", "short"):
        tubemq.send(topic, b"first", 0)
        tubemq.flush(topic)
    with stream.running() as run:
        assert len(run.next() or ()) == 2
        tubemq.stop_master()
        for _ in range(10):
            skipping_clock.advance(5.0)
            send(tubemq)
            tubemq.send("short", b"again", 0)
            assert run.next() is None
            tubemq.flush("short")
            assert len(run.next() or ()) == 1
            tubemq.flush("long")
            assert len(run.next() or ()) == 6
        tubemq.start_master()
        skipping_clock.advance(30.0)
        tubemq.send("short", b"again", 0)
        assert len(run.next() or ()) == 1
        assert sum(skipping_clock.pauses) < 1.0


def test_a_new_stream_needs_an_answer(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.send("long", b"first", 0)
    with Stream(tubemq, "long", tubemq_retry_maxElapsedMs=2000).running() as run:
        run.reader.initialOffset()
        tubemq.stop_master()
        with pytest.raises(TransportError, match=r"no master answered"):
            run.next()


def test_a_master_that_has_forgotten_the_client_answers(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    with Stream(tubemq, "long").running() as run:
        tubemq.send("long", b"row", 0)
        run.next()
        for _ in range(3):
            skipping_clock.advance(60.0)
            tubemq.clock.advance(40.0)
            asked = tubemq.on("producer_register").count()
            tubemq.send("long", b"row", 0)
            run.next()
            assert asked.fired == 1


def test_a_query_that_may_not_ask_as_a_producer_says_so(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock, caplog: pytest.LogCaptureFixture
) -> None:
    tubemq.on("producer_register").fail(415, "no producer")
    stream = Stream(tubemq, "short")
    with stream.running() as run:
        for _ in range(3):
            tubemq.send("short", b"row", 0)
            assert len(run.next() or ()) == 1
            skipping_clock.advance(60.0)
    assert [one.levelno for one in caplog.records if "[topic-limits-unknown]" in one.message] == [logging.WARNING]
    assert "may be: registering a producer" in caplog.text


@pytest.mark.option("longMessageTopics")
def test_a_topic_that_the_option_names_needs_no_master(start: Start) -> None:
    """Masters before release 1.4 do not tell the limits of topics."""
    tubemq = start(release=Release.V1_2)
    asked = tubemq.on("producer_register").count()
    stream = Stream(tubemq, "long", longMessageTopics="long", tubemq_rpc_framing="prefixed")
    send(tubemq)
    with stream.running() as run:
        assert run.next() == []
        tubemq.flush("long")
        assert len(run.next() or ()) == 6
    assert asked.fired == 0
