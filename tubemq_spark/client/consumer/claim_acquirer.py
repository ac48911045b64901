# SPDX-License-Identifier: Apache-2.0
"""Claim acquisition: the one way in which the client gets a partition of a consumer group from its broker.

`claiming` is the conversation about it. A broker's reply 410 names the client that holds a partition. `ClaimConflict`
decides, for tasks and drivers alike, by what `ClaimId.relation` says about the holder:

* A predecessor is fenced: its claim is released. This does not cancel a fetch that the broker is already running. Such
  a fetch advances the next owner's cursor, and that owner skips messages without notice (wire:
  DefaultOffsetManager.bookOffset). So the reader that follows reads twice and compares, see `FetchLoop.read`.
* A sibling is another scan of the same micro-batch or application. It releases the partition when it has read its
  range. The wait for it has no limit; a dead sibling's claim expires at the broker. A client that waits for a sibling
  must hold nothing that a sibling may wait for.
* Another streaming query of the same application is waited for a few seconds, because it may be stopping.
* Any other holder is waited for up to option `tubemq.claim.timeoutMs`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tubemq_spark.client import system
from tubemq_spark.client.consumer.broker_requests import Exchange, GroupRequests, check_positions
from tubemq_spark.client.consumer.conversations import Conversation, Wait
from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, unwrap_reply
from tubemq_spark.client.retries import Deadline, delays
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import FencedError, PartitionOccupiedError, ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, Relation, holder_in
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcode import ErrCode, error_for_code, is_retryable, refused_for_now
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_CLAIM_FIRST_PAUSE = 0.02  # seconds; before the next attempt to claim a partition that another client holds
_CLAIM_MAX_PAUSE = 0.5
_CLAIM_WAIT_FIRST_LOG = 10.0  # seconds; time after which waiting for a sibling is logged
_CLAIM_WAIT_NEXT_LOG = 60.0
_SAME_APPLICATION_WAIT = 5.0  # for another query of the application, which may be stopping: its driver can be reached
_SHORTEST_PAUSE = 0.01  # seconds
_NOT_HELD = (ErrCode.HB_NO_NODE, ErrCode.DUPLICATE_PARTITION)  # to a release: the client had no claim


class GroupPosition(NamedTuple):
    """The position of a group in a partition, and the end of the partition's store, in bytes of the index."""

    group: int
    end: int


@dataclass(frozen=True)
class ClaimTarget:
    """A partition to claim for `client_id` in the group of `requests`.

    With `position` the group moves there. Without, it stays where it is, and a new group starts where `read_status`
    says. The claim of the client `release_first` is released in the same write, so that no other client can claim the
    partition in between. With `release_after` the new claim is released at once, too.
    """

    requests: GroupRequests
    broker: Broker
    partition: Partition
    client_id: str
    position: int | None = None
    read_status: ReadStatus = ReadStatus.NORMAL
    filters: tuple[str, ...] = ()
    release_first: str | None = None
    release_after: bool = False

    @property
    def where(self) -> str:
        return f"{self.partition} at {self.broker}"

    def register(self) -> ServerRequest:
        return self.requests.register(
            self.broker, self.partition, self.client_id, self.position, self.read_status, self.filters
        )

    def release(self, client_id: str) -> ServerRequest:
        return self.requests.unregister(self.broker, self.partition, client_id)


class ClaimAnswer(NamedTuple):
    """The broker's answer to one attempt. Exactly one of `position`, `holder` and `error` is set."""

    position: GroupPosition | None = None  # the claim is acquired
    holder: str | None = None  # the client id of another client that holds the partition; empty if it is not known
    error: TubeMQError | None = None  # a `TransportError` if a later attempt may succeed
    is_answered: bool = True  # if not, the broker may have made the claim
    was_fenced: bool = False  # the broker has released the claim of `holder`


def claim_requests(targets: Iterable[ClaimTarget]) -> list[ServerRequest]:
    """Return what is sent for the targets."""
    requests: list[ServerRequest] = []
    for target in targets:
        if target.release_first is not None:
            requests.append(target.release(target.release_first))
        requests.append(target.register())
        if target.release_after:
            requests.append(target.release(target.client_id))
    return requests


def claim_answers(targets: Iterable[ClaimTarget], exchanges: Iterable[Exchange]) -> list[ClaimAnswer]:
    """Return the answers to `claim_requests`."""
    outcomes = iter(exchanges)
    return [_answer(target, outcomes) for target in targets]


