"""The channel to one broker: how much it accepts, and when it gives a slow or silent broker up.

In the tests of the timeout, the clock and the broker do only what the test says.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests import messages
from tests.clocks import ManualClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.peers import reply_bytes
from tests.real.topics import TopicSpec
from tests.sending import settings
from tests.waiting import wait_until
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer import broker_channel
from tubemq_spark.client.producer.broker_channel import BrokerChannel, wait_for
from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.auth import broker_authorization
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Request, Response, decode_request
from tubemq_spark.protocol.frame import FrameDecoder
from tubemq_spark.protocol.lifecycle import Answer, SendEvent
from tubemq_spark.protocol.message import encode_content, encode_target
from tubemq_spark.protocol.metadata import Address, Broker, Partition

pytestmark = pytest.mark.timeout(60)

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
        stored = Answer(success=True, errCode=200, errMsg="1", messageId=1, appendTime=1, appendOffset=0)
        self._socket.sendall(reply_bytes(serial_no, Response(Method.SEND_MESSAGE, stored.SerializeToString())))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
    channel.submit(PendingRecord("demo", encode_content(bytes(size), 0, None, None), None), PARTITION, TARGET)


def attend(channel: BrokerChannel, clock: ManualClock, seconds: float) -> list[object]:
    """Let time pass while the channel is polled. Return the outcomes."""
    until, outcomes = clock.now + seconds, list[object]()
    while clock.now < until and not channel.is_broken:
        clock.now += min(Timings().slow_peer_grace, until - clock.now)
        outcomes += [outcome for _, outcome in channel.poll()]
    return outcomes


def read(broker: SlowBroker, channel: BrokerChannel, size: int) -> None:
    """Let the broker read, and wait until this host sees that bytes have left."""
    before = channel.connection.delivered
    broker.read(size)

    def have_left() -> bool:
        channel.flush()
        return channel.connection.delivered > before

    wait_until(have_left, patience=10.0)


def test_bytes_that_leave_restart_the_timeout(broker: SlowBroker, channel: BrokerChannel, clock: ManualClock) -> None:
    submit(channel, 4 * MIB)
    for _ in range(4):
        assert attend(channel, clock, 0.9 * TIMEOUT) == []
        read(broker, channel, 3 * A_FEW)
    assert attend(channel, clock, 0.9 * TIMEOUT) == []
    broker.answer()
    wait_until(lambda: channel.poll() != [], patience=10.0)
    assert not channel.is_broken


def test_the_timeout_of_a_send_begins_when_the_one_before_is_answered(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock
) -> None:
    for _ in range(5):
        submit(channel, 100)
    for _ in range(5):
        assert attend(channel, clock, 0.9 * TIMEOUT) == []
        broker.answer()
        wait_until(lambda: channel.poll() != [], patience=10.0)
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
    assert channel.is_silent
    assert channel.is_broken


def test_a_broker_that_does_not_answer_is_given_up(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock
) -> None:
    submit(channel, 100)
    channel.flush()
    broker.read(100)
    wait_until(lambda: channel.connection.delivered == channel.connection.queued)
    submit(channel, MIB)
    assert attend(channel, clock, 1.0) == []
    read(broker, channel, A_FEW)  # of the message behind
    outcomes = attend(channel, clock, TIMEOUT)
    assert len(outcomes) == 2
    assert str(outcomes[0]).endswith("did not answer within 10 s")


def test_a_link_below_the_minimum_speed_is_given_up(
    broker: SlowBroker, channel: BrokerChannel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It always accepts a few more bytes before the timeout."""
    monkeypatch.setattr(broker_channel, "_SLOWEST", A_FEW)
    submit(channel, 16 * MIB)
    begun, outcomes = clock.now, list[object]()
    while not outcomes:
        assert clock.now - begun <= RETRY_FOR + 16 * MIB / A_FEW + TIMEOUT
        outcomes = attend(channel, clock, 0.9 * TIMEOUT)
        if not outcomes:
            read(broker, channel, A_FEW)
    assert "did not take all of a message within" in str(outcomes[0])


def test_time_without_polls_does_not_count(broker: SlowBroker, channel: BrokerChannel, clock: ManualClock) -> None:
    submit(channel, 4 * MIB)
    for _ in range(4):
        clock.now += 10 * RETRY_FOR
        assert channel.poll() == []
        read(broker, channel, 3 * A_FEW)
    broker.answer()
    wait_until(lambda: channel.poll() != [], patience=10.0)
    assert not channel.is_broken


# How much a channel accepts


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running


def channel_to(cluster: EmbeddedCluster, max_in_flight: int) -> BrokerChannel:
    broker, lease = messages.broker(cluster, 1), ExitStack()
    connection = lease.enter_context(POOL.lease(broker.address, settings(cluster)))
    return BrokerChannel(broker, connection, lease, settings(cluster), max_in_flight)


def message(size: int) -> PendingRecord:
    return PendingRecord("demo", encode_content(bytes(size), 0, None, None), None)


@pytest.mark.parametrize(
    ("max_in_flight", "size", "room"),
    [(1, 10, 1), (7, 10, 7), (1000, MIB, 16), (1000, 20 * MIB, 1)],
    ids=["one", "by number", "by length", "very long"],
)
def test_the_channel_is_full_at_its_limit(cluster: EmbeddedCluster, max_in_flight: int, size: int, room: int) -> None:
    channel = channel_to(cluster, max_in_flight)
    for _ in range(3):
        taken = 0
        while not channel.is_full:
            channel.submit(message(size), PARTITION, TARGET)
            taken += 1
        assert taken == room == channel.in_flight
        while channel.in_flight:
            wait_for([channel], 10)
            for sent, _ in channel.poll():
                sent.on(SendEvent.ACKNOWLEDGED)
        assert not channel.is_full
    channel.close()


def test_a_record_too_long_for_a_frame_does_not_break_the_channel(cluster: EmbeddedCluster) -> None:
    channel = channel_to(cluster, 10)
    with pytest.raises(ProtocolError, match="a frame's body has 1 to"):
        channel.submit(message(30 * MIB), PARTITION, TARGET)
    channel.submit(message(10), PARTITION, TARGET)
    while channel.in_flight:
        wait_for([channel], 10)
        channel.poll()
    assert not channel.is_broken
    channel.close()
