# SPDX-License-Identifier: Apache-2.0
"""The claim of a task on the partition that it reads, in a working group: acquire, prove, keep alive, release.

A release does not cancel a running fetch, which then moves the next owner's cursor (see `claim_acquirer`). So a task
releases its claim only after all its fetches were answered. A task that takes over from a client that may have left
fetches running, or that continues over a new connection, is doubtful: it must read the range twice and compare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_acquirer import (
    ClaimAnswer,
    ClaimConflict,
    ClaimTarget,
    GroupPosition,
    claiming,
)
from tubemq_spark.client.consumer.conversations import DirectChannel, converse
from tubemq_spark.client.consumer.range_to_read import RangeToRead
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.retries import Retries
from tubemq_spark.errors import FencedError, TransportError, TubeMQError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.claim_id import ClaimId, Relation, holder_in
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, is_retryable, reaction_to
from tubemq_spark.protocol.metadata import Broker, Partition, parse_failure_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_MAX_PROOFS = 3  # before a delivery; each reply took longer than a proof may be old


class ClaimState(Enum):
    """Whether the broker has the task's claim, as far as the task knows."""

    NEW = auto()  # nothing was sent
    FREE = auto()  # it has none
    UNCERTAIN = auto()  # it may have one: the reply to a claiming request is missing, or says that it is not held
    HELD = auto()


class ClaimEvent(Enum):
    SENT = auto()  # requests that claim the partition, with fetches behind them
    CONFIRMED = auto()
    DECLINED = auto()  # a claiming request was refused
    LOST = auto()  # a reply says that the task does not hold the partition
    LEFT = auto()  # the connection is closed, or the claim released


_NEXT = {
    (ClaimState.NEW, ClaimEvent.SENT): ClaimState.UNCERTAIN,
    (ClaimState.NEW, ClaimEvent.CONFIRMED): ClaimState.HELD,
    (ClaimState.NEW, ClaimEvent.LEFT): ClaimState.NEW,
    (ClaimState.FREE, ClaimEvent.SENT): ClaimState.UNCERTAIN,
    (ClaimState.FREE, ClaimEvent.CONFIRMED): ClaimState.HELD,
    (ClaimState.FREE, ClaimEvent.DECLINED): ClaimState.FREE,
    (ClaimState.FREE, ClaimEvent.LEFT): ClaimState.FREE,
    (ClaimState.UNCERTAIN, ClaimEvent.SENT): ClaimState.UNCERTAIN,
    (ClaimState.UNCERTAIN, ClaimEvent.CONFIRMED): ClaimState.HELD,
    (ClaimState.UNCERTAIN, ClaimEvent.DECLINED): ClaimState.FREE,
    (ClaimState.UNCERTAIN, ClaimEvent.LEFT): ClaimState.FREE,
    (ClaimState.HELD, ClaimEvent.SENT): ClaimState.HELD,
    (ClaimState.HELD, ClaimEvent.CONFIRMED): ClaimState.HELD,
    (ClaimState.HELD, ClaimEvent.LOST): ClaimState.UNCERTAIN,
    (ClaimState.HELD, ClaimEvent.LEFT): ClaimState.FREE,
}


class ClaimRefusedError(Exception):
    """The broker refused a seek: the task must acquire the claim before the next one."""


