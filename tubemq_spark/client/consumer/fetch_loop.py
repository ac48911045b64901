# SPDX-License-Identifier: Apache-2.0
"""The fetch loop of a reader: it keeps fetches in flight, obeys the rate limits, and retries after broken connections.

`protocol.exact_range.ExactRange` decides what to send and what the replies mean. This module sends and receives.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from tubemq_spark.client.consumer.broker_requests import check_positions, unwrap_fetch
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.client.consumer.task_claim import ClaimRefusedError, TaskClaim
from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, unwrap_reply
from tubemq_spark.client.retries import Retries
from tubemq_spark.errors import FencedError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import READ_FILES
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode, NotFound, code_name, is_retryable, is_unknown_topic, not_found_kind
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import FetchedBatch, payload_size
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.range_state import Action, Command

_log = logging.getLogger(__name__)

_FLUSH_POLL = 0.5  # seconds; between two requests that ask whether a broker has written messages to its files
_REFUSED_FETCH_PAUSE = 0.2  # seconds; before the next fetch from a broker that is closed or slow
_MAX_REREADS = 20  # in a row, each ended by a broken connection before the reader came to a new message


class _InFlight(NamedTuple):
    action: Action
    request: ServerRequest
    serial_no: int
    sent_at: float  # on the monotonic clock


class ReadProgress:
    """The progress of one reader. It gives up after the settings' `retry_for` seconds without progress."""

    def __init__(self, claim: TaskClaim) -> None:
        settings = claim.requests.settings
        self.retries = Retries(settings.retry_for, settings.clock, f"reading {claim.where}", _log)
        self.last_reply = -1, ""  # code and text of the last fetch without messages
        self._retry_for = settings.retry_for
        self._clock = settings.clock
        self._claim = claim
        self._has_fetched = False  # since the last broken connection
        self._rereads = 0  # readings in a row that a broken connection ended
        self._last_delivery = self._clock.monotonic()

    def on_fetched(self) -> None:
        self._has_fetched = True
        self.retries.progress()

    def on_delivered(self) -> None:
        """Start all times again, because the consumer got new messages, however long it took for them."""
        self.retries.progress()
        self._rereads, self._last_delivery = 0, self._clock.monotonic()

    def on_failed(self, problem: object) -> None:
        """Pause before the next attempt. Raise `TransportError` after too long without progress."""
        if not self.retries.failed(problem):
            raise self._gave_up(problem) from None

    def on_disconnect(self, error: TubeMQError) -> None:
        """Pause before the next connection. Fetches are progress for the retries. So a connection that always breaks
        before the reader comes to new messages would be retried for ever; its readings are counted."""
        self._rereads += self._has_fetched
        self._has_fetched = False
        if self._rereads > _MAX_REREADS and self._clock.monotonic() - self._last_delivery >= self._retry_for:
            problem = f"the connection broke {self._rereads} times before the reader came further than before: {error}"
            raise self._gave_up(problem) from None
        self.on_failed(error)

    def pause(self, seconds: float, waits_for_flush: tuple[int, int] | None) -> None:
        """Pause for at least `seconds` before the next fetch. Raise `ServerError` after too long without messages."""
        code, message = self.last_reply
        reply = f"the last answer to a fetch was {code} {code_name(code)}: {message}"
        if code in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):  # both are normal for a while
            goes_on = self.retries.pause(seconds)
        else:
            goes_on = self.retries.failed(reply, seconds)
        if goes_on:
            return
        retry_for = f"{self._retry_for:g} s"
        if waits_for_flush is None:
            problem = (
                f"nothing came for {retry_for}, {reply}. Check that the topic is open for reading and the broker in "
                "service"
            )
        else:
            begin, end = waits_for_flush
            code, message = ErrCode.NOT_FOUND, "not flushed"
            problem = (
                f"not every entry of [{begin}, {end}) gave a message while the broker had them in its memory: one may "
                "be too long to be read there, or of a partition that was added since the batch was planned, or a late "
                f"fetch of another client took it. In {retry_for} the broker did not write them to files, where this "
                "can be decided. Raise option 'tubemq.retry.maxElapsedMs' above the topic's memCacheFlushIntvl, or "
                "lower that"
            )
        raise ServerError(f"{self._claim.where}: {problem}", code=code, name=code_name(code), message=message)

    def _gave_up(self, problem: object) -> TransportError:
        return TransportError(
            f"{self._claim.where}: gave up after {self._retry_for:g} s without progress: {problem}. Check "
            "that the broker runs and can be reached from the executors"
        )


