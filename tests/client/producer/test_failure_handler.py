# SPDX-License-Identifier: Apache-2.0
"""Failed sends: one warning soon, then one a minute, however many tasks there are; and the delivery timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.clocks import ManualClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import batch_of, bodies_in, settings
from tests.waiting import wait_until
from tubemq_spark.client.producer.failure_handler import DeliveryTimeout
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ

RETRY_FOR = 30.0  # seconds
LOOK_UP = 3.0  # seconds that a look-up gets at least


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUTAGES(), "timings", Timings(first_outage_warning=0.0))


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, brokers=1) as running:
        yield running


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_broker_that_is_down_is_logged_once_for_all_tasks(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [Producer(settings(cluster, retry_for=RETRY_FOR), rows_of=f"of task partition {n}") for n in range(3)]
    for task in tasks:
        task.send("demo", b"before")
        task.flush()
    cluster.stop_broker(1)
    threads = []
    for task in tasks:
        task.send("demo", b"after")
        threads.append(threading.Thread(target=task.flush))
        threads[-1].start()

    wait_until(lambda: warnings(caplog))
    cluster.start_broker(1)
    for thread in threads:
        thread.join()
    for task in tasks:
        task.close()
    first, *more = warnings(caplog)
    broker = f"broker 1 at {cluster.broker_address(1)}"
    assert broker in first
    assert "rows of task partition " in first
    assert "retrying for " in first
    assert [text.split(", after")[0] for text in more] == [f"[outage-over] {broker} works again"]
    assert bodies_in(cluster)[b"after"] == 3


@pytest.mark.parametrize(
    ("fail", "what"),
    [
        (lambda tubemq: tubemq.on("send_message", times=2).fail(419), "broker 1 at "),
        (lambda tubemq: tubemq.on("send_message", times=2).fail(503), "broker 1 at "),
        (lambda tubemq: tubemq.on("send_message", times=2).close_connection(), "broker 1 at "),
        (lambda tubemq: tubemq.on("send_message", times=2).fail(500), "1:demo:0 "),
    ],
    ids=["full", "not in service", "connections break", "storage"],
)
def test_failed_sends_are_logged_with_their_rows(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, fail: Callable[[EmbeddedTubeMQ], object], what: str
) -> None:
    fail(cluster.tubemq)
    with Producer(settings(cluster, retry_for=RETRY_FOR), rows_of="of task partition 3") as producer:
        producer.send("demo", b"a", target=(1, 0))
    first, *more = [text for text in warnings(caplog) if "heartbeat" not in text]
    assert first.startswith(f"[outage] rows of task partition 3 for {what}")
    assert "are not acknowledged: " in first
    assert len(more) == 1
    assert " works again, after " in more[0]


def test_the_delivery_timeout_starts_without_waiting_for_a_master(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the user would wait twice the time that the docs promise."""
    producer = Producer(settings(cluster, retry_for=0.5))
    producer.send("demo", b"a")
    producer.flush()
    cluster.stop_broker(1)
    cluster.kill_master()
    producer.send("demo", b"b")
    with pytest.raises(TransportError, match="a message for topic demo was not acknowledged within"):
        producer.flush()
    producer.close()
    assert not any("no master answered" in text for text in warnings(caplog))


# The delivery timeout starts with the first failure, and runs only while the producer does


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timeout(clock: ManualClock) -> DeliveryTimeout:
    return DeliveryTimeout(ClientSettings((), retry_for=RETRY_FOR, clock=clock))


def failed(timeout: DeliveryTimeout) -> RecordBatch:
    """Let two records fail now."""
    batch = batch_of(b"a", b"b", partition=Partition(1, "demo", 0))
    timeout.count(batch, TransportError("broke"))
    return batch


def test_the_first_records_that_failed_expire_first(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    first = failed(timeout)
    clock.advance(4.0)
    second, others = failed(timeout), batch_of(b"c", partition=Partition(1, "demo", 0))
    assert timeout.left([second, first]) == RETRY_FOR - 4.0
    assert timeout.expired([others, second, first], []) is None
    clock.advance(RETRY_FOR - 4.0)
    timeout.suspend()
    assert timeout.expired([others, second, first], []) == (first, RETRY_FOR)
    assert timeout.expired([others, second], []) is None
    clock.advance(4.0)
    timeout.suspend()
    assert timeout.expired([others, second, first], []) == (first, RETRY_FOR + 4.0)


def test_a_pause_of_the_caller_counts_for_a_second_at_most(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    batch = failed(timeout)
    timeout.suspend()
    for pause in (0.5, 1000.0):
        clock.advance(pause)
        timeout.resume()
    assert timeout.left([batch]) == RETRY_FOR - 1.5


def test_records_in_flight_may_still_arrive(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    batch = failed(timeout)
    clock.advance(RETRY_FOR)
    timeout.suspend()
    assert timeout.expired([], []) is None
    timeout.count(batch, TransportError("broke again"))
    assert timeout.expired([batch], []) == (batch, RETRY_FOR)


def test_an_unresolved_record_gets_time_for_its_look_up(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    batch = failed(timeout)
    clock.advance(RETRY_FOR + LOOK_UP - 0.1)
    timeout.suspend()
    assert timeout.expired([], [batch]) is None
    clock.advance(0.1)
    timeout.suspend()
    assert timeout.expired([], [batch]) == (batch, RETRY_FOR + LOOK_UP)


def test_a_further_failure_does_not_start_the_timeout_again(timeout: DeliveryTimeout, clock: ManualClock) -> None:
    """Not of a part of the records either."""
    batch = failed(timeout)
    clock.advance(RETRY_FOR)
    part = batch.sent(slice(1))
    timeout.count(part, TransportError("broke again"))
    assert timeout.expired([batch], []) == (batch, RETRY_FOR)
    assert timeout.expired([part], []) == (part, RETRY_FOR)
    assert part.failure is not None
    assert part.failure.tries == 2
