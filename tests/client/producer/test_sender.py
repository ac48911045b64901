"""How records flow to brokers that are slow, full, unreachable, added or removed: spread, retries and memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.clocks import ManualClock, SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.waiting import wait_until
from tubemq_spark.client.cluster.session_pool import REFRESH_THREAD, SESSIONS
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.open_socket import open_socket
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.send_queue import OVERHEAD
from tubemq_spark.errors import AuthError, ConfigError, ServerError, TransportError
from tubemq_spark.protocol.metadata import Address, Partition
from tubemq_spark.testing import Calls, Fault

SPEC = TopicSpec(partitions=3)
LONG = 1000.0  # seconds by the cluster's clock
PATIENT = 2 * LONG  # seconds to wait for an answer


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions."""
    with embedded_cluster(topics={"demo": SPEC}) as running:
        yield running


@pytest.fixture(autouse=True)
def all_are_waited_for(use_timings: UseTimings) -> None:
    """Records for any partition wait for connections to all brokers. Otherwise the broker that is connected first would
    get all of them."""
    use_timings(connect_batching=600.0)


@pytest.fixture
def clock() -> ManualClock:
    """The producers' clock in tests of circuit breakers."""
    return ManualClock(time.monotonic())


def send_all(producer: Producer, count: int, topic: str = "demo") -> Mapping[Partition, int]:
    """Send `count` records, flush, and return how many each partition has stored."""
    for row in range(count):
        producer.send(topic, b"body %d" % row, row=row)
    return dict(producer.flush())