class FetchLoop:
    """Reads ranges of one partition under `claim`."""

    def __init__(self, claim: TaskClaim, throttle: FetchThrottle) -> None:
        self._claim = claim
        self._settings = claim.requests.settings
        self._throttle = throttle
        self._progress = ReadProgress(claim)
        self._fetches: dict[bool, ServerRequest] = {}  # over this connection, without and with `escape`
        self._begun = 0.0  # when the reading of the range began, on the monotonic clock
        self._empty_at: int | None = None  # where the last fetch began, if it succeeded without messages
        self._is_served = False  # the last reply to a fetch brought messages or a rate limit

    def read(self, exact: ExactRange, held_back: Iterable[FetchedBatch] = ()) -> Iterator[FetchedBatch]:
        """Yield the batches of the range in order, each after a proof that the claim is held; of a range that is done,
        those that were `held_back`. If the claim is doubtful then, read the range again and compare. A range that takes
        long ends early, see `Timings.range_period`. Raise `TransportError` or `ServerError` after too long without
        progress, and as `TaskClaim.acquire` and `ExactRange` do."""
        self._begun = self._settings.clock.monotonic()
        complete = deque(held_back)  # to be delivered
        clock = self._settings.clock
        while not exact.done or complete:
            leased_at = inf
            try:
                is_claim = self._claim.may_claim_by_seek
                sought = None if is_claim else self._claim.acquire(self._progress.retries, exact.start)
                leased_at = clock.monotonic()
                with POOL().lease(self._claim.server, self._settings) as connection:
                    self._claim.on_connected()
                    if is_claim:
                        self._claim.on_claim_by_seek()
                    yield from self._read_over(connection, exact, complete, sought)
            except ProtocolError as error:
                raise ProtocolError(f"{self._claim.where}: {error}") from None
            except ClaimRefusedError as refusal:
                was_held = self._claim.on_refused_seek()
                exact.on_disconnect()
                if was_held:
                    self._progress.on_failed(refusal)
            except (TransportError, FencedError) as error:
                if isinstance(error, FencedError) and (error.holder or self._claim.proven_at >= leased_at):
                    raise
                # A claim that is lost before its first proof over a connection is lost with the one before it: the
                # broker has started again meanwhile. If another client took it over, `acquire` meets that one.
                _log.info("%s: %s; trying again", self._claim.where, error)
                self._claim.on_disconnect()
                exact.on_disconnect()
                self._progress.on_disconnect(error)
                self._claim.on_unreachable()

    def _read_over(
        self,
        connection: Connection,
        exact: ExactRange,
        complete: deque[FetchedBatch],
        sought: GroupPosition | None,
    ) -> Iterator[FetchedBatch]:
        """Yield batches until the range is complete. `sought` is the reply to the first seek, if it was sent before."""
        claim, progress = self._claim, self._progress
        to_send: deque[Command] = deque()
        in_flight: deque[_InFlight] = deque()
        self._empty_at = None
        self._fetches.clear()
        try:
            while True:
                complete += exact.take_batches()
                while complete:
                    claim.prove(connection)
                    yield complete.popleft()
                    progress.on_delivered()
                if self._settings.clock.monotonic() - self._begun > self._settings.timings.range_period:
                    exact.end_early()
                if exact.done:
                    if not claim.is_doubtful:
                        return
                    claim.is_doubtful = False
                    exact.read_again()
                to_send += exact.commands()
                if sought is not None:
                    to_send.popleft()
                    exact.on_seek(sought.group, sought.end)
                    sought = None
                while to_send and self._wait_until_allowed(to_send[0], in_flight):
                    command = to_send.popleft()
                    in_flight.append(self._send(connection, command.action, self._request(command)))
                oldest = in_flight.popleft()
                pause = self._on_reply(oldest, connection.reply(oldest.serial_no), exact)
                claim.proven_at = oldest.sent_at
                if pause is not None:
                    progress.pause(pause, exact.waits_for_flush)
        finally:
            self._drain(connection, in_flight)

    # Sending

    def _wait_until_allowed(self, command: Command, in_flight: deque[_InFlight]) -> bool:
        """Return False if the command has to wait until a reply has come."""
        if command.action is Action.FETCH:
            wait = self._throttle.seconds_to_wait()
            if wait and not in_flight:
                self._settings.clock.sleep(wait)
                if self._is_served:  # so the wait is not a failure
                    self._progress.retries.progress()
                return True
            return not wait
        # A seek would claim a partition again that another client took over. The roll-back before it detects that, so
        # its reply must come first.
        return command.action is Action.ROLL_BACK or all(other.action is not Action.ROLL_BACK for other in in_flight)

    def _request(self, command: Command) -> ServerRequest:
        requests, place = self._claim.requests, self._claim.place
        if command.action is Action.FETCH:
            escape = self._throttle.esc_flow_ctrl
            if escape not in self._fetches:
                self._fetches[escape] = requests.fetch(*place, escape=escape)
            return self._fetches[escape]
        if command.action is Action.SEEK:
            return requests.register(*place, command.position, filters=self._claim.filters)
        if command.action is Action.FIND_FLUSHED_END:
            return requests.register(*place, command.position, policy=READ_FILES)
        return requests.roll_back(*place)

    def _send(self, connection: Connection, action: Action, request: ServerRequest) -> _InFlight:
        timeout = self._settings.rpc_timeout
        serial_no = connection.submit(request.service, request.method, request.message, timeout)
        return _InFlight(action, request, serial_no, self._settings.clock.monotonic())

    def _drain(self, connection: Connection, in_flight: deque[_InFlight]) -> None:
        """Wait until the broker has handled all requests, as long as it can be reached."""
        try:
            while in_flight:
                connection.reply(in_flight.popleft().serial_no)
        except (TransportError, ProtocolError):
            in_flight.clear()
            self._claim.on_disconnect()

    # Receiving

    def _on_reply(self, sent: _InFlight, outcome: Response | Failure, exact: ExactRange) -> float | None:
        """Pass the reply to the range. Return the seconds to pause before the next fetch, None for no pause."""
        what = sent.request.what
        if sent.action is Action.FETCH:
            return self._on_fetch(outcome, what, exact)
        if sent.action is not Action.ROLL_BACK:
            return self._on_seek(sent.action, outcome, what, exact)
        self._on_roll_back(outcome, what, exact)
        return None

    def _on_seek(self, action: Action, outcome: Response | Failure, what: str, exact: ExactRange) -> float | None:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, what)
        self._claim.check_seek(reply.errCode, reply.errMsg, what)
        check_positions(what, reply.currOffset, reply.maxOffset)
        if action is Action.SEEK:
            self._empty_at = None
            exact.on_seek(reply.currOffset, reply.maxOffset)
            return None
        exact.on_flushed_end(reply.maxOffset)
        return None if exact.waits_for_flush is None else _FLUSH_POLL

    def _on_roll_back(self, outcome: Response | Failure, what: str, exact: ExactRange) -> None:
        reply = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, what)
        self._claim.check(reply.errCode, reply.errMsg, what)
        exact.on_roll_back(reply.currOffset)

    def _on_fetch(self, outcome: Response | Failure, what: str, exact: ExactRange) -> float | None:
        reply, messages = unwrap_fetch(outcome, what)
        code = reply.errCode
        self._is_served = code in (ErrCode.SUCCESS, ErrCode.SERVER_CONSUME_SPEED_LIMIT)
        if code == ErrCode.SUCCESS:
            lag = reply.currDataDlt if reply.HasField("currDataDlt") else -1
            size = payload_size(messages)
            self._throttle.on_fetched(size, lag, reply.requireSlow)
            COUNTERS().add(Count.FETCHES)
            COUNTERS().add(Count.FETCHED_BYTES, size)
            exact.on_fetch(reply.currOffset, reply.maxOffset, messages)
            is_stuck = not messages and reply.currOffset == self._empty_at
            self._empty_at = None if messages else reply.currOffset
            if is_stuck:  # normal once or twice, for example at the end of a segment
                self._progress.last_reply = code, f"no messages, and the position stays at {reply.currOffset}"
                return 0.0
            self._progress.on_fetched()
            return None
        self._progress.last_reply = code, reply.errMsg
        if is_unknown_topic(code, reply.errMsg):  # it may come back as another topic
            raise TransportError(f"{what}: {code} {reply.errMsg}")
        kind, pause = NotFound.WAIT, None
        if code == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
            self._throttle.on_limited(reply.minLimitTime)
        elif code == ErrCode.NOT_FOUND:
            self._throttle.on_not_found()
            kind = not_found_kind(reply.errMsg)
            pause = 0.0 if kind is NotFound.WAIT else None
        elif is_retryable(code):  # the broker is closed or slow, and the cursor stays
            pause = _REFUSED_FETCH_PAUSE
        else:
            self._claim.check(code, reply.errMsg, what)
            raise AssertionError("unreachable")
        exact.on_not_found(kind)
        return pause
