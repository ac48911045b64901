"""One broker, one connection, and the messages on their way over it."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack

from tubemq_spark.client.connection import Connection, wait_for_any
from tubemq_spark.client.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.lifecycle import Lifecycle
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.produce import SEND, SendEvent, SendState

_CONNECT_WITHIN = 3.0  # seconds; the other brokers' messages wait that long for one that is not there
_MAX_UNANSWERED_BYTES = 16 << 20  # however many messages may be unanswered, they stay in memory
_GRACE = 1.0  # seconds

Answer = broker_pb.SendMessageResponseB2P
Outcome = Answer | Failure | TransportError | ProtocolError


class Outgoing(Lifecycle[SendState, SendEvent]):
    """A message from its row to its broker. `content` is `protocol.send.encode_content`'s, `row` its number if it has
    one.

    What a message that never fails does not need stands in the class.
    """

    partition: Partition  # where it went last, or was to go …
    deadline: float  # … and when an answer is due
    tries = 0  # that failed
    failing_since: float | None = None
    problem: TubeMQError | None = None  # why the last try failed
    authorized_anew = False

    def __init__(self, topic: str, content: bytes, row: int | None) -> None:
        super().__init__("a message", SendState.WAITING, SEND)
        self.topic = topic
        self.content = content
        self.row = row

    def failed(self, problem: TubeMQError, now: float) -> None:
        """Notes another try that came to nothing; `now` is on the monotonic clock."""
        self.tries += 1
        self.problem = problem
        if self.failing_since is None:
            self.failing_since = now


class Link:
    """Sends to one broker, for one thread, and tells what became of each message.

    `full` when it takes no more until answers come in. `broken` when the connection is lost; `pump` has given all its
    messages back then.
    """

    def __init__(self, settings: ClientSettings, broker: Broker, max_in_flight: int) -> None:
        """`TransportError` when the broker cannot be reached."""
        self.broker = broker
        self.full = False
        self.broken = False
        self._timeout = settings.rpc_timeout
        self._max_in_flight = max_in_flight
        self._unanswered: dict[int, Outgoing] = {}
        self._bytes = 0
        self._attended = time.monotonic()
        self._patience = self._attended + _GRACE
        self._lease = ExitStack()
        timeout = min(_CONNECT_WITHIN, settings.rpc_timeout)
        lease = POOL.lease(broker.address, settings, timeout)
        self.connection: Connection = self._lease.enter_context(lease)

    def __repr__(self) -> str:
        return f"<Link to {self.broker}, {len(self._unanswered)} unanswered>"

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def submit(self, message: Outgoing, partition: Partition, target: bytes) -> None:
        """Queues `message` for the next `pump`; `ProtocolError` when it is too long for the wire."""
        serial_no = self.connection.submit_bytes(
            ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, target + message.content, self._timeout
        )
        message.on(SendEvent.SENT)
        message.partition = partition
        message.deadline = time.monotonic() + self._timeout
        self._unanswered[serial_no] = message
        self._bytes += len(message.content)
        self.full = len(self._unanswered) >= self._max_in_flight or self._bytes >= _MAX_UNANSWERED_BYTES

    def pump(self) -> list[tuple[Outgoing, Outcome]]:
        """Writes and reads without waiting; the messages that were answered, or never will be."""
        error: TransportError | ProtocolError | None = None
        try:
            self.connection.flush()
        except (TransportError, ProtocolError) as cause:
            error = cause
        outcomes = [(self._answered(serial_no), _outcome(reply)) for serial_no, reply in self.connection.take().items()]
        if error is None and self._is_silent(bool(outcomes)):
            error = TransportError(f"{self.broker} did not answer within {self._timeout:g} s")
        if error is not None:
            outcomes += [(message, error) for message in self._unanswered.values()]
            self._unanswered.clear()
            self.broken = True
            self.connection.close()
        self.full = len(self._unanswered) >= self._max_in_flight or self._bytes >= _MAX_UNANSWERED_BYTES
        return outcomes

    def close(self) -> None:
        """Gives the connection back, or closes it when something is unanswered."""
        self._lease.close()

    def silent_after(self) -> float:
        """The moment from which on a broker that has not answered is given up; far away when it owes nothing."""
        for oldest in self._unanswered.values():
            return max(oldest.deadline, self._patience)
        return float("inf")

    def _answered(self, serial_no: int) -> Outgoing:
        message = self._unanswered.pop(serial_no)
        self._bytes -= len(message.content)
        return message

    def _is_silent(self, answered: bool) -> bool:
        # Who feeds the producer may be busy for longer than the timeout: an answer may have waited in the socket, or
        # the request in this process. So nobody is silent before he was listened to for a moment.
        now = time.monotonic()
        if answered or now - self._attended > _GRACE:
            self._patience = now + _GRACE
        self._attended = now
        return now >= self.silent_after()


def wait_for(links: Collection[Link], seconds: float) -> None:
    """Waits up to `seconds` until `pump` has something to do for one of `links`."""
    wait_for_any([link.connection for link in links], seconds)
    for link in links:
        link._attended = time.monotonic()


def _outcome(reply: Response | Failure) -> Outcome:
    if isinstance(reply, Failure):
        return reply
    try:
        return parse(Answer, reply.data)
    except ProtocolError as error:
        return error