def by_broker(stored: Mapping[Partition, int]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for partition, count in stored.items():
        counts[partition.broker_id] += count
    return counts


def connections(cluster: EmbeddedCluster, broker_id: int) -> set[object]:
    """Return the connections that the broker has open."""
    tubemq = cluster.tubemq
    return tubemq._on_thread(lambda: set(tubemq._servers.broker(broker_id).plain.connections))


# Spread


@pytest.mark.parametrize("brokers", [1, 3])
def test_records_are_spread_evenly(brokers: int) -> None:
    with embedded_cluster(topics={"demo": SPEC}, brokers=brokers) as cluster, Producer(settings(cluster)) as producer:
        stored = send_all(producer, 6000)
    even = 6000 / (3 * brokers)
    assert len(stored) == 3 * brokers
    assert max(abs(count - even) for count in stored.values()) < even / 2


def test_a_slow_broker_does_not_delay_others(cluster: EmbeddedCluster) -> None:
    """The slow broker answers when the other one has stored 4000 of 5000 records."""
    slow = cluster.tubemq.on("send_message", broker=1, times=1).delay(LONG)
    advance = cluster.tubemq.on("send_message", broker=2, nth=4000, times=1).run(
        lambda: cluster.tubemq.clock.advance(LONG), after=True
    )
    with Producer(settings(cluster, rpc_timeout=PATIENT)) as producer:
        stored = by_broker(send_all(producer, 5000))
    assert slow.fired == advance.fired == 1
    assert stored[2] >= 4000
    assert 0 < stored[1] <= 1000
    assert set(bodies_in(cluster).values()) == {1}


# Brokers that fail


def fail_with(calls: Calls, kind: str) -> Fault:
    return calls.close_connection() if kind == "closed" else calls.fail(int(kind))


@pytest.mark.parametrize("kind", ["503", "419", "closed"])
def test_a_failed_broker_is_avoided_then_half_open_then_used_again(
    cluster: EmbeddedCluster, clock: ManualClock, kind: str
) -> None:
    fault = fail_with(cluster.tubemq.on("send_message", broker=1), kind)
    with Producer(settings(cluster, clock=clock)) as producer:
        send_all(producer, 30)
        met = fault.fired
        assert met > 0
        send_all(producer, 300)
        assert fault.fired == met, "the broker is avoided"
        for tried in (1, 2):
            clock.now += 130.0
            while fault.fired < met + tried:  # it may have to be connected first
                send_all(producer, 300)
            assert fault.fired == met + tried, "one record probes it"
        assert set(by_broker(producer.flush())) == {2}
        fault.remove()
        clock.now += 130.0
        while not by_broker(send_all(producer, 300))[1]:
            pass
        before = by_broker(producer.flush())[1]
        assert by_broker(send_all(producer, 300))[1] == before + 150
    assert bodies_in(cluster).total() == producer.acknowledged


@pytest.mark.parametrize("kind", ["503", "closed", "no answer"])
def test_producers_of_a_session_share_broker_failures(
    cluster: EmbeddedCluster, use_timings: UseTimings, kind: str
) -> None:
    use_timings(slow_peer_grace=0.05)
    calls = cluster.tubemq.on("send_message", broker=1)
    fault = calls.silence() if kind == "no answer" else fail_with(calls, kind)
    same = settings(cluster, rpc_timeout=0.5 if kind == "no answer" else 10.0)
    with Producer(same) as producer:
        send_all(producer, 30)
    met = fault.fired
    assert met > 0
    for _ in range(4):
        with Producer(same) as producer:
            assert set(by_broker(send_all(producer, 100))) == {2}
    assert fault.fired == met
    SESSIONS.close()
    with Producer(same) as producer:
        send_all(producer, 30)
    assert fault.fired > met


@pytest.mark.parametrize("kind", ["503", "419", "closed"])
def test_the_whole_cluster_is_never_avoided(kind: str) -> None:
    with embedded_cluster(topics={"demo": SPEC}, brokers=3) as cluster:
        faults = [fail_with(cluster.tubemq.on("send_message", broker=n, times=4), kind) for n in cluster.broker_ids]
        with Producer(settings(cluster)) as producer:
            assert sum(send_all(producer, 300).values()) == 300
        assert all(fault.fired for fault in faults)
        assert set(bodies_in(cluster).values()) == {1}


def test_a_backoff_ends_while_another_broker_is_silent(cluster: EmbeddedCluster) -> None:
    """A record for the first broker is sent before the second one answers."""
    refusal = cluster.tubemq.on("send_message", broker=1, times=3).fail(503)
    with Producer(settings(cluster, rpc_timeout=PATIENT)) as producer:
        assert by_broker(send_all(producer, 6)) == {2: 6}
        assert refusal.fired == 3
        silent = cluster.tubemq.on("send_message", broker=2, times=1).delay(LONG)
        advance = cluster.tubemq.on("send_message", broker=1, times=1).run(
            lambda: cluster.tubemq.clock.advance(LONG), after=True
        )
        producer.send("demo", b"two", target=(2, 0))
        producer.send("demo", b"one", target=(1, 0))
        producer.flush()
    assert silent.fired == advance.fired == 1


def test_a_rejected_token_is_retried_with_pauses(cluster: EmbeddedCluster) -> None:
    """No master is there to give another token."""
    refusal = cluster.tubemq.on("send_message").fail(415)
    producer = Producer(settings(cluster, retry_for=2.0, clock=SkippingClock()))
    producer.limit("demo")
    cluster.tubemq.stop_master()
    producer.send("demo", b"a", row=0)
    with pytest.raises(AuthError, match=r"^row 0 .* tries .*415 CERTIFICATE_FAILURE.*; 0 of 1 messages so far are"):
        producer.flush()
    assert 1 < refusal.fired < 20
    producer.close()


def test_an_idle_connection_that_the_broker_closes_is_no_failure(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        send_all(producer, 300)
        cluster.stop_broker(1)
        cluster.start_broker(1)
        wait_until(lambda: not connections(cluster, 1))
        assert by_broker(send_all(producer, 300)) == {1: 300, 2: 300}


# Connecting


@dataclass
class BlackHole:
    attempts: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let all attempts fail."""
        self.released.set()
        wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("tubemq-connect")])


@pytest.fixture
def unreachable(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings
) -> Iterator[BlackHole]:
    """Connections to broker 2 get no answer until the test ends; records wait for them only for a moment."""
    hole = BlackHole()
    host, port = cluster.broker_address(2).split(":")
    black_hole = Address(host, int(port))

    def open_or_wait(address: Address, *others: object) -> object:
        if address == black_hole:
            hole.attempts += 1
            hole.released.wait()
            raise TransportError(f"cannot connect to {address}: timed out")
        return open_socket(address, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(connection_module, "open_socket", open_or_wait)
    use_timings(connect_batching=0.3)
    yield hole
    hole.release()


@pytest.mark.usefixtures("unreachable")
def test_an_unreachable_broker_does_not_delay_others(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        assert by_broker(send_all(producer, 2000)) == {1: 2000}


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "targets"])
def test_records_for_an_unreachable_broker_do_not_delay_others(cluster: EmbeddedCluster, keyed: bool) -> None:
    """As long as there is memory."""
    producer = Producer(settings(cluster, retry_for=PATIENT))
    for row in range(8000):
        how = {"key": b"%d" % row} if keyed else {"target": (1 + row % 2, 0)}
        producer.send("demo", b"%d" % row, **how)
    while producer.acknowledged < 3000:
        producer.send("demo", b"near", target=(1, 1))
    producer.close()


def test_producers_share_one_connect_attempt(cluster: EmbeddedCluster, unreachable: BlackHole) -> None:
    """Micro-batches that are shorter than an attempt start no further one, and know when it has failed."""
    same = settings(cluster)
    for _ in range(4):
        with Producer(same) as producer, Producer(same) as other:
            assert by_broker(send_all(producer, 50)) == by_broker(send_all(other, 50)) == {1: 50}
    wait_until(lambda: unreachable.attempts)
    assert unreachable.attempts == 1
    unreachable.release()
    for _ in range(4):
        with Producer(same) as producer:
            assert by_broker(send_all(producer, 50)) == {1: 50}
    assert unreachable.attempts == 1


def test_each_producer_gets_a_connection_after_a_shared_attempt(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()
    same = settings(cluster)
    with Producer(same) as first, Producer(same) as second:
        first.limit("demo")
        monkeypatch.setattr(connection_module, "open_socket", lambda *those: may_open.wait(60) and open_socket(*those))
        for producer in (first, second):
            producer.prepare("demo")
            producer.send("demo", b"a", target=(1, 0))
        may_open.set()
        assert sum(first.flush().values()) == sum(second.flush().values()) == 1
        assert len(connections(cluster, 1)) == 2


@pytest.mark.parametrize("code", [500, 403])
def test_a_restarted_broker_is_used_when_no_other_accepts_records(cluster: EmbeddedCluster, code: int) -> None:
    """Although it had failed, and the other broker is connected."""
    same = settings(cluster, retry_for=PATIENT)
    with Producer(same) as producer:
        producer.limit("demo")
        cluster.stop_broker(2)
        refusals = cluster.tubemq.on("send_message", broker=1).fail(code, "as the test wants it")
        producer.send("demo", b"a")
        flushing = threading.Thread(target=lambda: stored.update(producer.flush()))
        stored: dict[Partition, int] = {}
        flushing.start()
        wait_until(lambda: 2 in SESSIONS.shared(same).health.failures.brokers and refusals.fired > 0)
        cluster.start_broker(2)
        flushing.join()
        assert by_broker(stored) == {2: 1}


def test_prepare_connects_before_the_first_record(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        producer.limit("demo")
        sends = cluster.tubemq.on("send_message").count()
        producer.prepare("demo")
        wait_until(lambda: connections(cluster, 1) and connections(cluster, 2))
        assert sends.fired == 0
        ahead = [connections(cluster, n) for n in (1, 2)]
        assert by_broker(send_all(producer, 300)) == {1: 150, 2: 150}
        assert [connections(cluster, n) for n in (1, 2)] == ahead


def test_unused_connections_go_to_the_next_producer(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        producer.limit("demo")
        producer.prepare("demo")
    wait_until(lambda: connections(cluster, 1) and connections(cluster, 2))
    ahead = [connections(cluster, n) for n in (1, 2)]
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("tubemq-connect")])
    with Producer(settings(cluster)) as producer:
        send_all(producer, 300)
    assert [connections(cluster, n) for n in (1, 2)] == ahead


@pytest.mark.parametrize("idle", [True, False], ids=["for too long", "not for long"])
def test_connections_are_reused_unless_idle_for_too_long(cluster: EmbeddedCluster, idle: bool) -> None:
    clock = SkippingClock()
    same = settings(cluster, idle_for=60.0, clock=clock)
    with Producer(same) as producer:
        send_all(producer, 300)
    before = connections(cluster, 1) | connections(cluster, 2)
    clock.advance(61.0 if idle else 59.0)
    with Producer(same) as producer:
        send_all(producer, 300)
    wait_until(lambda: len(connections(cluster, 1)) == len(connections(cluster, 2)) == 1)
    after = connections(cluster, 1) | connections(cluster, 2)
    assert not before & after if idle else before == after


# Memory


@pytest.mark.parametrize(
    ("size", "max_bytes", "most"),
    [(100_000, 2_000_000, 20), (100_000, 50_000, 1), (10, 2_000_000, 2_000_000 // OVERHEAD)],
    ids=["by bytes", "one that is longer than the limit", "by the overhead of small ones"],
)
def test_memory_is_bounded_while_no_broker_answers(
    cluster: EmbeddedCluster, size: int, max_bytes: int, most: int
) -> None:
    """The producer accepts records only as others are stored."""
    held = [cluster.tubemq.on("send_message", broker=n, times=1).delay(LONG) for n in cluster.broker_ids]
    pulled, unstored = Counter[str](), list[int]()

    def rows(producer: Producer) -> Iterator[bytes]:
        for _ in range(3 * most):
            pulled["rows"] += 1
            unstored.append(pulled.total() - producer.acknowledged)
            yield bytes(size)

    def write() -> None:
        same = settings(cluster, rpc_timeout=PATIENT)
        with Producer(same, max_bytes=max_bytes) as producer:
            for body in rows(producer):
                producer.send("demo", body)

    writing = threading.Thread(target=write)
    writing.start()
    reached = 0.9 * most
    wait_until(lambda: pulled.total() >= reached and any(fault.fired for fault in held))
    while writing.is_alive():
        cluster.tubemq.clock.advance(LONG)
        writing.join(0.05)
    assert len(unstored) == 3 * most == bodies_in(cluster).total()
    assert 0 < max(unstored) <= most


# Partitions that are added and removed


def refresh_metadata(cluster: EmbeddedCluster) -> None:
    """Refresh the metadata, as a heartbeat does."""
    with SESSIONS.lease(settings(cluster)) as session:
        session.refresh_once()


def test_new_partitions_are_used(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        assert len(send_all(producer, 600)) == 6
        cluster.create("demo", TopicSpec(partitions=5))
        refresh_metadata(cluster)
        before = dict(producer.flush())
        stored = send_all(producer, 400)  # so few that no broker has far more in flight than the other
    assert {partition: count - before.get(partition, 0) for partition, count in stored.items()} == {
        Partition(broker, "demo", number): 40 for broker in (1, 2) for number in range(5)
    }


def test_new_brokers_are_used(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        send_all(producer, 60)
        third = cluster.tubemq.add_broker()
        cluster.create("demo", SPEC)
        refresh_metadata(cluster)
        while third not in by_broker(send_all(producer, 600)):
            pass
        assert set(by_broker(producer.flush())) == {1, 2, third}


def test_a_closed_partition_is_avoided_and_tried_again(cluster: EmbeddedCluster, clock: ManualClock) -> None:
    closed = cluster.tubemq.on("send_message", broker=1, partition=2).fail(403, "closed")
    with Producer(settings(cluster, clock=clock)) as producer:
        send_all(producer, 30)
        met = closed.fired
        assert met > 0
        send_all(producer, 300)
        assert closed.fired == met
        clock.now += 3.5
        send_all(producer, 30)
        assert closed.fired > met, "it may be open again"
        closed.remove()
        clock.now += 3.5
        stored = send_all(producer, 300)
    assert stored[Partition(1, "demo", 2)] > 0


def test_removed_partitions_are_not_tried_again(cluster: EmbeddedCluster, clock: ManualClock) -> None:
    with Producer(settings(cluster, clock=clock)) as producer:
        send_all(producer, 30)
        closed = cluster.tubemq.on("send_message", broker=2).fail(403, "closed")
        cluster.tubemq._on_thread(lambda: cluster.tubemq._catalog.topics["demo"].pop(2))
        send_all(producer, 300)
        wait_until(lambda: REFRESH_THREAD not in [one.name for one in threading.enumerate()])
        met = closed.fired
        assert met > 0
        for _ in range(3):
            clock.now += 100.0
            assert by_broker(send_all(producer, 30))[2] == 15
    assert closed.fired == met


@pytest.mark.parametrize("code", [403, 500])
def test_failed_partitions_are_probed_with_one_record_each(
    cluster: EmbeddedCluster, clock: ManualClock, code: int
) -> None:
    fault = cluster.tubemq.on("send_message", broker=1).fail(code, "as the test wants it")
    with Producer(settings(cluster, clock=clock)) as producer:
        send_all(producer, 300)
        met = fault.fired
        assert met > 3
        for times in (1, 2, 3):
            clock.now += 3.1
            while fault.fired < met + 3 * times:
                send_all(producer, 300)
            assert fault.fired == met + 3 * times
            assert set(by_broker(producer.flush())) == {2}


def test_a_closed_partition_does_not_delay_others_while_the_master_is_silent(cluster: EmbeddedCluster) -> None:
    """The master answers only after all records are stored."""
    with Producer(settings(cluster, rpc_timeout=PATIENT)) as producer:
        producer.limit("demo")
        asked = cluster.tubemq.on("producer_heartbeat").delay(LONG)
        closed = cluster.tubemq.on("send_message", broker=1, partition=0).fail(403, "closed")
        for _ in range(4):
            send_all(producer, 300)
        assert closed.fired > 0
        assert REFRESH_THREAD in [one.name for one in threading.enumerate()]
        wait_until(lambda: asked.fired)
        assert asked.fired == 1
        asked.remove()
        cluster.tubemq.clock.advance(LONG)


def test_a_topic_that_is_removed_while_sending_is_an_error(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.on("send_message", nth=101, times=1).run(lambda: cluster.tubemq.delete_topic("demo"))
    producer = Producer(settings(cluster, retry_for=0.3), max_in_flight=1, rows_of="of task partition 4")
    with pytest.raises(
        ServerError,
        match=r"^row \d+ of task partition 4 for topic demo was not acknowledged .*403 FORBIDDEN: .*not existed.*"
        r"; 100 of 300 rows of task partition 4 are acknowledged\. Check ",
    ):
        send_all(producer, 300)
    assert producer.acknowledged == 100
    producer.close()


@pytest.mark.parametrize("code", [403, 419])
def test_a_topic_that_accepts_nothing_more_is_an_error(cluster: EmbeddedCluster, code: int) -> None:
    """The topic is closed, or the brokers' disks are full."""
    for broker_id in cluster.broker_ids:
        cluster.tubemq.on("send_message", broker=broker_id, nth=51).fail(code, "as the test wants it")
    producer = Producer(settings(cluster, retry_for=2.0, clock=SkippingClock()), max_in_flight=1)
    with pytest.raises(
        ServerError, match=rf"tries on all brokers .* {code} .*; 100 of 300 messages so far are acknowledged\. Check "
    ) as caught:
        send_all(producer, 300)
    assert caught.value.code == code
    assert bodies_in(cluster).total() == producer.acknowledged == 100
    producer.close()


# Sizes


def test_a_topic_may_have_its_own_size_limit(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.create_topic("small", 1, max_msg_size=2000)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(settings(cluster), rows_of="of task partition 4"))
        assert producer.limit("small") == 2000 < producer.limit("demo")
        sends = stack.enter_context(cluster.tubemq.on("send_message").count())
        for how in ({}, {"key": b"k"}, {"target": (1, 0)}):
            with pytest.raises(
                ConfigError, match=r"^row 3 of task partition 4: value has 2001 bytes, and topic small takes 2000 at "
            ):
                producer.send("small", bytes(2001), row=3, **how)
        producer.flush()
        assert sends.fired == 0
        producer.send("small", bytes(2000), row=4)
        producer.send("demo", bytes(2001), row=5)
        assert sum(producer.flush().values()) == 2
