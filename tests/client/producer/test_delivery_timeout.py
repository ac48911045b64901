"""The delivery timeout: it starts with the first failure, and runs only while the producer does."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tubemq_spark.client.producer.delivery_timeout import DeliveryTimeout
from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SendEvent

RETRY_FOR = 10.0  # seconds
LOOK_UP = 3.0  # seconds that a look-up gets at least


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timeout(clock: ManualClock) -> DeliveryTimeout:
    return DeliveryTimeout(ClientSettings((), retry_for=RETRY_FOR, clock=clock))


def failed(timeout: DeliveryTimeout, event: SendEvent = SendEvent.FAILED) -> PendingRecord:
    """Return a record whose send fails now."""
    record = PendingRecord("demo", b"", None)
    record.sent(Partition(1, "demo", 0), 0.0, 0)
    record.failed(event, TransportError("broke"), timeout.now(), broker_was_silent=False)
    timeout.watch(record)
    return record


def test_the_first_record_that_failed_expires_first(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    assert len(timeout) == 0
    first = failed(timeout)
    clock.advance(4.0)
    failed(timeout)
    assert timeout.left == RETRY_FOR - 4.0
    assert timeout.expired() is None
    clock.advance(6.0)
    timeout.suspend()
    assert timeout.expired() == (first, RETRY_FOR)
    timeout.forget(first)
    assert timeout.expired() is None
    assert len(timeout) == 1


def test_a_pause_of_the_caller_counts_for_a_second_at_most(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    failed(timeout)
    timeout.suspend()
    for pause in (0.5, 1000.0):
        clock.advance(pause)
        timeout.resume()
    assert timeout.left == RETRY_FOR - 1.5


def test_a_record_in_flight_may_still_arrive(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    record = failed(timeout)
    record.sent(record.partition, 0.0, 0)
    clock.advance(RETRY_FOR)
    timeout.suspend()
    assert timeout.expired() is None


def test_an_unresolved_record_gets_time_for_its_look_up(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    record = failed(timeout, SendEvent.OUTCOME_UNKNOWN)
    clock.advance(RETRY_FOR + LOOK_UP - 0.1)
    timeout.suspend()
    assert timeout.expired() is None
    clock.advance(0.1)
    assert timeout.now() == RETRY_FOR + LOOK_UP
    assert timeout.expired() == (record, RETRY_FOR + LOOK_UP)
