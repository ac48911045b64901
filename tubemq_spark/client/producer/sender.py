# SPDX-License-Identifier: Apache-2.0
"""The sender of one producer: connections to brokers, and the sends in flight on them (pipelining, acks, timeouts).

A `BrokerChannel` sends over one connection and returns the outcome of each send. The `Sender` opens the connections in
the background and has one channel for each.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from tubemq_spark.client.net.connect_attempt import ConnectAttempt, ConnectAttempts
from tubemq_spark.client.net.connection import Connection, wait_for_any
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.rpc import SendReply
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_frames import SendEncoder
from tubemq_spark.protocol.send_outcome import SendOutcome

_log = logging.getLogger(__name__)

_BYTES_SENT_POLL = 0.2  # seconds; between two looks at how many bytes have left the socket
_MAX_CHANNEL_BYTES = 16 << 20  # a connection with more in flight takes no further record, even below `maxInFlight`
# While so many records are in flight on each connection, the producer pauses before it looks for answers, because the
# brokers have enough to do for longer: each few answers cost system calls, and the broker may need the core.
_MANY_IN_FLIGHT, _PAUSE = 500, 0.002  # records, seconds
_SLOWEST = 16 * 1024  # bytes a second; a link that stays slower for long is given up


class AnswerTimeout:
    """The time at which a broker counts as silent.

    The broker handles requests one after the other. So each send has its turn: it begins when the broker has
    answered the send before. While bytes of the send leave the socket, its timeout starts again, because a slow link
    needs that time. But a turn ends at the latest after `retry_for` plus the time that the bytes need at 16 KiB/s."""

    def __init__(self, settings: ClientSettings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        # When somebody last polled the connection, waited for it, or sent its only batch.
        self.attended_at = now = settings.clock.monotonic()
        self.attended_since = now  # since when nobody paused for long between two polls
        self.turn_began = now
        self._moved_at = now  # when the turn began, or bytes of the send were last seen to leave
        self._grace_ends = now + settings.timings.slow_peer_grace
        self._delivered = connection.delivered  # as last seen

    def begin_turn(self, now: float) -> None:
        self.turn_began = self._moved_at = self.attended_at = now

    def polled(self, now: float, oldest: RecordBatch | None, *, is_answered: bool) -> None:
        """Note a poll, after which `oldest` is in flight; `is_answered` if it returned answers.

        The caller may be busy for longer than the timeout. Meanwhile the answer waits in the socket, or the request in
        this process. So a broker counts as silent only after it was polled for a moment.
        """
        grace = self._settings.timings.slow_peer_grace
        if now - self.attended_at > grace:
            self.attended_since = now
            self.turn_began += now - self.attended_at  # nothing was sent in that time
        if is_answered:
            self.begin_turn(now)
        if is_answered or self.attended_since == now:
            self._grace_ends = now + grace
        self.attended_at = now
        if self.is_leaving(oldest) and (delivered := self._connection.delivered) > self._delivered:
            self._delivered, self._moved_at = delivered, now

    def is_leaving(self, oldest: RecordBatch | None) -> bool:
        """Whether bytes of `oldest` have not left yet, as last seen."""
        return oldest is not None and self._delivered < oldest.ends_at

    def ends_at(self, oldest: RecordBatch | None) -> float:
        """Return the time at which the broker counts as silent; infinite if no send is in flight."""
        if oldest is None:
            return float("inf")
        settings = self._settings
        longest = max(settings.rpc_timeout, settings.retry_for) + oldest.sizes[oldest.answered] / _SLOWEST
        return max(min(self._moved_at + settings.rpc_timeout, self.turn_began + longest), self._grace_ends)

    def poll_at(self, oldest: RecordBatch | None) -> float:
        """Return the time of the next poll, to see whether bytes have left before `ends_at`."""
        ends_at, soon = self.ends_at(oldest), self.attended_at + _BYTES_SENT_POLL
        return min(ends_at, soon) if self.is_leaving(oldest) else ends_at


class Stored(NamedTuple):
    """The records of `batch` from `start` to `end` are stored; `answers` are the broker's, if the sender wants them."""

    batch: RecordBatch
    start: int
    end: int
    answers: Sequence[SendAck]


class Failed(NamedTuple):
    """The sends of all records of `batch` ended with `outcome`."""

    batch: RecordBatch
    outcome: SendOutcome


