# SPDX-License-Identifier: Apache-2.0
"""How records flow to brokers that are slow, full, unreachable, added or removed: spread, retries and memory; and the
channel to one broker: how much it accepts, and when it gives a slow or silent broker up.

In the tests of the channel's timeout, the clock and the broker do only what the test says.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests import messages
from tests.clocks import ManualClock, SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.peers import reply_bytes
from tests.real.topics import TopicSpec
from tests.sending import batch_of, bodies_in, settings
from tests.waiting import wait_until
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.connect_attempt import ConnectAttempts
from tubemq_spark.client.net.connection import Connection, wait_for_any
from tubemq_spark.client.net.open_socket import open_socket
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer import sender
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import OVERHEAD
from tubemq_spark.client.producer.send_queue import SendLimits
from tubemq_spark.client.producer.sender import BrokerChannel, Failed, Sender, Stored
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.auth import broker_authorization
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Request, Response, decode_request
from tubemq_spark.protocol.frame import FrameDecoder
from tubemq_spark.protocol.message import encode_target
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.send_acks import SendAck
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
    """The producers' clock in tests of backoff."""
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
        with Producer(same, SendLimits(size=max_bytes)) as producer:
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
    after_waiting = unstored[unstored.index(max(unstored)) + 1]
    assert after_waiting - 1 <= 63 / 64 * most, "a record is accepted for each that is stored, so batches are short"


# The channel to one broker: its timeout

MIB = 1 << 20
A_FEW = 1 << 18  # bytes; enough for the system to ask for more
TIMEOUT, RETRY_FOR = 10.0, 60.0  # seconds
PARTITION = Partition(1, "demo", 0)
TARGET = encode_target("tests", PARTITION, broker_authorization(None, 1, 0, 0))


class SlowBroker:
    """A broker that reads and answers only when a test says so. Its socket buffers a few bytes."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._decoder = FrameDecoder(Framing.STANDARD)
        self._unanswered: list[tuple[int, Request]] = []
        self.connection = Connection(Address(*self._listener.getsockname()), Framing.STANDARD, 10.0)
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(10.0)

    def close(self) -> None:
        self.connection.close()
        self._socket.close()
        self._listener.close()

    def read(self, size: int) -> None:
        """Read at least `size` bytes."""
        while size > 0:
            self.connection.flush()
            data = self._socket.recv(1 << 16)
            size -= len(data)
            self._unanswered += [(one.serial_no, decode_request(one.body)) for one in self._decoder.feed(data)]

    def answer(self) -> None:
        """Answer the oldest message that was read."""
        while not self._unanswered:
            self.read(1)
        serial_no, _ = self._unanswered.pop(0)
        stored = SendAck(success=True, errCode=200, errMsg="1", messageId=1, appendTime=1, appendOffset=0)
        self._socket.sendall(reply_bytes(serial_no, Response(Method.SEND_MESSAGE, stored.SerializeToString())))


@pytest.fixture
def broker() -> Iterator[SlowBroker]:
    broker = SlowBroker()
    yield broker
    broker.close()


@pytest.fixture
def channel(broker: SlowBroker, clock: ManualClock) -> BrokerChannel:
    address = broker.connection.address
    settings = ClientSettings((address,), rpc_timeout=TIMEOUT, retry_for=RETRY_FOR, clock=clock)
    return BrokerChannel(Broker(1, address), broker.connection, ExitStack(), settings, 1000)


def submit(channel: BrokerChannel, size: int) -> None:
    channel.submit(batch_of(bytes(size), partition=PARTITION), TARGET)


def attend(channel: BrokerChannel, clock: ManualClock, seconds: float) -> list[object]:
    """Let time pass while the channel is polled. Return the outcomes."""
    until, outcomes = clock.now + seconds, list[object]()
    while clock.now < until and not channel.is_broken:
        clock.now += min(Timings().slow_peer_grace, until - clock.now)
        stored, failed = channel.poll()
        outcomes += [*stored, *(one.outcome for one in failed)]
    return outcomes


def read(broker: SlowBroker, channel: BrokerChannel, size: int) -> None:
    """Let the broker read, and wait until this host sees that bytes have left."""
    before = channel.connection.delivered
    broker.read(size)

    def have_left() -> bool:
        channel.flush()
        return channel.connection.delivered > before

    wait_until(have_left, patience=10.0)


@pytest.mark.parametrize(
    ("in_flight", "size", "pauses"),
    [(499, 4, []), (500, 4, [0.002]), (500, 10_000, [])],
    ids=["few", "many", "not written yet"],
)
def test_a_sender_with_much_in_flight_waits_for_many_answers(
    channel: BrokerChannel, clock: ManualClock, in_flight: int, size: int, pauses: list[float]
) -> None:
    attempts = ConnectAttempts(channel.settings, lambda broker_id: None)
    sending = Sender(channel.settings, attempts, 1000, wants_answers=False)
    sending.connected[channel.broker.broker_id] = channel
    channel.submit(batch_of(*[bytes(size)] * in_flight, partition=PARTITION), TARGET)
    channel.flush()
    sending.wait(0.01)
    assert clock.pauses == pauses


def test_a_broker_is_not_silent_while_nothing_is_sent(channel: BrokerChannel, clock: ManualClock) -> None:
    """For example while the producer looks for an earlier attempt of its task."""
    clock.now += LONG
    submit(channel, 4)
    sent_at = clock.now
    attend(channel, clock, 2 * TIMEOUT)
    assert channel.silent_since == sent_at


def test_bytes_that_leave_restart_the_timeout(broker: SlowBroker, channel: BrokerChannel, clock: ManualClock) -> None:
    submit(channel, 4 * MIB)
    for _ in range(4):
        assert attend(channel, clock, 0.9 * TIMEOUT) == []
        read(broker, channel, 3 * A_FEW)
    assert attend(channel, clock, 0.9 * TIMEOUT) == []
    broker.answer()
    wait_until(lambda: channel.poll()[0], patience=10.0)
    assert not channel.is_broken


def test_the_timeout_of_a_send_begins_when_the_one_before_is_answered(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock
) -> None:
    """Also in one batch."""
    submit(channel, 100)
    channel.submit(batch_of(*[bytes(100)] * 4, partition=PARTITION), TARGET)
    for _ in range(5):
        assert attend(channel, clock, 0.9 * TIMEOUT) == []
        broker.answer()
        wait_until(lambda: channel.poll()[0], patience=10.0)
    assert not channel.is_broken


def test_a_broker_that_accepts_no_bytes_is_given_up(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock
) -> None:
    submit(channel, 4 * MIB)
    assert attend(channel, clock, 0.9 * TIMEOUT) == []
    read(broker, channel, 3 * A_FEW)
    attend(channel, clock, 1.0)  # so that the channel sees the progress
    (outcome,) = attend(channel, clock, TIMEOUT)
    assert isinstance(outcome, TransportError)
    assert str(outcome).endswith("did not take all of a message within 20.0 s")
    assert channel.silent_since is not None
    assert channel.is_broken


def test_a_link_below_the_minimum_speed_is_given_up(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It always accepts a few more bytes before the timeout."""
    monkeypatch.setattr(sender, "_SLOWEST", A_FEW)
    submit(channel, 16 * MIB)
    begun, outcomes = clock.now, list[object]()
    while not outcomes:
        assert clock.now - begun <= RETRY_FOR + 16 * MIB / A_FEW + TIMEOUT
        outcomes = attend(channel, clock, 0.9 * TIMEOUT)
        if not outcomes:
            read(broker, channel, A_FEW)
    assert "did not take all of a message within" in str(outcomes[0])


