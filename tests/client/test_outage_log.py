"""How often an outage is told of."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tubemq_spark.client import outage_log
from tubemq_spark.client.outage_log import OutageLog

LOG = logging.getLogger("tubemq_spark.test")


class Clock:
    """Stands still but for what a test adds."""

    strftime, localtime, time = time.strftime, time.localtime, time.time

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(outage_log, "time", clock)
    return clock


def fail_for(outages: OutageLog, clock: Clock, seconds: int, left: float | None = None) -> None:
    """A try each second."""
    for _ in range(seconds):
        outages.failed(LOG, "broker 1", lambda: "broker 1 cannot be reached", left)
        clock.now += 1.0


def test_a_short_outage_is_not_told(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 4)
    outages.worked(LOG, "broker 1")
    fail_for(outages, clock, 4)
    assert caplog.records == []


def test_an_outage_is_told_after_5_seconds_and_once_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 130, left=50.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert caplog.messages[0].startswith("broker 1 cannot be reached; for 5 s now; it is tried again until ")
    assert caplog.messages[0].endswith(", in 50 s")
    assert [message.split(";")[1] for message in caplog.messages[1:]] == [" for 65 s now", " for 125 s now"]


def test_the_end_of_an_outage_is_told_when_the_outage_was(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 10)
    outages.worked(LOG, "broker 1")
    outages.worked(LOG, "broker 1")
    assert caplog.messages[0] == "broker 1 cannot be reached; for 5 s now; it is tried again"
    assert caplog.messages[1:] == ["broker 1 works again, after 10 s"]


def test_a_failure_long_after_the_last_one_begins_another_outage(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """For who met the last one may have given up."""
    outages = OutageLog()
    fail_for(outages, clock, 3)
    clock.now += 1000.0
    fail_for(outages, clock, 3)
    assert caplog.records == []


def test_threads_share_the_warnings(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    fail_for(outages, clock, 5)
    threads = [
        threading.Thread(target=outages.failed, args=(LOG, "broker 1", lambda: "broker 1 is away")) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caplog.messages == ["broker 1 is away; for 5 s now; it is tried again"]
