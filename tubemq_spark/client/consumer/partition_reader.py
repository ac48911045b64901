"""Reads an exact range of one partition over the network, under a claim of its own.

`PartitionReader` drives a `protocol.exact_range.ExactRange` over a connection: it claims the partition, survives broken
connections and restarted brokers, keeps the claim alive while its consumer is slow, and leaves the group where it found
it.

A claim protects from requests that come later, not from a fetch that the broker is handling at the moment, see
`waiting`. So a reader gives its claim back only when all its fetches are answered. One that takes over from somebody
who did not wait for that, or goes on over a new connection, reads twice, the second time just to compare.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_conflict import ClaimConflict
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.client.consumer.loss_policy import FAIL, LossPolicy
from tubemq_spark.client.consumer.probe import has_message_at
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken
from tubemq_spark.errors import (
    DataLossError,
    FencedError,
    PositionMovedError,
    ProtocolError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.claim_id import ClaimId, holder_in
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, READ_FILES
from tubemq_spark.protocol.data_loss import remaining_range
from tubemq_spark.protocol.envelope import Failure, Response, parse
from tubemq_spark.protocol.errcode import (
    ErrCode,
    Reaction,
    code_name,
    error_for_code,
    is_about_visit_token,
    reaction_to,
)
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch
from tubemq_spark.protocol.metadata import Broker, parse_failure_info
from tubemq_spark.protocol.not_found import NotFound, not_found_kind
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.range_commands import Action, Command
from tubemq_spark.protocol.replaced_message_check import ReplacedMessageCheck

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

DEPTH = 4  # fetches in flight
_STALE = 1.0  # seconds after which a proof of holding the claim is asked for again before anything is given out
_FLUSH_PAUSE = 0.5  # seconds between two questions whether entries are in files, at least
_PARTING_TIMEOUT = 3.0  # seconds: neither a heartbeat nor a good-bye may hang on a broker that is away
_LOOK_FOR_BROKER_AFTER = 3.0  # seconds without a connection: a restart takes longer, and a blip takes less
_MOST_LOSSES = 20  # of one range in a row, without a message in between: a store does not lose its beginning so often
_MOST_REREADINGS = 20  # of one range in a row that a broken connection ended before anything new was found


class _OccupiedError(Exception):
    """A claim was answered 410; the text is the broker's."""


