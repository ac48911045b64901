"""Sends over slow links: bytes that go out are progress, and a message's time begins when the one before is answered.

Time is the test's own; the peer reads and answers when it is told to.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clocks import ManualClock
from tests.peers import reply_bytes
from tests.waiting import wait_until
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.producer import broker_channel as link_module
from tubemq_spark.client.producer.broker_channel import BrokerChannel
from tubemq_spark.client.producer.pending_record import PendingRecord
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.auth import broker_authorization
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Request, Response, decode_request
from tubemq_spark.protocol.frame import FrameDecoder
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.producer_lifecycle import Answer
from tubemq_spark.protocol.send_request import encode_content, encode_target

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20
A_FEW = 1 << 18  # bytes, so many that the system asks for more
TIMEOUT, RETRY_FOR = 10.0, 60.0  # seconds
PARTITION = Partition(1, "demo", 0)
TARGET = encode_target("tests", PARTITION, broker_authorization(None, 1, 0, 0))


class SlowBroker:
    """Has room for a few bytes that it was not told to read."""

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
        """So many bytes at least."""
        while size > 0:
            self.connection.flush()
            data = self._socket.recv(1 << 16)
            size -= len(data)
            self._unanswered += [(one.serial_no, decode_request(one.body)) for one in self._decoder.feed(data)]

    def answer(self) -> None:
        """The oldest message that was read."""
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
def link(broker: SlowBroker, clock: ManualClock) -> BrokerChannel:
    address = broker.connection.address
    settings = ClientSettings((address,), rpc_timeout=TIMEOUT, retry_for=RETRY_FOR, clock=clock)
    return BrokerChannel(Broker(1, address), broker.connection, ExitStack(), settings, 1000)


def submit(link: BrokerChannel, size: int) -> None:
    link.submit(PendingRecord("demo", encode_content(bytes(size), 0, None, None), None), PARTITION, TARGET)


def attend(link: BrokerChannel, clock: ManualClock, seconds: float) -> list[object]:
    """Time goes by, and the link is looked after meanwhile; what came of messages."""
    until, outcomes = clock.now + seconds, list[object]()
    while clock.now < until and not link.is_broken:
        clock.now += min(Timings().slow_peer_grace, until - clock.now)
        outcomes += [outcome for _, outcome in link.poll()]
    return outcomes


def read(broker: SlowBroker, link: BrokerChannel, size: int) -> None:
    """The broker reads, and this host hears of it."""
    before = link.connection.delivered
    broker.read(size)

    def is_heard() -> bool:
        link.flush()
        return link.connection.delivered > before

    wait_until(is_heard, patience=10.0)


def test_bytes_that_go_out_are_progress(broker: SlowBroker, link: BrokerChannel, clock: ManualClock) -> None:
    submit(link, 4 * MIB)
    for _ in range(4):
        assert attend(link, clock, 0.9 * TIMEOUT) == []
        read(broker, link, 3 * A_FEW)
    assert attend(link, clock, 0.9 * TIMEOUT) == []
    broker.answer()
    wait_until(lambda: link.poll() != [], patience=10.0)
    assert not link.is_broken


def test_a_messages_time_begins_when_the_one_before_is_answered(
    broker: SlowBroker, link: BrokerChannel, clock: ManualClock
) -> None:
    for _ in range(5):
        submit(link, 100)
    for _ in range(5):
        assert attend(link, clock, 0.9 * TIMEOUT) == []
        broker.answer()
        wait_until(lambda: link.poll() != [], patience=10.0)
    assert not link.is_broken


def test_a_broker_that_takes_no_more_bytes_is_given_up(
    broker: SlowBroker, link: BrokerChannel, clock: ManualClock
) -> None:
    submit(link, 4 * MIB)
    assert attend(link, clock, 0.9 * TIMEOUT) == []
    read(broker, link, 3 * A_FEW)
    attend(link, clock, 1.0)  # the progress is seen
    (outcome,) = attend(link, clock, TIMEOUT)
    assert isinstance(outcome, TransportError)
    assert str(outcome).endswith("did not take all of a message within 20.0 s")
    assert link.is_silent
    assert link.is_broken


def test_a_broker_that_took_all_and_is_silent_is_given_up(
    broker: SlowBroker, link: BrokerChannel, clock: ManualClock
) -> None:
    submit(link, 100)
    link.flush()
    broker.read(100)
    wait_until(lambda: link.connection.delivered == link.connection.queued)
    submit(link, MIB)
    assert attend(link, clock, 1.0) == []
    read(broker, link, A_FEW)  # of the message behind
    outcomes = attend(link, clock, TIMEOUT)
    assert len(outcomes) == 2
    assert str(outcomes[0]).endswith("did not answer within 10 s")


def test_a_broker_that_trickles_is_given_up(
    broker: SlowBroker, link: BrokerChannel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It always takes a few more bytes before the timeout."""
    monkeypatch.setattr(link_module, "_SLOWEST", A_FEW)
    submit(link, 16 * MIB)
    begun, outcomes = clock.now, list[object]()
    while not outcomes:
        assert clock.now - begun <= RETRY_FOR + 16 * MIB / A_FEW + TIMEOUT
        outcomes = attend(link, clock, 0.9 * TIMEOUT)
        if not outcomes:
            read(broker, link, A_FEW)
    assert "did not take all of a message within" in str(outcomes[0])


def test_time_in_which_nobody_sends_does_not_count(broker: SlowBroker, link: BrokerChannel, clock: ManualClock) -> None:
    submit(link, 4 * MIB)
    for _ in range(4):
        clock.now += 10 * RETRY_FOR
        assert link.poll() == []
        read(broker, link, 3 * A_FEW)
    broker.answer()
    wait_until(lambda: link.poll() != [], patience=10.0)
    assert not link.is_broken
