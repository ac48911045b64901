# SPDX-License-Identifier: Apache-2.0
"""Log lines about servers that are down; the retry time is spent once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from tests.faults.engine import Query, fill, options, stored
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import TransportError
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.testing import EmbeddedTubeMQ

ADDRESS = r"127\.0\.0\.1:\d+"
UNTIL = r"; failing for \d+ s, retrying for \d+ s more, until \d\d:\d\d:\d\d"
READING = rf"reading 1:one:0 at broker 1 at {ADDRESS}"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log the first failed attempt, and no later one."""
    monkeypatch.setattr(OUTAGES(), "timings", Timings(first_outage_warning=0.0))
    OUTAGES().forget()
    yield
    OUTAGES().forget()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.levelno == logging.WARNING and not record.message.startswith("[heartbeat-failed]")
    ]


def test_a_task_logs_an_outage_of_its_broker_and_its_end(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    query.be_patient()
    query.planned = lambda: tubemq.on("get_message", times=3).close_connection()
    query.run()
    assert query.rows == stored(tubemq, "one")
    down, up = warnings(caplog)
    assert re.fullmatch(rf"\[outage\] {READING} fails: .* broke: the peer closed it.*{UNTIL}", down)
    assert re.fullmatch(rf"\[outage-over\] {READING} works again, after \d+ s", up)


def test_a_task_logs_that_its_broker_refuses_fetches(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    query.be_patient()
    query.planned = lambda: tubemq.on("get_message", times=4).fail(503, "closed for a while")
    query.run()
    assert query.rows == stored(tubemq, "one")
    said = rf"{READING} fails: the last answer to a fetch was 503 SERVICE_UNAVAILABLE: closed for a while{UNTIL}"
    assert re.fullmatch(rf"\[outage\] {said}", warnings(caplog)[0])


def test_waiting_for_messages_is_not_logged_as_an_outage(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    query.be_patient()
    query.planned = lambda: tubemq.on("get_message", times=3).fail(404, "current data is being flushed")
    query.run()
    assert warnings(caplog) == []


def test_a_driver_logs_an_outage_of_a_broker(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    driver = MicroBatchPlanner(options(tubemq, retry_for=30.0))
    try:
        start = driver.latest(driver.initial())
        for method in ("partition_register", "commit_offset"):
            tubemq.on(method, times=3).fail(503, "closed for a while")
        assert driver.latest(start) == start
    finally:
        driver.stop()
    down, up = warnings(caplog)
    what = "claiming partitions of group readers"
    assert re.fullmatch(rf"\[outage\] {what} fails: .* 503 closed for a while; \d partitions are missing{UNTIL}", down)
    assert up.startswith(f"[outage-over] {what} works again")


def test_a_driver_logs_an_outage_of_the_master(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    tubemq.on("consumer_register_v2", times=5).close_connection()
    MicroBatchPlanner(options(tubemq, retry_for=30.0, are_proven=True)).stop()
    down, up = warnings(caplog)
    assert re.fullmatch(rf"\[outage\] asking the master {ADDRESS} fails: no master answered: .*{UNTIL}", down)
    assert re.fullmatch(rf"\[outage-over\] asking the master {ADDRESS} works again, after \d+ s", up)


def test_a_planner_logs_that_it_waits_for_claims(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    fill(tubemq)
    tubemq.on("partition_register", times=6).close_connection()
    plan_batch(options(tubemq, "one", retry_for=30.0))
    assert len(warnings(caplog)) == 2


def test_an_outage_of_the_whole_cluster_takes_the_retry_time_only_once(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    driver = MicroBatchPlanner(options(tubemq, retry_for=0.5))
    try:
        start = driver.latest(driver.initial())
        tubemq.stop_broker(1)
        asked = tubemq.on("get_partition_meta").close_connection()
        again = tubemq.on("consumer_register_v2").close_connection()
        with pytest.raises(TransportError, match=r"gave up after 0\.5 s.*No master answers either.*tubemq\.master"):
            driver.latest(start)
        assert (asked.fired, again.fired) == (1, 0)
    finally:
        tubemq.clear_faults()
        driver.stop()