def _answer(target: ClaimTarget, outcomes: Iterator[Exchange]) -> ClaimAnswer:
    release = None if target.release_first is None else next(outcomes)
    request, outcome = next(outcomes)
    if target.release_after:
        next(outcomes)
    if release is not None and isinstance(release[1], TransportError):
        outcome = release[1]  # the connection broke, whatever came before
    try:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, request.what)
    except TubeMQError as error:
        return ClaimAnswer(error=error, is_answered=False)
    if reply.errCode == ErrCode.SUCCESS:
        try:
            check_positions(request.what, reply.currOffset, reply.maxOffset)
        except ProtocolError as error:
            return ClaimAnswer(error=error, is_answered=False)
        return ClaimAnswer(GroupPosition(reply.currOffset, reply.maxOffset))
    if reply.errCode == ErrCode.PARTITION_OCCUPIED:
        return ClaimAnswer(holder=holder_in(reply.errMsg))
    if is_retryable(reply.errCode):
        return ClaimAnswer(error=refused_for_now(reply.errCode, reply.errMsg, request.what))
    return ClaimAnswer(error=error_for_code(reply.errCode, reply.errMsg, request.what))


def _release_error(request: ServerRequest, outcome: Outcome) -> TubeMQError | None:
    """Return why a release failed, None if the client has no claim any more."""
    try:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, request.what)
    except TubeMQError as error:
        return error
    if reply.errCode == ErrCode.SUCCESS or reply.errCode in _NOT_HELD:
        return None
    return TransportError(f"{request.what}: {reply.errCode} {reply.errMsg}")


class Verdict(NamedTuple):
    """What to do about the holder of a partition: `fence` it, which releases its claim, or wait; and how many seconds
    to pause before the next attempt. The length is random, so that each of two waiting clients gets its turn."""

    fence: bool
    pause: float


class ClaimConflict:
    """The wait of `claim` for one or more partitions. It starts when the object is created."""

    def __init__(self, settings: ClientSettings, group: str, claim: ClaimId, claim_timeout: float) -> None:
        """`claim_timeout` limits the wait for holders that are not siblings, in seconds. A broker may name fenced
        predecessors again for the settings' `retry_for`."""
        self._settings = settings
        self._group = group
        self._claim = claim
        self._claim_timeout = claim_timeout
        self._started = settings.clock.monotonic()
        self._waits_since: float | None = None  # for a holder that is neither sibling nor predecessor
        self._fencing_ends: Deadline | None = None  # set by the first predecessor
        self._fenced: Counter[str] = Counter()  # how many holders were fenced, by `where`
        self._doubtful: set[str] = set()
        self._delays: dict[str, Iterator[float]] = {}  # by `where`
        self._next_log: dict[str, float] = {}  # by holder, on the monotonic clock

    def judge(self, where: str, holder: str, *, was_ours: bool = False) -> Verdict:
        """Return what to do about `holder`, which has the partition at `where`. Then the caller tries again.

        With `was_ours` this run held the partition before, so a run that looks newer cannot be a dead one. Raise
        `FencedError` if the holder replaces the caller, or a run that looks newer holds the partition for too long,
        `PartitionOccupiedError` if any other holder but a sibling does.
        """
        holder_id = ClaimId.parse(holder)
        relation = Relation.FOREIGN if holder_id is None else self._claim.relation(holder_id)
        if relation is not Relation.SIBLING:
            self._doubtful.add(where)
        if relation is Relation.PREDECESSOR:
            is_repeated = self._on_predecessor(where, holder)
            return Verdict(True, self._pause(where) if is_repeated else 0.0)
        if relation is Relation.UNCLEAR and was_ours:
            raise FencedError(
                f"{where}: a newer run of this query, {holder}, has taken the partition over. Check that the query "
                "does not run twice",
                holder=holder,
            )
        if relation is Relation.SUCCESSOR:
            problem = f"{where}: {self._claim} is too late, the newer attempt {holder} holds the partition"
            raise FencedError(problem, holder=holder)
        left = math.inf
        if relation is not Relation.SIBLING:
            now = self._settings.clock.monotonic()
            if self._waits_since is None:
                self._waits_since = now
                COUNTERS().add(Count.CLAIM_WAITS)
            left = self._waits_since + self._longest_wait(holder_id) - now
            if left <= 0:
                raise self._timeout_error(where, holder, relation)
        self._log_wait(where, holder, relation)
        return Verdict(False, self._pause(where, left))

    def is_doubtful(self, where: str) -> bool:
        """Return True if a holder at `where` may have left while one of its fetches was running. Siblings do not: they
        release a partition only after all their fetches were answered."""
        return where in self._doubtful

    def _pause(self, where: str, at_most: float = math.inf) -> float:
        delay = next(self._delays.setdefault(where, delays(_CLAIM_FIRST_PAUSE, _CLAIM_MAX_PAUSE)))
        return max(_SHORTEST_PAUSE, min(delay * system.randomizer.uniform(0.5, 1.0), at_most))

    def _longest_wait(self, holder: ClaimId | None) -> float:
        return min(_SAME_APPLICATION_WAIT, self._claim_timeout) if self._runs_beside(holder) else self._claim_timeout

    def _runs_beside(self, holder: ClaimId | None) -> bool:
        """Whether the holder is another query of this application that runs. One that was killed is waited for: its
        claims expire."""
        process = None if holder is None else self._claim.query_beside(holder)
        return process is not None and system.is_running(process)

    def _on_predecessor(self, where: str, holder: str) -> bool:
        """Note that the holder is fenced. Return whether that was tried before."""
        count = self._fenced[where]
        self._fencing_ends = self._fencing_ends or Deadline(self._settings.retry_for, self._settings.clock)
        if count == 0:
            _log.info("%s: taking over from the earlier attempt %s", where, holder)
        elif self._fencing_ends.passed:
            raise PartitionOccupiedError(
                f"{where}: an earlier attempt holds the partition, although the broker was told {count} times in "
                f"{self._settings.retry_for:g} s to end such claims: {holder}. Check the broker's log for what it "
                "refuses",
                holder=holder,
            )
        self._fenced[where] += 1
        return count > 0

    def _timeout_error(self, where: str, holder: str, relation: Relation) -> TubeMQError:
        holder_id = ClaimId.parse(holder)
        timeout = f"for more than {self._longest_wait(holder_id):g} s"
        if relation is Relation.UNCLEAR:
            return FencedError(
                f"{where}: a run of this query that began later, {holder}, holds the partition {timeout}. Check that "
                "the query does not run twice",
                holder=holder,
            )
        if relation is Relation.ITSELF:
            problem = (
                f"this very task reads the partition already, {timeout}: {holder}. A task that reads the same rows "
                "twice at once (rdd.zip, rdd.cartesian) waits for itself; call cache() on one side"
            )
        elif self._runs_beside(holder_id):
            problem = (
                f"{_described(holder)} of this Spark application reads group {self._group} already. Each query needs a "
                f"tubemq.group of its own: change that of {self._claim.description}, or stop the other query. One that "
                "uses a stream twice (a self-join) needs two readStreams, and a group for each"
            )
        else:
            problem = (
                f"another consumer of group {self._group} holds the partition {timeout}: {_described(holder)}. Stop "
                "it, or use another tubemq.group"
            )
        return PartitionOccupiedError(f"{where}: {problem}", holder=holder)

    def _log_wait(self, where: str, holder: str, relation: Relation) -> None:
        """Log at times what the client waits for. Siblings take turns all the time, so only a long turn is logged."""
        now = self._settings.clock.monotonic()
        first = self._started + _CLAIM_WAIT_FIRST_LOG if relation is Relation.SIBLING else now
        if now < self._next_log.get(holder, first):
            return
        self._next_log[holder] = now + _CLAIM_WAIT_NEXT_LOG
        if relation is Relation.SIBLING:
            problem = "another scan of the same data reads the partition"
            wait = f"this one has waited for it for {now - self._started:.0f} s"
        else:
            problem = f"another consumer of group {self._group} holds the partition"
            wait = f"waiting for it up to {self._claim_timeout:g} s"
        _log.warning("[claim-wait] %s: %s, %s; %s", where, problem, _described(holder), wait)