# How much a channel accepts


@pytest.fixture
def one_broker() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running


def channel_to(cluster: EmbeddedCluster, max_in_flight: int, *, wants_answers: bool = False) -> BrokerChannel:
    broker, lease = messages.broker(cluster, 1), ExitStack()
    connection = lease.enter_context(POOL().lease(broker.address, settings(cluster)))
    return BrokerChannel(broker, connection, lease, settings(cluster), max_in_flight, wants_answers=wants_answers)


def wait_for_answers(channel: BrokerChannel) -> tuple[list[Stored], list[Failed]]:
    stored, failed = list[Stored](), list[Failed]()
    while channel.in_flight:
        wait_for_any([channel.connection], 10)
        more_stored, more_failed = channel.poll()
        stored += more_stored
        failed += more_failed
    return stored, failed


def test_a_record_too_long_for_a_frame_does_not_break_the_channel(one_broker: EmbeddedCluster) -> None:
    channel = channel_to(one_broker, 10)
    with pytest.raises(ProtocolError, match="a frame's body has 1 to"):
        channel.submit(batch_of(b"short", bytes(30 * MIB), partition=PARTITION), TARGET)
    assert channel.in_flight == 0
    submit(channel, 10)
    stored, failed = wait_for_answers(channel)
    assert (len(stored), failed) == (1, [])
    assert not channel.is_broken
    channel.close()


@pytest.mark.parametrize("wants_answers", [True, False])
def test_each_record_of_a_batch_has_an_outcome(one_broker: EmbeddedCluster, *, wants_answers: bool) -> None:
    """Records that fail in the same way, one behind the other, fail together."""
    for nth, times, code in ((4, 2, 500), (6, 1, 503), (9, 1, 500)):
        one_broker.tubemq.on("send_message", nth=nth - (nth > 4) * 2 - (nth > 6), times=times).fail(code)
    channel = channel_to(one_broker, 100, wants_answers=wants_answers)
    batch = batch_of(*(b"%d" % n for n in range(12)), partition=PARTITION)
    channel.submit(batch, TARGET)
    stored, failed = wait_for_answers(channel)
    places = [range(start, end) for _, start, end, _ in stored]
    assert [n for place in places for n in place] == [0, 1, 2, 6, 7, 9, 10, 11]
    assert [(one.batch.bodies, getattr(one.outcome, "errCode", None)) for one in failed] == [
        ([b"3", b"4"], 500),
        ([b"5"], 503),
        ([b"8"], 500),
    ]
    assert [len(answers) for *_, answers in stored] == [len(place) * wants_answers for place in places]
    channel.close()


@pytest.mark.parametrize(
    ("max_in_flight", "size", "room"),
    [(1, 10, 1), (7, 10, 7), (1000, MIB, 16), (1000, 20 * MIB, 1)],
    ids=["one", "by number", "by length", "very long"],
)
def test_the_channel_is_full_at_its_limit(
    one_broker: EmbeddedCluster, max_in_flight: int, size: int, room: int
) -> None:
    channel = channel_to(one_broker, max_in_flight)
    for _ in range(3):
        taken = 0
        while channel.room:
            submit(channel, size)
            taken += 1
        assert taken == room == channel.in_flight
        wait_for_answers(channel)
        assert channel.room == max_in_flight
    channel.close()