class _TokenRefusedError(Exception):
    """A claim was answered 415; the error is for a token that is refused for good."""

    def __init__(self, error: TubeMQError, *, is_about_token: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_about_token = is_about_token


class PartitionReader:
    """The messages of one range, as `claim` in `group`.

    Iterating over `batches()` raises `PartitionOccupiedError` when another consumer keeps the partition for longer than
    `claim_timeout` seconds (siblings are waited for without limit, see `ClaimConflict`), `FencedError` when a newer
    attempt took it over, `DataLossError` or `PositionMovedError` when the range is not whole (see `ExactRange`),
    `TransportError` or `ServerError` when the broker stays away or refuses for longer than the settings' `retry_for`.
    Only a range whose iteration ended without an error was read.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        claim: ClaimId,
        wanted: RangeToRead,
        snapshot: PartitionSnapshot,
        *,
        token: VisitToken = NO_TOKEN,
        claim_timeout: float = 45.0,
        is_first: bool = True,
        loss_policy: LossPolicy = FAIL,
        find_broker: Callable[[Broker], Broker] = lambda broker: broker,
    ) -> None:
        """`is_first` says that no earlier attempt at this task can have left the group where it read. `find_broker`
        tells where a broker is that cannot be reached."""
        self._settings = settings
        self._calls = GroupRequests(settings, group, token)
        self._token = token
        self._group = group
        self._claim = claim
        self._client_id = str(claim)
        self._wanted = wanted
        self._snapshot = snapshot
        self._loss_policy = loss_policy
        self._broker = snapshot.broker
        self._find_broker = find_broker
        self._failing_since: float | None = None  # when the last connection failed that was followed by failures alone
        self._claim_timeout = claim_timeout
        self._waiting: ClaimConflict | None = None  # for the partition, while somebody else holds it
        self._shown_token = token.value  # to the broker, with the last claim
        self._asked = False  # for the claim: there may be one to give back
        self._held = False
        self._proven_at = 0.0  # when the last request was sent whose answer showed that the claim is ours
        self._unsure = snapshot.verify  # whether a fetch that nobody waited for may have moved the cursor
        self._same_broker = False  # whether it is known to run since the range was planned
        self._refusal = -1, ""  # code and text of the last fetch that gave no messages
        self._empty_at: int | None = None  # where the last fetch began, if it succeeded without messages
        self._has_fetched = False  # since the last broken connection
        self._rereadings = 0  # in a row, see `_MOST_REREADINGS`
        self._news_due = Deadline(settings.retry_for)  # when the reader has given out nothing for so long
        self._group_found: int | None = None  # where the group stood before this reader moved it
        self._may_be_moved = not is_first  # whether a reader of this range may have moved the group before that
        self._complete: deque[FetchedBatch] = deque()  # to be given out next
        self._pacing = FetchThrottle(
            snapshot.flow_rules, bool(wanted.filters), where=f"{wanted.partition} for group {group}"
        )
        self._range = self._new_range(wanted.start, wanted.end)
        self._slowed = False  # whether the last answer to a fetch was messages, or a limit
        self._where = f"{wanted.partition} at {snapshot.broker}"
        self._stamina = Retries(_log, f"reading {self._where}", settings.retry_for)

    def __repr__(self) -> str:
        return f"<PartitionReader {self._client_id} in {self._group}: {self._range!r}>"

    def batches(self) -> Generator[FetchedBatch, None, None]:
        """The range's messages in order, a few thousand at a time."""
        stop_beating = HEARTBEAT.keep(self._beat)
        start, end = self._wanted.start, self._wanted.end
        in_a_row = 0
        try:
            while start < end:
                given = DeliveredLog()
                try:
                    yield from self._read_range(start, end, given)
                    break
                except DataLossError as loss:
                    in_a_row = 1 if given.last else in_a_row + 1
                    if in_a_row > _MOST_LOSSES:
                        raise self._loss_policy.error(loss) from None
                    self._loss_policy.report(loss)
                    start, end = remaining_range(start, end, loss, given)  # smaller each time, so the loop ends
        finally:
            stop_beating()
            self._leave()

    def _read_range(self, start: int, end: int, given: DeliveredLog) -> Iterator[FetchedBatch]:
        self._range = self._new_range(start, end)
        self._complete.clear()
        for batch in self._read_what_stood_there():
            given.add(batch)
            yield batch
        while self._unsure:
            self._read_again(given)

    def _new_range(self, start: int, end: int) -> ExactRange:
        return ExactRange(
            self._wanted.partition,
            start,
            end,
            owns_store=self._wanted.owns_store,
            depth=1 if self._pacing.one_at_a_time else DEPTH,
        )

    def _read_again(self, given: DeliveredLog) -> None:
        """Compares a second reading with what was `given` out."""
        self._unsure = False
        self._range = self._new_range(self._range.start, self._range.end)
        given.restart()
        try:
            same = (
                not [new for batch in self._read_what_stood_there() for new in given.add(batch)]
                and given.awaited is None
            )
        except ValueError:
            same = False
        if not same:
            raise PositionMovedError(
                f"{self._where}: two readings of [{self._range.start}, {self._range.end}) differ, for a fetch of an "
                "earlier attempt moved the group's position. Run the batch again"
            )

    def _read_what_stood_there(self) -> Iterator[FetchedBatch]:
        """Without messages that took the place of lost ones."""
        ids, end = self._wanted.ids, self._range.end
        if end != self._wanted.end:
            ids = ids._replace(last=None)
        sieve = ReplacedMessageCheck(self._wanted.partition, self._range.start, end, ids)
        for batch in self._read():
            sieve.add(batch)
            yield batch
        if not self._same_broker and sieve.finds_replacement and not self._has_mark(end, ids.last):
            raise sieve.error()

    def _has_mark(self, end: int, message_id: int | None) -> bool:
        """Whether the store still has the message that was the first one at the last entry before `end`."""
        wanted = self._wanted
        return message_id is not None and has_message_at(
            self._calls,
            self._broker,
            wanted.partition,
            self._client_id,
            end - INDEX_MSG_UNIT_SIZE,
            message_id,
            back_to=self._range.start,
        )

    def _read(self) -> Iterator[FetchedBatch]:
        while not self._range.done or self._complete:
            try:
                with POOL.lease(self._broker.address, self._settings) as connection:
                    self._failing_since = None
                    yield from self._converse(connection)
            except ProtocolError as error:
                raise ProtocolError(f"{self._where}: {error}") from None
            except TransportError as error:
                _log.info("%s: %s; trying again", self._where, error)
                self._leave_behind()
                self._range.on_disconnect()
                self._count_rereading(error)
                if not self._stamina.failed(error):
                    raise self._gave_up(str(error)) from None
                self._follow()

    def _follow(self) -> None:
        """Looks for a broker that has been unreachable for a while."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= _LOOK_FOR_BROKER_AFTER:
            found = self._find_broker(self._broker)
            if found != self._broker:
                _log.warning("%s: the broker has moved to %s", self._where, found.address)
                self._broker, self._where = found, f"{self._wanted.partition} at {found}"

    def _count_rereading(self, cause: TransportError) -> None:
        """Count a reading that a broken connection ended. Fetches are progress for `_stamina`, so a connection that
        always breaks before the reading comes to something new would be retried for ever.
        """
        self._rereadings += self._has_fetched
        self._has_fetched = False
        if self._rereadings > _MOST_REREADINGS and self._news_due.passed:
            raise self._gave_up(
                f"the connection broke {self._rereadings} times before the reader came further than before: {cause}"
            ) from None

    def _gave_up(self, why: str) -> TransportError:
        return TransportError(
            f"{self._where}: gave up after {self._settings.retry_for:g} s without progress: {why}. Check that the "
            "broker runs and can be reached from the executors"
        )

    def _converse(self, connection: Connection) -> Iterator[FetchedBatch]:
        """Reads until the range is done or the connection breaks."""
        if self._snapshot.group_position is not None and self._group_found is None:
            self._find_group(connection)
        to_send: deque[Command] = deque()
        sent: deque[tuple[Command, int, float]] = deque()
        handed_over = self._hand_over(connection)
        try:
            while not self._range.done:
                to_send += self._range.commands()
                while (
                    to_send
                    and not self._is_premature(to_send[0], sent)
                    and not self._is_too_soon(to_send[0], bool(sent))
                ):
                    command = to_send.popleft()
                    if command.action is Action.SEEK:
                        self._shown_token = self._token.value
                    self._asked = True
                    sent.append((command, self._submit(connection, self._call(command)), time.monotonic()))
                self._hear_hand_over(connection, handed_over)
                handed_over = None
                command, serial_no, sent_at = sent.popleft()
                call = self._call(command)
                outcome = connection.reply(serial_no)
                try:
                    pause = self._hear(command, outcome, call)
                except _OccupiedError as occupied:
                    self._drain(connection, sent)
                    to_send.clear()
                    self._range.on_disconnect()
                    self._make_way(connection, str(occupied))
                    continue
                except _TokenRefusedError as refused:
                    self._drain(connection, sent)
                    to_send.clear()
                    self._range.on_disconnect()
                    self._renew_token(refused)
                    handed_over = self._hand_over(connection)
                    continue
                self._proven_at = sent_at
                if pause is not None and not self._go_on_after(pause):
                    raise self._no_progress()
                yield from self._give_out(connection)
            yield from self._give_out(connection)
        finally:
            self._drain(connection, sent)

    def _go_on_after(self, pause: float) -> bool:
        """Waits after a fetch that gave nothing; False when there were such answers for too long."""
        code, message = self._refusal
        if code in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):  # that may be so for a while without any trouble
            return self._stamina.pause(pause)
        return self._stamina.failed(f"the last answer to a fetch was {code} {code_name(code)}: {message}", pause)

    def _is_premature(self, command: Command, sent: deque[tuple[Command, int, float]]) -> bool:
        """A seek would claim a partition anew that was taken away: the roll-back before it must be answered first."""
        return command.action in (Action.SEEK, Action.FIND_FLUSHED_END) and any(
            other.action is Action.ROLL_BACK for other, _, _ in sent
        )

    def _is_too_soon(self, command: Command, under_way: bool) -> bool:
        """Whether the rules want a fetch later. When there is nothing to hear meanwhile, later is now."""
        wait = self._pacing.before_fetch() if command.action is Action.FETCH else 0.0
        if wait and not under_way:
            time.sleep(wait)
            if self._slowed:  # by a server that answers: that is no failure
                self._stamina.progress()
        return wait > 0 and under_way

    def _drain(self, connection: Connection, sent: deque[tuple[Command, int, float]]) -> None:
        """Waits until the broker has handled everything, as long as it can be reached."""
        try:
            while sent:
                connection.reply(sent.popleft()[1])
        except (TransportError, ProtocolError):
            sent.clear()
            self._leave_behind()

    def _leave_behind(self) -> None:
        """Requests may be under way that nobody waits for. The claim is not given back then, unless it is proven again:
        who comes next has to know.
        """
        self._unsure = self._unsure or self._asked
        self._asked = self._same_broker = False

    def _give_out(self, connection: Connection) -> Iterator[FetchedBatch]:
        self._complete += self._range.take_batches()
        while self._complete:
            self._assure(connection)
            self._stamina.progress()
            yield self._complete.popleft()
            self._stamina.progress()  # however long the consumer took
            self._rereadings, self._news_due = 0, Deadline(self._settings.retry_for)

    # One answer

    def _hear(self, command: Command, outcome: Response | Failure, call: ServerRequest) -> float | None:
        """Tells the range what was answered; seconds to wait before the next fetch, None to go on at once."""
        if command.action is Action.SEEK:
            reply = self._hear_claim(outcome, call)
            self._empty_at = None
            self._range.on_seek(reply.currOffset, reply.maxOffset)
        elif command.action is Action.FIND_FLUSHED_END:
            self._range.on_flushed_end(self._hear_claim(outcome, call).maxOffset)
            return None if self._range.waits_for_flush is None else _FLUSH_PAUSE
        elif command.action is Action.ROLL_BACK:
            commit = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, call.what)
            self._check(commit.errCode, commit.errMsg, call.what)
            self._range.on_roll_back(commit.currOffset)
        else:
            got = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, call.what)
            return self._hear_fetch(got, call)
        return None

    def _hear_claim(self, outcome: Response | Failure, call: ServerRequest) -> broker_pb.RegisterResponseB2C:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
        if reply.errCode == ErrCode.PARTITION_OCCUPIED:
            raise _OccupiedError(reply.errMsg)
        if reply.errCode == ErrCode.CERTIFICATE_FAILURE:
            error = error_for_code(reply.errCode, reply.errMsg, call.what)
            raise _TokenRefusedError(error, is_about_token=is_about_visit_token(reply.errCode, reply.errMsg))
        self._check(reply.errCode, reply.errMsg, call.what)
        self._held, self._waiting = True, None
        return reply

    def _hear_fetch(self, got: broker_pb.GetMessageResponseB2C, call: ServerRequest) -> float | None:
        if got.errCode == ErrCode.SUCCESS:
            self._slowed = True
            sizes = (len(message.payLoadData) for message in got.messages)
            self._pacing.heard(sizes, got.currDataDlt if got.HasField("currDataDlt") else -1, got.requireSlow)
            self._range.on_fetch(got.currOffset, got.maxOffset, got.messages)
            stands = not got.messages and got.currOffset == self._empty_at
            self._empty_at = None if got.messages else got.currOffset
            if stands:  # a broker may read nothing once or twice, at the end of a segment for instance
                self._refusal = got.errCode, f"no messages, and the position stays at {got.currOffset}"
                return 0.0
            self._has_fetched = True
            self._stamina.progress()
            return None
        self._refusal = got.errCode, got.errMsg
        self._slowed = got.errCode == ErrCode.SERVER_CONSUME_SPEED_LIMIT
        if self._slowed:
            self._pacing.limited(got.minLimitTime)
            self._range.on_not_found(NotFound.WAIT)
            return None
        if got.errCode == ErrCode.NOT_FOUND:
            self._pacing.not_found()
            kind = not_found_kind(got.errMsg)
            self._range.on_not_found(kind)
            return 0.0 if kind is NotFound.WAIT else None
        if reaction_to(got.errCode) in (Reaction.RETRY, Reaction.WAIT):
            # A broker that is closed, slow or limiting just now: the cursor stays.
            self._range.on_not_found(NotFound.WAIT)
            return 0.2
        self._check(got.errCode, got.errMsg, call.what)
        raise AssertionError("unreachable")

    def _renew_token(self, refused: _TokenRefusedError) -> None:
        """Returns when the claim may be tried again."""
        try:
            self._token.renew(self._shown_token)
            return
        except TransportError as trouble:
            if not refused.is_about_token:
                raise refused.error from None
            if not self._stamina.failed(f"{refused}; {trouble}"):
                raise TransportError(
                    f"{self._where}: the broker refuses the visit token for {self._settings.retry_for:g} s, and "
                    f"{trouble}. {refused}"
                ) from None

    def _no_progress(self) -> ServerError:
        code, message = self._refusal
        if self._range.waits_for_flush is not None:
            begin, end = self._range.waits_for_flush
            return ServerError(
                f"{self._where}: not every entry of [{begin}, {end}) gave a message while the broker had them in its "
                "memory, where it leaves out messages that are too long, and in "
                f"{self._settings.retry_for:g} s it did not write them to files. Raise option "
                "'tubemq.retry.maxElapsedMs' above the topic's memCacheFlushIntvl, or lower that",
                code=ErrCode.NOT_FOUND,
                name=code_name(ErrCode.NOT_FOUND),
                message="not flushed",
            )
        return ServerError(
            f"{self._where}: nothing came for {self._settings.retry_for:g} s, the last answer to a fetch was {code} "
            f"{code_name(code)}: {message}. Check that the topic is open for reading and the broker in service",
            code=code,
            name=code_name(code),
            message=message,
        )

    def _check(self, code: int, message: str, what: str) -> None:
        if code == ErrCode.SUCCESS:
            return
        if reaction_to(code) is Reaction.CLAIM_LOST and self._held:
            self._held = False
            raise FencedError(
                f"{self._where}: {self._client_id} does not hold the partition any more ({code}: {message}); a newer "
                "attempt took it over, or this one stood still for too long. What it read so far is not used",
                holder=holder_in(message),
            )
        if reaction_to(code) is Reaction.RETRY:
            raise TransportError(f"{what}: {code} {message}")
        raise error_for_code(code, message, what)

    # Claims

    def _hand_over(self, connection: Connection) -> int | None:
        """Takes the partition from the driver that lent it, before the first claim. In one write with that, so that no
        rival can slip in between. Whether the driver still had the claim does not matter."""
        if self._snapshot.previous_client_id is None or self._held:
            return None
        return self._submit(connection, self._release(self._snapshot.previous_client_id))

    def _hear_hand_over(self, connection: Connection, serial_no: int | None) -> None:
        if serial_no is not None:
            # A broker that still knows the claim has not been started again since it was made.
            handed = connection.reply(serial_no)
            self._same_broker = isinstance(handed, Response) and _succeeded(handed)

    def _find_group(self, connection: Connection) -> None:
        """Claims the partition without moving the group, to know where to leave it. The first seek must wait for the
        answer: a sibling may leave between a claim that is refused and a seek that is not."""
        while self._group_found is None:
            handed_over = self._hand_over(connection)
            call = self._calls.register(self._broker, self._wanted.partition, self._client_id)
            self._asked, self._shown_token = True, self._token.value
            serial_no = self._submit(connection, call)
            self._hear_hand_over(connection, handed_over)
            try:
                self._group_found = self._hear_claim(connection.reply(serial_no), call).currOffset
            except _OccupiedError as occupied:
                self._make_way(connection, str(occupied))
            except _TokenRefusedError as refused:
                self._renew_token(refused)

    def _make_way(self, connection: Connection, message: str) -> None:
        """The partition is held by somebody, who is told to go or waited for."""
        holder = holder_in(message)
        if self._waiting is None:
            self._waiting = ClaimConflict(self._settings, self._group, self._claim, self._claim_timeout)
        if self._waiting.must_fence(self._where, holder):
            # Its last fetch may be under way. It has most likely ended when some of ours have, which are not used.
            claim = self._calls.register(self._broker, self._wanted.partition, self._client_id)
            fetch = self._calls.fetch(self._broker, self._wanted.partition, self._client_id)
            for serial_no in [self._submit(connection, call) for call in (self._release(holder), claim, fetch, fetch)]:
                connection.reply(serial_no)
            self._may_be_moved = True
        self._unsure = self._unsure or self._waiting.is_doubtful(self._where)
        self._waiting.pause()
        self._stamina.progress()  # the broker answers

    def _assure(self, connection: Connection) -> None:
        """Before something is given out after a stand-still: is the claim still ours?"""
        if time.monotonic() - self._proven_at < _STALE:
            return
        sent_at = time.monotonic()
        call = self._heartbeat()
        outcome = connection.reply(self._submit(connection, call))
        reply = unwrap_reply(outcome, broker_pb.HeartBeatResponseB2C, call.what)
        if reply.errCode == ErrCode.CERTIFICATE_FAILURE:
            sent_at = time.monotonic()
            renewed = self._call_now([call])[0]  # gets a new token
            reply = unwrap_reply(renewed, broker_pb.HeartBeatResponseB2C, call.what)
        self._check(reply.errCode, reply.errMsg, call.what)
        for failure in reply.failureInfo:
            code, _, _ = parse_failure_info(failure)
            self._check(code, shown(failure), call.what)
        self._proven_at = sent_at

    def _beat(self) -> None:
        if self._held:
            self._call_now([self._heartbeat()])

    def _leave(self) -> None:
        """Puts the group where it belongs and gives the claim back, unless somebody else has it; a broker that is away
        forgets it by itself.
        """
        if not self._asked:
            return
        self._asked = self._held = False
        broker, partition = self._broker, self._wanted.partition
        position = self._where_to_leave()
        calls = [self._release(self._client_id)]
        try:
            if position is not None and (not self._range.done or position != self._range.start):
                proof = self._calls.roll_back(broker, partition, self._client_id)
                commit = unwrap_reply(self._call_now([proof])[0], broker_pb.CommitOffsetResponseB2C, proof.what)
                if commit.errCode != ErrCode.SUCCESS:
                    return
                calls.insert(0, self._calls.register(broker, partition, self._client_id, position))
            for call, outcome in zip(calls, self._call_now(calls), strict=True):
                unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
        except TubeMQError as error:
            _log.info("%s: could not give the claim back: %s", self._where, error)

    def _where_to_leave(self) -> int | None:
        """The position that the group is put to at the end, None when it was not moved."""
        start, end, planned = self._wanted.start, self._wanted.end, self._snapshot.group_position
        if planned is None:
            return start
        found = self._group_found
        if found is not None and self._may_be_moved and start <= found <= end:
            return planned  # a reader of this range leaves the group there when it is killed
        return found

    # Requests

    def _call(self, command: Command) -> ServerRequest:
        broker, partition = self._broker, self._wanted.partition
        if command.action is Action.SEEK:
            return self._calls.register(
                broker, partition, self._client_id, command.position, filters=self._wanted.filters
            )
        if command.action is Action.FIND_FLUSHED_END:
            return self._calls.register(broker, partition, self._client_id, command.position, policy=READ_FILES)
        if command.action is Action.ROLL_BACK:
            return self._calls.roll_back(broker, partition, self._client_id)
        return self._calls.fetch(broker, partition, self._client_id, escape=self._pacing.esc_flow_ctrl)

    def _heartbeat(self) -> ServerRequest:
        return self._calls.heartbeat(self._broker, self._client_id, [self._wanted.partition])

    def _call_now(self, calls: list[ServerRequest]) -> list[Response | Failure | TransportError | ProtocolError]:
        return send_requests(self._settings, calls, timeout=min(_PARTING_TIMEOUT, self._settings.rpc_timeout))

    def _release(self, client_id: str) -> ServerRequest:
        return self._calls.unregister(self._broker, self._wanted.partition, client_id)

    def _submit(self, connection: Connection, call: ServerRequest) -> int:
        return connection.submit(call.service, call.method, call.message, self._settings.rpc_timeout)


def _succeeded(response: Response) -> bool:
    return parse(broker_pb.RegisterResponseB2C, response.data).errCode == ErrCode.SUCCESS
