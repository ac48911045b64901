"""Claim acquisition: the one way in which the client gets a partition of a consumer group from its broker.

`send_claims` sends one attempt for many partitions and says what each broker answered. `ClaimAcquirer` also deals with
the holders that it meets: it fences predecessors and waits for others, as `ClaimConflict` decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_conflict import ClaimConflict
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, holder_in
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, is_unknown_topic, reaction_to
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

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
    is_unknown_topic: bool = False
    first_was_released: bool = False  # the broker still knew the claim of `release_first`
    was_fenced: bool = False  # the broker has released the claim of `holder`


def send_claims(targets: Sequence[ClaimTarget], timeout: float | None = None) -> list[ClaimAnswer]:
    """Send one claim for each target, in one write for each broker, and return the answers in the targets' order.

    Brokers handle the requests in this order, too. `timeout` is in seconds, by default that of the settings. Errors are
    in the answers.
    """
    if not targets:
        return []
    requests: list[ServerRequest] = []
    for target in targets:
        if target.release_first is not None:
            requests.append(target.release(target.release_first))
        requests.append(target.register())
        if target.release_after:
            requests.append(target.release(target.client_id))
    outcomes = zip(requests, send_requests(targets[0].requests.settings, requests, timeout), strict=True)
    return [_answer(target, outcomes) for target in targets]


def _answer(target: ClaimTarget, outcomes: Iterator[tuple[ServerRequest, Outcome]]) -> ClaimAnswer:
    was_released = False
    if target.release_first is not None:
        release = next(outcomes)
        was_released = _release_error(*release, accepted=()) is None
    request, outcome = next(outcomes)
    if target.release_after:
        next(outcomes)
    if target.release_first is not None and isinstance(release[1], TransportError):
        outcome = release[1]  # the connection broke, whatever came before
    try:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, request.what)
    except TubeMQError as error:
        return ClaimAnswer(error=error, is_answered=False)
    if reply.errCode == ErrCode.SUCCESS:
        return ClaimAnswer(GroupPosition(reply.currOffset, reply.maxOffset), first_was_released=was_released)
    if reply.errCode == ErrCode.PARTITION_OCCUPIED:
        return ClaimAnswer(holder=holder_in(reply.errMsg))
    if reaction_to(reply.errCode) is Reaction.RETRY:
        return ClaimAnswer(
            error=TransportError(f"{request.what}: {reply.errCode} {reply.errMsg}"),
            is_unknown_topic=is_unknown_topic(reply.errCode, reply.errMsg),
        )
    return ClaimAnswer(error=error_for_code(reply.errCode, reply.errMsg, request.what))


def _release_error(
    request: ServerRequest, outcome: Outcome, accepted: Collection[int] = _NOT_HELD
) -> TubeMQError | None:
    try:
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, request.what)
    except TubeMQError as error:
        return error
    if reply.errCode == ErrCode.SUCCESS or reply.errCode in accepted:
        return None
    return TransportError(f"{request.what}: {reply.errCode} {reply.errMsg}")


class ClaimAcquirer:
    """Acquires partitions of one group for `claim`: the caller calls `attempt` and `pause` until it has them.

    A wait ends when all partitions of an attempt are acquired; the next attempt starts another wait.
    """

    def __init__(
        self, settings: ClientSettings, group: str, claim: ClaimId, claim_timeout: float, *, reads_next: bool = False
    ) -> None:
        """`claim_timeout` is as for `ClaimConflict`. With `reads_next` the caller reads right after it has acquired the
        partition."""
        self._settings = settings
        self._new_conflict = partial(ClaimConflict, settings, group, claim, claim_timeout)
        self._conflict = self._new_conflict()
        self._reads_next = reads_next

    def attempt(
        self, targets: Sequence[ClaimTarget], timeout: float | None = None, were_ours: Collection[Partition] = ()
    ) -> list[ClaimAnswer]:
        """Send one claim for each target, fence the predecessors that hold some of them, and return the answers in the
        targets' order. Errors of `ClaimConflict.must_fence` are in the answers, too. `were_ours` are the partitions
        that this run has held before."""
        answers = send_claims(targets, timeout)
        if all(answer.position is not None for answer in answers):
            self._conflict = self._new_conflict()
            return answers
        if any(answer.error is not None and not isinstance(answer.error, TransportError) for answer in answers):
            return answers
        fenced: list[int] = []
        for number, (target, answer) in enumerate(zip(targets, answers, strict=True)):
            if answer.holder is None:
                continue
            try:
                was_ours = target.partition in were_ours
                if self._conflict.must_fence(target.where, answer.holder, was_ours=was_ours):
                    fenced.append(number)
            except TubeMQError as error:
                answers[number] = ClaimAnswer(error=error)
                return answers
        self._fence(targets, answers, fenced, timeout)
        return answers

    def is_doubtful(self, target: ClaimTarget) -> bool:
        """Return True if the next reader has to verify what it reads, see `ClaimConflict.is_doubtful`."""
        return self._conflict.is_doubtful(target.where)

    def pause(self) -> None:
        """Sleep before the next attempt, as `ClaimConflict.pause` does."""
        self._conflict.pause()

    def _fence(
        self, targets: Sequence[ClaimTarget], answers: list[ClaimAnswer], fenced: Sequence[int], timeout: float | None
    ) -> None:
        """Release the claims of the holders, and put errors into `answers`."""
        requests: list[list[ServerRequest]] = []
        for number in fenced:
            target, holder = targets[number], answers[number].holder
            assert holder is not None
            requests.append([target.release(holder)])
            if self._reads_next:
                # A fetch of the holder may still be running. It has most likely ended when two fetches of ours have,
                # and the messages of these are not used.
                fetch = target.requests.fetch(target.broker, target.partition, target.client_id)
                requests[-1] += [target.register(), fetch, fetch]
        outcomes = iter(send_requests(self._settings, [one for several in requests for one in several], timeout))
        for number, several in zip(fenced, requests, strict=True):
            exchanges = [(request, next(outcomes)) for request in several]
            broken = [outcome for _, outcome in exchanges if isinstance(outcome, TransportError)]
            # A reader ignores a refused release: it meets the holder again, and `must_fence` limits how often.
            error = broken[0] if broken else None if self._reads_next else _release_error(*exchanges[0])
            if error is None:
                answers[number] = answers[number]._replace(was_fenced=True)
            else:
                answers[number] = ClaimAnswer(error=error, is_answered=not broken)