class BrokerChannel:
    """Sends to one broker, for one thread, and returns the outcome of each send.

    The channel has `room` for so many records. It `is_broken` when the connection is lost, or given up because the
    broker is silent; `poll` has then returned all its sends."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        lease: ExitStack,
        settings: ClientSettings,
        max_in_flight: int,
        *,
        wants_answers: bool = False,
    ) -> None:
        """`lease` returns the connection to the pool when it is closed."""
        self.broker = broker
        self.connection = connection
        self.is_broken = False
        self.silent_since: float | None = None  # since when a broker has not answered that was given up for that
        self.settings = settings
        self.in_flight = 0  # records
        self.timeout = AnswerTimeout(settings, connection)
        self._lease = lease
        self._max_in_flight = max_in_flight
        self._wants_answers = wants_answers
        self._batches: deque[RecordBatch] = deque()  # in flight, in the order of their sends
        self._bytes = 0  # in flight
        # Behind the last acknowledged record. Not for longer: a broker that crashes loses records, and gives their
        # offsets to others.
        self._ends: dict[Partition, int] = {}
        self._encoder = SendEncoder(connection.framing, max(1, int(settings.rpc_timeout * 1000)))
        self._error: TransportError | ProtocolError | None = None  # that ended the connection

    def __repr__(self) -> str:
        return f"<BrokerChannel to {self.broker}, {self.in_flight} in flight>"

    @property
    def room(self) -> int:
        """How many records it takes now; none rather than few, because each batch costs a system call."""
        room = self._max_in_flight - self.in_flight
        return 0 if self._bytes >= _MAX_CHANNEL_BYTES or room < self._max_in_flight // 4 else max(0, room)

    @property
    def oldest_in_flight_since(self) -> float | None:
        """The time since which the oldest send waits for its answer, without times in which nobody polled; or None."""
        oldest = self._oldest
        return None if oldest is None else max(oldest.sent_at, self.timeout.attended_since)

    def submit(self, batch: RecordBatch, target: bytes) -> None:
        """Queue `batch` for the next `flush`. Raise `ProtocolError` if a record is too long for a frame."""
        batch.began_at, batch.earliest_offset = self.connection.queued, self._ends.get(batch.partition)
        sends = self.connection.next_sends(len(batch))
        data, batch.sizes = self._encoder.encode(sends, target, batch.headers, batch.bodies, batch.kinds)
        self.connection.submit_sends(sends, data, wants_answers=self._wants_answers)
        batch.sent_at = self.settings.clock.monotonic()
        if not self._batches:
            self.timeout.begin_turn(batch.sent_at)
        self._batches.append(batch)
        self.in_flight += len(batch)
        self._bytes += sum(batch.sizes)

    def flush(self) -> None:
        """Write as much as possible without waiting. The next `poll` returns what fails."""
        try:
            self.connection.flush()
        except (TransportError, ProtocolError) as cause:
            self._error = cause

    def poll(self) -> tuple[list[Stored], list[Failed]]:
        """Write and read without waiting. Return the records that were answered, or never will be."""
        if self._error is None:
            self.flush()
        error = self._error
        stored, failed = self._answered(self.connection.take_outcomes())
        now = self.settings.clock.monotonic()
        self.timeout.polled(now, self._oldest, is_answered=bool(stored or failed))
        if error is None and now >= self.timeout.ends_at(self._oldest):
            self.silent_since = self.timeout.turn_began
            error = TransportError(self._timeout_text(now))
        if error is not None:
            while self._batches:
                batch = self._batches[0]
                failed.append(Failed(batch.sent(slice(batch.answered, None)), error))
                failed[-1].batch.was_silent = self.silent_since is not None
                self._answer(batch.unanswered)
            self.is_broken = True
            self.connection.close()
        return stored, failed

    def close(self) -> None:
        """Return the connection to the pool, or close it if a send is in flight."""
        self._lease.close()

    def poll_at(self) -> float:
        """Return the time of the next `poll`, even if nothing arrives; infinite if no send is in flight."""
        return self.timeout.poll_at(self._oldest)

    @property
    def _oldest(self) -> RecordBatch | None:
        return self._batches[0] if self._batches else None

    def _timeout_text(self, now: float) -> str:
        if self.timeout.is_leaving(self._oldest):
            return f"{self.broker} did not take all of a message within {now - self.timeout.turn_began:.1f} s"
        return f"{self.broker} did not answer within {self.settings.rpc_timeout:g} s"

    def _answered(self, replies: Sequence[SendReply]) -> tuple[list[Stored], list[Failed]]:
        stored: list[Stored] = []
        failed: list[tuple[RecordBatch, int, int, SendOutcome]] = []
        for reply in replies:
            if isinstance(reply, Response | Failure | ProtocolError):
                batch, at, outcome = self._batches[0], self._batches[0].answered, _outcome(reply)
                first = at
                if failed and failed[-1][0] is batch and failed[-1][2:] == (at, outcome):
                    first = failed.pop()[1]
                failed.append((batch, first, at + 1, outcome))
                self._answer(1)
                continue
            answers = [] if isinstance(reply, int) else reply
            left = reply if isinstance(reply, int) else len(reply)
            while left:
                batch = self._batches[0]
                start, count = batch.answered, min(left, batch.unanswered)
                stored.append(Stored(batch, start, start + count, answers[:count]))
                if answers:
                    self._ends[batch.partition] = answers[count - 1].appendOffset + INDEX_MSG_UNIT_SIZE
                self._answer(count)
                answers, left = answers[count:], left - count
        return stored, [Failed(batch.sent(slice(first, end)), outcome) for batch, first, end, outcome in failed]

    def _answer(self, count: int) -> None:
        """Note that the next `count` records, of the oldest batch, have an outcome."""
        batch = self._batches[0]
        self._bytes -= batch.answer(count)
        self.in_flight -= count
        if not batch.unanswered:
            self._batches.popleft()


def _outcome(reply: Response | Failure | ProtocolError) -> SendOutcome:
    if not isinstance(reply, Response):
        return reply
    try:
        return parse(SendAck, reply.data)
    except ProtocolError as error:
        return error


class Sender:
    """At most one connection to each broker. `connected` has the open channels, by broker id."""

    def __init__(
        self, settings: ClientSettings, attempts: ConnectAttempts, max_in_flight: int, *, wants_answers: bool
    ) -> None:
        """`attempts` are those of all producers of the session."""
        self.connected: dict[int, BrokerChannel] = {}
        self._settings = settings
        self._attempts = attempts
        self._max_in_flight = max_in_flight  # of each connection
        self._wants_answers = wants_answers
        self._connecting: dict[int, ConnectAttempt] = {}
        self._last_attempt_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Sender {[*self.connected.values()]}, {len(self._connecting)} connecting>"

    @property
    def any_in_flight(self) -> bool:
        return any(channel.in_flight for channel in self.connected.values())

    @property
    def is_connecting(self) -> bool:
        return bool(self._connecting)

    @property
    def recently_connecting(self) -> bool:
        """Whether records for any partition wait a moment for a connection, so that not all go to the first broker."""
        age = self._settings.clock.monotonic() - self._last_attempt_at
        return bool(self._connecting) and age <= self._settings.timings.connect_batching

    def has_channel(self, broker_id: int) -> bool:
        """Whether the broker is connected, or will be."""
        return broker_id in self.connected or broker_id in self._connecting

    def connect(self, broker: Broker, *, is_awaited: bool) -> None:
        """Start to connect to a broker. Only an attempt that `is_awaited` counts for `recently_connecting`."""
        attempt = self._connecting[broker.broker_id] = self._attempts.to(broker)
        if is_awaited:
            self._last_attempt_at = max(self._last_attempt_at, attempt.begun_at)

    def open_channels(self) -> Iterator[tuple[Broker, TransportError | ProtocolError]]:
        """Open channels on connections that have been opened meanwhile. Yield the attempts that failed."""
        for broker_id, attempt in list(self._connecting.items()):
            if attempt.done:
                del self._connecting[broker_id]
                try:
                    taken = attempt.take()
                except (TransportError, ProtocolError) as error:
                    _log.info("%s cannot be reached: %s", attempt.broker, error)
                    yield attempt.broker, error
                    continue
                if taken is not None:
                    self.connected[broker_id] = BrokerChannel(
                        attempt.broker, *taken, self._settings, self._max_in_flight, wants_answers=self._wants_answers
                    )

    def flush(self) -> None:
        """Write what the channels have queued, as far as possible without waiting."""
        for channel in self.connected.values():
            channel.flush()

    def poll(self) -> list[tuple[BrokerChannel, list[Stored], list[Failed]]]:
        """Write and read without waiting. Return the outcomes by channel, and close channels that broke."""
        polled = [(channel, *channel.poll()) for channel in self.connected.values()]
        for channel, _, _ in polled:
            if channel.is_broken:
                self.connected.pop(channel.broker.broker_id).close()
        return polled

    def wait(self, seconds: float | None) -> None:
        """Wait until an answer arrives or a broker counts as silent, but at most `seconds`."""
        busy = [channel for channel in self.connected.values() if channel.in_flight]
        clock = self._settings.clock
        limits = [channel.poll_at() - clock.monotonic() for channel in busy]
        if seconds is not None:
            limits.append(seconds)
        left = max(0.0, min(limits, default=0.0))
        if busy:
            if all(one.in_flight >= _MANY_IN_FLIGHT and one.connection.is_written for one in busy):
                clock.sleep(min(left, _PAUSE))
            wait_for_any([channel.connection for channel in busy], left)
            for channel in busy:
                channel.timeout.attended_at = clock.monotonic()
        else:
            clock.sleep(left)

    def close(self) -> None:
        """Return connections to the pool, and give up attempts."""
        while self.connected:
            self.connected.popitem()[1].close()
        while self._connecting:
            self._connecting.popitem()[1].close()
