"""One broker, one connection, and the messages on their way over it."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from itertools import islice

from tubemq_spark.client.net.connection import Connection, wait_for_any
from tubemq_spark.client.producer.pending_record import PendingRecord
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.producer_lifecycle import SendEvent

_MAX_UNANSWERED_BYTES = 16 << 20  # however many messages may be unanswered, they stay in memory
_GRACE = 1.0  # seconds
_LOOK_AGAIN = 0.2  # seconds between two looks at how many bytes have gone out
_SLOWEST = 16 * 1024  # bytes a second; a link that takes less for very long is given up
_SERVICE, _METHOD, _SENT = ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, SendEvent.SENT  # looked up for each message

Answer = broker_pb.SendMessageResponseB2P
Outcome = Answer | Failure | TransportError | ProtocolError


class BrokerChannel:
    """Sends to one broker, for one thread, and tells what became of each message.

    The broker handles messages one after the other. So the timeout is that of the oldest unanswered one, and it begins
    when the one before was answered and all its bytes went out: a slow link needs time for those. It is given up all
    the same when one message takes longer than `retry_for`, and than its bytes over a link of 16 KiB/s.

    `full` when it takes no more until answers come in. `broken` when the connection is lost, or given up since the
    broker `is_silent`; `pump` has given all its messages back then.
    """

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        lease: ExitStack,
        rpc_timeout: float,
        max_in_flight: int,
        retry_for: float = 60.0,
    ) -> None:
        """`lease` gives the connection back when it is closed; `rpc_timeout` and `retry_for` are in seconds."""
        self.broker = broker
        self.connection = connection
        self.full = False
        self.broken = False
        self.is_silent = False
        self._lease = lease
        self._broke: TransportError | ProtocolError | None = None  # why there is nothing more to expect
        self._timeout = rpc_timeout
        self._longest = max(rpc_timeout, retry_for)
        self._max_in_flight = max_in_flight
        self._unanswered: dict[int, PendingRecord] = {}
        self._bytes = 0
        self._attended = time.monotonic()
        self._listening_since = self._attended  # without a long break
        self._patience = self._attended + _GRACE
        self._turn_began = self._attended  # of the oldest unanswered message
        self._moved_at = self._attended  # when its turn began, or bytes of it were last seen to go out
        self._delivered = connection.delivered  # when that was last looked at

    def __repr__(self) -> str:
        return f"<Link to {self.broker}, {len(self._unanswered)} unanswered>"

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    @property
    def owing(self) -> float | None:
        """Since when the broker has owed its oldest answer, as far as anybody listened; None when it owes none."""
        for oldest in self._unanswered.values():
            return max(oldest.sent_at, self._listening_since)
        return None

    @property
    def silent_since(self) -> float | None:
        """Since when the broker that `is_silent` owes an answer, on the monotonic clock; None for one that is not."""
        return self._turn_began if self.is_silent else None

    def submit(self, message: PendingRecord, partition: Partition, target: bytes) -> None:
        """Queues `message` for the next `pump`; `ProtocolError` when it is too long for the wire."""
        serial_no = self.connection.submit_bytes(_SERVICE, _METHOD, target + message.content, self._timeout)
        message.on(_SENT)
        message.partition = partition
        message.sent_at = time.monotonic()
        message.ends_at = self.connection.queued
        if not self._unanswered:
            self._turn_began = self._moved_at = message.sent_at
        self._unanswered[serial_no] = message
        self._bytes += len(message.content)
        self.full = len(self._unanswered) >= self._max_in_flight or self._bytes >= _MAX_UNANSWERED_BYTES

    def push(self) -> None:
        """Writes as much as goes without waiting; what goes wrong, the next `pump` tells."""
        try:
            self.connection.flush()
        except (TransportError, ProtocolError) as cause:
            self._broke = cause

    def pump(self) -> list[tuple[PendingRecord, Outcome]]:
        """Writes and reads without waiting; the messages that were answered, or never will be."""
        if self._broke is None:
            self.push()
        error = self._broke
        outcomes = [(self._answered(serial_no), _outcome(reply)) for serial_no, reply in self.connection.take().items()]
        if error is None and self._owes_too_long(bool(outcomes)):
            self.is_silent = True
            error = TransportError(self._complaint())
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

    def look_at(self) -> float:
        """The moment at which to call `pump` again even if nothing comes; far away when the broker owes nothing."""
        if self._is_going_out:
            return min(self.silent_after(), self._attended + _LOOK_AGAIN)
        return self.silent_after()

    def silent_after(self) -> float:
        """The moment from which on a broker that has not answered is given up; far away when it owes nothing."""
        for oldest in self._unanswered.values():
            last = self._turn_began + self._longest + len(oldest.content) / _SLOWEST
            return max(min(self._moved_at + self._timeout, last), self._patience)
        return float("inf")

    @property
    def _is_going_out(self) -> bool:
        """Whether bytes of the oldest unanswered message are still to go out, as far as was looked."""
        return any(self._delivered < oldest.ends_at for oldest in islice(self._unanswered.values(), 1))

    def _complaint(self) -> str:
        if self._is_going_out:
            return f"{self.broker} did not take all of a message within {time.monotonic() - self._turn_began:.1f} s"
        return f"{self.broker} did not answer within {self._timeout:g} s"

    def _answered(self, serial_no: int) -> PendingRecord:
        message = self._unanswered.pop(serial_no)
        self._bytes -= len(message.content)
        return message

    def _owes_too_long(self, answered: bool) -> bool:
        # Who feeds the producer may be busy for longer than the timeout: an answer may have waited in the socket, or
        # the request in this process. So nobody is silent before he was listened to for a moment.
        now = time.monotonic()
        if now - self._attended > _GRACE:
            self._listening_since = now
            self._turn_began += now - self._attended  # nobody sent in that time
        if answered:
            self._turn_began = self._moved_at = now
        if answered or self._listening_since == now:
            self._patience = now + _GRACE
        self._attended = now
        if self._is_going_out and (delivered := self.connection.delivered) > self._delivered:
            self._delivered, self._moved_at = delivered, now
        return now >= self.silent_after()


def wait_for(links: Collection[BrokerChannel], seconds: float) -> None:
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
