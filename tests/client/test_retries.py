# SPDX-License-Identifier: Apache-2.0
"""Warnings about outages: when the log has them, and how often."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.clocks import ManualClock
from tubemq_spark.client.retries import OutageLog

LOG = logging.getLogger("tubemq_spark.test")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fail_for(outages: OutageLog, clock: ManualClock, seconds: int, left: float | None = None) -> None:
    """Fail once a second."""
    for _ in range(seconds):
        outages.failed(LOG, "broker 1", lambda: "broker 1 cannot be reached", left, clock=clock)
        clock.advance(1.0)


def test_a_short_outage_is_not_logged(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 4)
    outages.worked(LOG, "broker 1")
    fail_for(outages, clock, 4)
    assert caplog.records == []


def test_an_outage_is_logged_after_5_seconds_and_then_once_a_minute(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 130, left=50.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert caplog.messages[0].startswith(
        "[outage] broker 1 cannot be reached; failing for 5 s, retrying for 50 s more, until "
    )
    assert [message.split(",")[0][-5:] for message in caplog.messages[1:]] == [" 65 s", "125 s"]


def test_the_last_attempt_is_not_logged_because_its_error_follows(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 10, left=0.0)
    assert caplog.records == []
    fail_for(outages, clock, 1, left=0.4)
    assert ", retrying for less than 1 s more, until " in caplog.messages[0]


def test_the_end_of_an_outage_is_logged_if_the_outage_was(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 10)
    outages.worked(LOG, "broker 1")
    outages.worked(LOG, "broker 1")
    assert caplog.messages[0] == "[outage] broker 1 cannot be reached; failing for 5 s, retrying"
    assert caplog.messages[1:] == ["[outage-over] broker 1 works again, after 10 s"]


def test_a_failure_long_after_the_last_one_begins_another_outage(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that failed before may have given up."""
    outages = OutageLog()
    fail_for(outages, clock, 3)
    clock.advance(1000.0)
    fail_for(outages, clock, 3)
    assert caplog.records == []


def test_an_outage_goes_on_while_attempts_come_every_two_minutes(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a producer at a broker that it has lost."""
    outages = OutageLog()
    for _ in range(4):
        fail_for(outages, clock, 1)
        clock.advance(120.0)
    assert [message.split(",")[0][-6:] for message in caplog.messages] == [" 121 s", " 242 s", " 363 s"]


def test_threads_share_the_warnings(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 5)
    threads = [
        threading.Thread(
            target=outages.failed, args=(LOG, "broker 1", lambda: "broker 1 is away"), kwargs={"clock": clock}
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caplog.messages == ["[outage] broker 1 is away; failing for 5 s, retrying"]