class TaskClaim:
    """The claim of one task on a partition, in a working group whose position means nothing. One thread uses it;
    heartbeats only read its state.

    `is_doubtful` is True while a fetch that nobody waits for may move the cursor. `proven_at` is when the last request
    was sent whose reply proves the claim, on the monotonic clock.
    """

    def __init__(
        self,
        requests: GroupRequests,
        claim: ClaimId,
        wanted: RangeToRead,
        broker: Broker,
        find_broker: Callable[[Broker], Broker],
        claim_timeout: float,
    ) -> None:
        """`find_broker` returns the new address of a broker that is out of reach, or that another broker was met at."""
        self.requests = requests
        self.broker = broker
        self.partition = wanted.partition
        self.filters = wanted.filters
        self.client_id = str(claim)
        self._id = claim
        self.is_doubtful = False
        self.proven_at = 0.0
        self._state = ClaimState.NEW
        self._new_conflict = partial(ClaimConflict, requests.settings, requests.group, claim, claim_timeout)
        self._conflict = self._new_conflict()
        self._find_broker = find_broker
        self._unreachable_since: float | None = None

    def _on(self, event: ClaimEvent) -> None:
        self._state = _NEXT[self._state, event]

    @property
    def is_held(self) -> bool:
        return self._state is ClaimState.HELD

    @property
    def _may_exist(self) -> bool:
        """Whether the claim has to be released."""
        return self._state in (ClaimState.UNCERTAIN, ClaimState.HELD)

    @property
    def where(self) -> str:
        return f"{self.partition} at {self.broker}"

    @property
    def server(self) -> ExpectedBroker:
        """The broker as it is known now, for a connection."""
        return ExpectedBroker(self.broker, self.requests.token)

    @property
    def place(self) -> tuple[Broker, Partition, str]:
        """The broker as it is known now, the partition and the client id: what each request needs."""
        return self.broker, self.partition, self.client_id

    @property
    def may_claim_by_seek(self) -> bool:
        """Return True if the reader is to send its first seek as the claim, with fetches behind it in one write.

        That saves a round trip. A broker that refuses the seek refuses these fetches, too: they move no cursor. It is
        tried once, because `acquire` deals with other holders, old visit tokens and all other refusals.
        """
        return self._state is ClaimState.NEW

    def on_claim_by_seek(self) -> None:
        """The requests are sent now: if the connection breaks, a fetch may be running."""
        self._on(ClaimEvent.SENT)

    def is_sibling(self, holder: str) -> bool:
        """Return True if the client is another scan of the same data, which takes turns with this one."""
        holder_id = ClaimId.parse(holder)
        return holder_id is not None and self._id.relation(holder_id) is Relation.SIBLING

    def acquire(self, retries: Retries, start: int) -> GroupPosition | None:
        """Claim the partition by a seek to `start`, unless it is held. Fence predecessors and wait for other holders.
        Return the reply to the seek, None if the partition was held.

        Raise `TransportError` if a retry may succeed, else as `ClaimConflict.judge`.
        """
        if self.is_held:
            return None
        acquired: list[GroupPosition] = []
        sent_at = 0.0

        def next_target() -> ClaimTarget:
            nonlocal sent_at
            sent_at = self.requests.settings.clock.monotonic()
            return ClaimTarget(self.requests, *self.place, start, filters=self.filters)

        def note(target: ClaimTarget, answer: ClaimAnswer) -> None:
            if answer.was_fenced:
                self._on(ClaimEvent.SENT)
            if answer.position is not None:
                self._on(ClaimEvent.CONFIRMED)
                self.proven_at = sent_at
                acquired.append(answer.position)
                self._conflict = self._new_conflict()
                return
            self.is_doubtful = self.is_doubtful or self._conflict.is_doubtful(target.where)
            if answer.error is None:
                retries.progress()  # the broker answers

        channel = DirectChannel(self.requests.settings)
        converse(channel, self.partition, claiming(next_target, self._conflict, note, reads_next=True))
        return acquired[0]

    def prove(self, connection: Connection) -> None:
        """Make sure before a delivery that the claim is still held, unless a recent reply proves it.

        A reply that took too long proves too little, for example if this process stood still meanwhile. So the proof is
        repeated; if every reply takes that long, the last one counts.
        """
        settings = self.requests.settings
        for _ in range(_MAX_PROOFS):
            sent_at = settings.clock.monotonic()
            if sent_at - self.proven_at < settings.timings.claim_proof_max_age:
                return
            request = self._heartbeat()
            serial_no = connection.submit(request.service, request.method, request.message, settings.rpc_timeout)
            reply = unwrap_reply(connection.reply(serial_no), broker_pb.HeartBeatResponseB2C, request.what)
            if reply.errCode == ErrCode.CERTIFICATE_FAILURE:
                sent_at = settings.clock.monotonic()
                renewed = self._send_now(request)  # with a new visit token
                reply = unwrap_reply(renewed, broker_pb.HeartBeatResponseB2C, request.what)
            self.check(reply.errCode, reply.errMsg, request.what)
            for failure in reply.failureInfo:
                code, _, _ = parse_failure_info(failure)
                self.check(code, shown(failure), request.what)
            self.proven_at = sent_at

    def check(self, code: int, message: str, what: str) -> None:
        """Raise an error unless `code` is a success: `FencedError` if the claim is lost."""
        if code == ErrCode.SUCCESS:
            return
        if reaction_to(code) is Reaction.CLAIM_LOST and self.is_held:
            self._on(ClaimEvent.LOST)
            raise FencedError(
                f"{self.where}: {self.client_id} does not hold the partition any more ({code}: {message}); a "
                "newer attempt took it over, or this one paused for too long. What it read so far is not used",
                holder=holder_in(message),
            )
        if is_retryable(code):
            raise TransportError(f"{what}: {code} {message}")
        raise error_for_code(code, message, what)

    def check_seek(self, code: int, message: str, what: str) -> None:
        """Raise as `check`, and `ClaimRefusedError` if the claim must be acquired by `acquire`: another client holds
        the partition, the visit token is too old, or the seek that was to be the claim was refused."""
        if code == ErrCode.SUCCESS:
            self._on(ClaimEvent.CONFIRMED)
        elif not self.is_held:
            self._on(ClaimEvent.DECLINED)
            raise ClaimRefusedError(f"{what}: {code} {message}")
        elif code in (ErrCode.PARTITION_OCCUPIED, ErrCode.CERTIFICATE_FAILURE):
            raise ClaimRefusedError(f"{what}: {code} {message}")
        else:
            self.check(code, message, what)

    def send_heartbeat(self) -> None:
        """Keep the claim alive. A reply that it is lost is left to the next request of the task."""
        if self.is_held:
            self._send_now(self._heartbeat())

    def on_connected(self) -> None:
        self._unreachable_since = None

    def on_unreachable(self) -> None:
        """Look for the broker if it is out of reach for some seconds, at once if another one is at its address."""
        settings = self.requests.settings
        now = settings.clock.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now
        elif now - self._unreachable_since >= settings.timings.broker_lookup_after:
            self._look_for_broker()
        self.located_broker()

    def located_broker(self) -> Broker:
        """Return the broker as it is known now. Look for it first if another one was met at its address."""
        if POOL().is_elsewhere(self.broker):
            self._look_for_broker()
        return self.broker

    def _look_for_broker(self) -> None:
        found = self._find_broker(self.broker)
        if found != self.broker:
            _log.warning("[broker-moved] %s: the broker has moved to %s", self.where, found.address)
            self.broker = found

    def on_refused_seek(self) -> bool:
        """Record that the broker refused a seek (`ClaimRefusedError`). Return whether the partition was held."""
        was_held = self.is_held
        if was_held:
            self._on(ClaimEvent.LOST)
        return was_held

    def on_disconnect(self) -> None:
        """Record that requests may be running that nobody waits for."""
        self.is_doubtful = self.is_doubtful or self._may_exist
        self._on(ClaimEvent.LEFT)

    def release(self) -> None:
        """Release the claim. A broker that does not answer lets it expire. So does one whose partition is doubtful: the
        next client that meets the claim knows that it must verify what it reads."""
        may_exist = self._may_exist
        self._on(ClaimEvent.LEFT)
        if not may_exist or self.is_doubtful:
            return
        request = self.requests.unregister(*self.place)
        try:
            unwrap_reply(self._send_now(request), broker_pb.RegisterResponseB2C, request.what)
        except TubeMQError as error:
            _log.info("%s: could not release the claim: %s", self.where, error)

    def _heartbeat(self) -> ServerRequest:
        return self.requests.heartbeat(self.broker, self.client_id, [self.partition])

    def _send_now(self, request: ServerRequest) -> Outcome:
        settings = self.requests.settings
        timeout = min(settings.timings.reader_close_timeout, settings.rpc_timeout)
        return send_requests(settings, [request], timeout)[0]