def _described(holder: str) -> str:
    """Return who the holder is, with its client id."""
    holder_id = ClaimId.parse(holder)
    return holder if holder_id is None else f"{holder_id.description} ({holder})"


def claiming(
    next_target: Callable[[], ClaimTarget],
    conflict: ClaimConflict,
    note: Callable[[ClaimTarget, ClaimAnswer], None],
    *,
    was_ours: bool = False,
    reads_next: bool = False,
) -> Conversation[None]:
    """Acquire a partition: fence its predecessors, and wait for other holders. `next_target` is asked before each
    attempt, and each answer goes to `note`, the last one with a position.

    `was_ours`: this run has held the partition before. With `reads_next` the caller reads as soon as it has the claim.
    Raises the error of an answer, and as `ClaimConflict.judge`.
    """
    while True:
        target = next_target()
        (answer,) = claim_answers([target], (yield claim_requests([target])))
        pause = 0.0
        if answer.holder is not None:
            verdict = conflict.judge(target.where, answer.holder, was_ours=was_ours)
            pause = verdict.pause
            if verdict.fence:
                answer = _fenced(answer, (yield _fence(target, answer.holder, reads_next)), reads_next)
        note(target, answer)
        if answer.position is not None:
            return
        if answer.error is not None:
            raise answer.error
        problem = f"{target.where}: {answer.holder} holds the partition"
        if pause and not (yield Wait(problem, pause)):
            raise TransportError(problem)


def _fence(target: ClaimTarget, holder: str, reads_next: bool) -> list[ServerRequest]:
    if not reads_next:
        return [target.release(holder)]
    # A fetch of the holder may still be running. It has most likely ended when two fetches of ours have, and the
    # messages of these are not used.
    fetch = target.requests.fetch(target.broker, target.partition, target.client_id)
    return [target.release(holder), target.register(), fetch, fetch]


def _fenced(answer: ClaimAnswer, exchanges: Sequence[Exchange], reads_next: bool) -> ClaimAnswer:
    broken = [outcome for _, outcome in exchanges if isinstance(outcome, TransportError)]
    # A reader ignores a refused release: it meets the holder again, and `judge` limits how often.
    error = broken[0] if broken else None if reads_next else _release_error(*exchanges[0])
    if error is None:
        return answer._replace(was_fenced=True)
    return ClaimAnswer(error=error, is_answered=not broken)
