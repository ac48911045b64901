# SPDX-License-Identifier: Apache-2.0
"""Servers that are away: what the log says of it, how long a query or a write waits, and how it goes on."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.waiting import wait_until
from tests.without_spark.query import Query, counts, fill, options, settings, stored, write
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.errors import DataLossError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.testing import EmbeddedTubeMQ

ROWS = [b"row %d" % number for number in range(60)]
SERVER = r"127\.0\.0\.1:\d+"
READING = rf"reading 1:one:0 at broker 1 at {SERVER}"
CLAIMING = "claiming partitions of group readers"
FOR = r"; failing for \d+ s, retrying for \d+ s more, until \d\d:\d\d:\d\d"


@pytest.fixture(autouse=True)
def _forget_outages() -> Iterator[None]:
    OUTAGES().forget()
    yield
    OUTAGES().forget()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    heartbeats = "[heartbeat-failed]"
    found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in found if not message.startswith(heartbeats)]


# The log


def read_with(tubemq: EmbeddedTubeMQ, disturb: Callable[[], object]) -> None:
    fill(tubemq, 24)
    query = Query(tubemq, "one", retry_for=300.0)
    query.planned = disturb
    query.run()
    assert query.rows == stored(tubemq, "one")


def find_with(tubemq: EmbeddedTubeMQ) -> None:
    driver = MicroBatchPlanner(options(tubemq, retry_for=300.0, master_reachable=True))
    try:
        start = driver.latest(driver.initial())
        for method in ("commit_offset", "partition_register"):
            tubemq.on(method, times=60).fail(503, "closed for a while")
        assert driver.latest(start) == start
    finally:
        driver.stop()


def begin_with(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.on("consumer_register_v2", times=30).close_connection()
    MicroBatchPlanner(options(tubemq, retry_for=300.0, master_reachable=True)).stop()


def plan_with(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq, 24)
    tubemq.on("partition_register", times=20).close_connection()
    plan_batch(options(tubemq, "one", retry_for=300.0))


def cut(tubemq: EmbeddedTubeMQ) -> None:
    read_with(tubemq, lambda: tubemq.on("get_message", times=20).close_connection())


def refuse(tubemq: EmbeddedTubeMQ) -> None:
    read_with(tubemq, lambda: tubemq.on("get_message", times=60).fail(503, "closed for a while"))


STORIES: dict[str, tuple[Callable[[EmbeddedTubeMQ], None], str, str]] = {
    "a task is cut": (cut, READING, ".* broke: the peer closed it.*"),
    "a task is refused": (refuse, READING, ".* 503 SERVICE_UNAVAILABLE: closed for a while"),
    "a driver and a broker": (find_with, CLAIMING, r".* 503 closed for a while; \d partitions are missing"),
    "a driver and the master": (begin_with, rf"asking the master {SERVER}", "no master answered: .*"),
    "a planner": (plan_with, "asking for the ends of stores in group readers_spark_look", ".*"),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_outage_and_its_end_are_logged(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, story: str) -> None:
    act, what, reason = STORIES[story]
    act(tubemq)
    first, last = warnings(caplog)[0], warnings(caplog)[-1]
    assert re.fullmatch(rf"\[outage\] {what} fails: {reason}{FOR}", first), first
    failed_for = re.search(r"failing for (\d+) s", first)
    assert failed_for is not None
    assert 5 <= int(failed_for[1]) < 20
    assert re.fullmatch(rf"\[outage-over\] {what} works again, after \d+ s", last), last


def test_waiting_for_messages_is_not_logged_as_an_outage(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    read_with(tubemq, lambda: tubemq.on("get_message", times=60).fail(404, "current data is being flushed"))
    assert warnings(caplog) == []


# How long it takes


def test_an_outage_of_the_whole_cluster_takes_a_little_longer_than_the_retry_time(
    tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock
) -> None:
    """A single master may just restart when it is asked whether partitions are gone."""
    fill(tubemq, 24)
    driver = MicroBatchPlanner(options(tubemq, retry_for=60))
    try:
        start = driver.latest(driver.initial())
        tubemq.stop_broker(1)
        tubemq.stop_master()
        begun = skipping_clock.monotonic()
        with pytest.raises(TransportError, match=r"gave up after 60 s.*No master answers either.*tubemq\.master"):
            driver.latest(start)
        assert 60 <= skipping_clock.monotonic() - begun < 75
    finally:
        driver.stop()


def test_a_query_does_not_start_without_a_master(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    fill(tubemq, 24)
    query = Query(tubemq)
    tubemq.stop_master()
    with pytest.raises(TransportError, match=r"^no master answered: .*refused.* Check option 'tubemq.master'"):
        query.run()
    assert sum(skipping_clock.pauses) < 10
    tubemq.start_master()
    query.run()
    assert query.rows == stored(tubemq)


def test_a_read_task_fails_if_its_broker_does_not_come_back(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq)
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.crash_broker(1)),
        pytest.raises(TransportError, match=r"^1:one:0 at broker 1 at .* cannot connect to .* Connection refused"),
    ):
        query.run()
    tubemq.start_broker(1)
    query.run()
    assert query.rows == stored(tubemq)


def test_a_write_task_fails_if_its_broker_does_not_come_back(tubemq: EmbeddedTubeMQ) -> None:
    with (
        tubemq.on("send_message", nth=30, times=1).run(lambda: tubemq.stop_broker(1)),
        pytest.raises(TransportError, match=rf"^row 29 of the task .*; the last one, to partition .*{SERVER}.* 29 of "),
    ):
        write(tubemq, ROWS, max_in_flight=1)
    tubemq.start_broker(1)
    assert counts(tubemq) == Counter(ROWS[:29])
    assert write(tubemq, ROWS) == len(ROWS)


# Messages that are gone


@pytest.mark.parametrize("topic", ["one", "pair"])
def test_retention_in_the_middle_of_a_range(tubemq: EmbeddedTubeMQ, topic: str) -> None:
    fill(tubemq)
    query = Query(tubemq, topic)
    tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.expire(topic, keep=10))
    end = ((80 if topic == "one" else 160) - 10) * UNIT
    for words in ("messages of the range .* are lost: retention removed ", ""):
        with pytest.raises(DataLossError, match=rf"^1:{topic}:0: {words}") as lost:
            query.run()
        assert (lost.value.asked, lost.value.offered) == (0, end)
    assert not query.rows


# Heartbeats: threads, which a simulation in one thread has not


def test_a_consumer_of_rows_may_pause_for_two_minutes(
    tubemq: EmbeddedTubeMQ,
    use_timings: UseTimings,
    skipping_clock: SkippingClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fetches are in flight then for longer than any timeout of the client. No request fails or is repeated."""
    use_timings(heartbeat_period=0.02)
    monkeypatch.setattr("tubemq_spark.source.input_partition.ROWS", 20)
    fill(tubemq)
    query = Query(tubemq, rpc_timeout=10.0, retry_for=1.0)
    stops: list[str] = []

    def stop() -> None:
        (holder,) = {name for name in tubemq.claims().values() if "_p0_" in name or "_p1_" in name} or {""}
        if not holder or holder in stops:
            return
        for _ in range(6):
            skipping_clock.advance(20.0)
            tubemq.clock.advance(20)
            with tubemq.on("partition_heartbeat", client=holder).count() as seen:
                wait_until(lambda seen=seen: seen.fired, "the next heartbeat")  # type: ignore[misc]
        stops.append(holder)

    query.given = stop
    with caplog.at_level(logging.INFO):
        query.run()
    assert stops
    assert "trying again" not in caplog.text
    assert query.rows == stored(tubemq)


def test_a_session_that_waits_for_a_silent_master_can_be_closed(
    tubemq: EmbeddedTubeMQ, use_timings: UseTimings
) -> None:
    """A query must stop soon, even while its heartbeat waits for an answer."""
    use_timings(heartbeat_period=0.01, master_close_timeout=0.05)
    session = ConsumerSession(settings(tubemq, rpc_timeout=30.0), "g", ["one"])
    session.register()
    closes = tubemq.on("consumer_close").count()
    with tubemq.on("consumer_heartbeat_v2", times=1).drop_request() as asked:
        wait_until(lambda: asked.fired == 1, "a heartbeat")
        session.close()
    assert closes.fired == 0  # the session did not wait until it may send that request
