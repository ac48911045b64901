# SPDX-License-Identifier: Apache-2.0
"""Claims of a query's driver: the group's partitions that the driver holds between micro-batches.

A held partition keeps other clients out, and one cheap request, a roll-back, returns the store's end. For a batch the
driver lends its claims: the tasks take the partitions over under client ids of their own. After the batch the driver
takes them back and moves the group to the position that Spark has committed. Heartbeats keep the claims. The driver
claims partitions again after a broker's restart, and once an hour, because servers drop groups that are idle for long.

A client that takes a partition from a holder with fetches in flight must let the next reader verify what it reads, see
`PartitionReader`. `DriverClaims` marks such partitions as doubtful until a task has read them and given them back.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests, check_positions, unwrap_seek
from tubemq_spark.client.consumer.claim_acquirer import ClaimAcquirer, ClaimTarget, GroupPosition
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.client.retries import Retries
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Broker, Partition, parse_failure_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)
_UNKNOWN_POSITION = GroupPosition(-1, -1)


class _State(Enum):
    FREE = auto()  # never claimed
    HELD = auto()
    LENT = auto()  # to the query's tasks, which claim it under their own client ids
    LOST = auto()  # the broker forgot it (restart, expiry) or another client took it


@dataclass
class _PartitionClaim:
    """The driver's claim on one partition, or its attempts to get one."""

    state: _State = _State.FREE
    client_id: str = ""  # under which the driver holds the partition, or has lent it
    position: GroupPosition = _UNKNOWN_POSITION  # as the broker reported it last
    claimed_at: float = 0.0  # on the monotonic clock
    unanswered_id: str | None = None  # the client id of a claim that the broker may have made, but did not confirm
    is_doubtful: bool = False  # a fetch of an earlier holder may still be running
    becomes_doubtful: bool = False  # the claim will be doubtful when it is acquired
    is_suspect: bool = False  # a heartbeat's reply says that the driver does not hold the partition
    is_topic_unknown: bool = False
    keep: bool = False  # `release` leaves the claim to expire

    @property
    def is_held(self) -> bool:
        return self.state is _State.HELD

    def on_acquired(self, client_id: str, position: GroupPosition, now: float) -> None:
        was_lent = self.state is _State.LENT  # then a task has verified the partition
        self.is_doubtful = self.becomes_doubtful or (self.is_doubtful and not was_lent)
        self.becomes_doubtful = self.is_topic_unknown = False
        self.state, self.client_id, self.position, self.claimed_at = _State.HELD, client_id, position, now


class DriverClaims:
    """The claims of one query's driver on partitions of a group. One thread uses it; heartbeats run in another."""

    def __init__(self, session: ConsumerSession, claim: ClaimId, claim_timeout: float) -> None:
        """`claim_timeout` is how many seconds to wait for a partition that another consumer holds."""
        self.claim = claim
        self._session = session
        self._settings = session.settings
        self._claim_timeout = claim_timeout
        self._claims: dict[Partition, _PartitionClaim] = {}
        self._lock = system.Lock()  # of the dictionary, which the heartbeat thread iterates over
        self._stop_heartbeat: Callable[[], None] | None = None
        self._all_checked_at = self._settings.clock.monotonic()
        self._checks = 0  # how often the partitions were checked

    def __repr__(self) -> str:
        counts = dict(sorted(Counter(claim.state.name for claim in self._claims.values()).items()))
        return f"<DriverClaims {self.claim} of group {self._session.group}: {counts}>"

    def holds(self, partition: Partition) -> bool:
        return partition in self._claims and self._claims[partition].is_held

    def position(self, partition: Partition) -> GroupPosition:
        """Return the group's position and the store's end, as the broker reported them last."""
        return self._claims[partition].position

    @property
    def unknown_topics(self) -> frozenset[Partition]:
        """The partitions whose brokers said last that they do not know the topic."""
        return frozenset(partition for partition, claim in self._claims.items() if claim.is_topic_unknown)

    def client_id(self, partition: Partition) -> str | None:
        """Return the client id under which the driver holds, or has lent, the partition."""
        return (self._claims[partition].client_id if partition in self._claims else "") or None

    # Acquiring

    def take(
        self,
        positions: Mapping[Partition, int | None],
        read_status: ReadStatus = ReadStatus.NORMAL,
        retry_for: float | None = None,
    ) -> None:
        """Claim partitions, or take lent ones back. Positions and `read_status` are as for `ClaimTarget`, `retry_for`
        is in seconds, by default that of the settings.

        Raise `PartitionOccupiedError` if another consumer holds one of them for too long, `FencedError` if a newer run
        of this query does, `TransportError` with the `unserved` partitions if a broker does not answer. A planner of a
        batch read must call `take_some`: it must not wait for siblings while it holds partitions.
        """
        self._take(positions, read_status, self.new_acquirer(), retry_for)

    def take_some(
        self, partitions: Iterable[Partition], acquirer: ClaimAcquirer, read_status: ReadStatus = ReadStatus.NORMAL
    ) -> set[Partition]:
        """Claim those of `partitions` that no other client holds, at least one, and return them. The group does not
        move. The driver waits only while it holds none of them: two clients that wait and hold nothing cannot block
        each other. `acquirer` limits the wait over several calls. Raise as `take` does.
        """
        return self._take(dict.fromkeys(partitions), read_status, acquirer, some=True)

    def new_acquirer(self) -> ClaimAcquirer:
        return ClaimAcquirer(self._settings, self._session.group, self.claim, self._claim_timeout)

    def _take(
        self,
        positions: Mapping[Partition, int | None],
        read_status: ReadStatus,
        acquirer: ClaimAcquirer,
        retry_for: float | None = None,
        *,
        some: bool = False,
    ) -> set[Partition]:
        missing = dict(positions)
        retry_for = self._settings.retry_for if retry_for is None else retry_for
        what = f"claiming partitions of group {self._session.group}"
        retries = Retries(_log, what, retry_for, clock=self._settings.clock)
        while missing:
            error = self._attempt(missing, read_status, acquirer)
            if error is None:
                retries.progress()
            if some and len(missing) < len(positions):
                break
            if error is not None and not retries.failed(f"{error}; {len(missing)} partitions are missing"):
                raise self._gave_up(error, missing, retry_for) from None
            acquirer.conflict.pause()
        return positions.keys() - missing.keys()

    def _attempt(
        self,
        missing: dict[Partition, int | None],
        read_status: ReadStatus,
        acquirer: ClaimAcquirer,
        timeout: float | None = None,
    ) -> TransportError | None:
        """Claim all of `missing` once and remove the acquired ones. Return an error if a later attempt may succeed."""
        if self._stop_heartbeat is None:
            self._stop_heartbeat = HEARTBEAT().keep(self._send_heartbeats, self._settings.timings.heartbeat_period)
        requests = self.requests
        targets = [
            ClaimTarget(
                requests,
                self._session.broker(partition),
                partition,
                # A held partition keeps its client id. The broker would refuse a newer one at first.
                self._claims[partition].client_id if self.holds(partition) else str(self.claim),
                position,
                read_status,
            )
            for partition, position in missing.items()
        ]
        answers = acquirer.attempt(targets, timeout, {partition for partition in missing if self.client_id(partition)})
        retryable: TransportError | None = None
        fatal: TubeMQError | None = None  # raised after all answers, so that `release` knows the other claims
        for target, answer in zip(targets, answers, strict=True):
            claim = self._claim_on(target.partition)
            claim.unanswered_id = None if answer.is_answered else target.client_id
            claim.is_topic_unknown = claim.is_topic_unknown or answer.is_unknown_topic
            if answer.position is not None:
                claim.on_acquired(target.client_id, answer.position, self._settings.clock.monotonic())
                del missing[target.partition]
            elif acquirer.conflict.is_doubtful(target.where):
                claim.becomes_doubtful = True
            if isinstance(answer.error, TransportError):
                retryable = answer.error
            else:
                fatal = fatal or answer.error
        if fatal is not None:
            raise fatal
        return retryable

    # Positions

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the earliest position of each held partition.

        A broker reports it only to a register at a lower position; the next request of the same write moves the group
        back. One partition of each store is asked.
        """
        wanted = list(partitions)
        asked = list({partition.store: partition for partition in wanted}.values())
        retry_for = self._settings.retry_for
        what = f"asking for the beginnings of stores in group {self._session.group}"
        retries = Retries(_log, what, retry_for, clock=self._settings.clock)
        while True:
            register = self.requests.register
            requests = [
                register(*self.place(partition), position)
                for partition in asked
                for position in (0, self._claims[partition].position.group)
            ]
            outcomes = send_requests(self._settings, requests)
            try:  # the replies to the second requests, too, because the groups must be back
                replies = [unwrap_seek(exchange) for exchange in zip(requests, outcomes, strict=True)]
            except TransportError as error:
                if not retries.failed(error):
                    raise self._gave_up(error, wanted, retry_for) from None
                continue
            earliest = {partition.store: reply.currOffset for partition, reply in zip(asked, replies[::2], strict=True)}
            return {partition: earliest[partition.store] for partition in wanted}

    def refresh(self, older_than: float) -> None:
        """Update the store ends of all held partitions, but those claimed after `older_than` on the monotonic clock.

        Partitions of one store have one end, so the driver asks one of them, another one each time; heartbeats watch
        the others. After an unexpected answer, and once a minute, it asks all. It claims partitions again that the
        broker forgot, and moves a group back that another client moved. Raise as `take` does."""
        now = self._settings.clock.monotonic()
        held = [p for p, claim in self._claims.items() if claim.is_held and claim.claimed_at < older_than]
        checked = self._partitions_to_check(held, now)
        ends, lost = self._check([partition for partition in held if partition in checked])
        if lost:
            brokers = {partition.broker_id for partition in lost}
            more_ends, more_lost = self._check([p for p in held if p.broker_id in brokers and p not in checked])
            ends |= more_ends
            lost |= more_lost
        for partition, claim in self._claims.items():
            if claim.is_held and partition.store in ends:
                claim.position = GroupPosition(claim.position.group, ends[partition.store])
        for partition in held:
            claim = self._claims[partition]
            if claim.is_held and now - claim.claimed_at > self._settings.timings.claim_again_after:
                lost[partition] = claim.position.group
        self.take(lost)

    def _partitions_to_check(self, held: Sequence[Partition], now: float) -> Set[Partition]:
        """Return one partition of each store, and the suspects; at times all."""
        suspects = {partition for partition in held if self._claims[partition].is_suspect}
        for claim in self._claims.values():
            claim.is_suspect = False
        if self._is_full_check_due(now):
            self._all_checked_at = now
            return set(held)
        stores: defaultdict[Store, list[Partition]] = defaultdict(list)
        for partition in held:
            stores[partition.store].append(partition)
        self._checks += 1
        return {partitions[self._checks % len(partitions)] for partitions in stores.values()} | suspects

    def _is_full_check_due(self, now: float) -> bool:
        return now - self._all_checked_at >= self._settings.timings.all_partitions_check

    def _check(self, partitions: Sequence[Partition]) -> tuple[dict[Store, int], dict[Partition, int | None]]:
        """Return the ends of the partitions' stores, and the partitions that must be claimed again, with positions."""
        requests = [self.requests.roll_back(*self.place(partition)) for partition in partitions]
        ends: dict[Store, int] = {}
        lost: dict[Partition, int | None] = {}
        outcomes = zip(requests, send_requests(self._settings, requests), strict=True)
        for partition, (request, outcome) in zip(partitions, outcomes, strict=True):
            claim = self._claims[partition]
            try:
                reply = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, request.what)
                if reply.errCode != ErrCode.SUCCESS:
                    raise TransportError(f"{partition}: the broker forgot the claim ({reply.errCode} {reply.errMsg})")
                check_positions(request.what, reply.currOffset, reply.maxOffset)
                if reply.currOffset == claim.position.group:
                    ends[partition.store] = reply.maxOffset
                    continue
                _log.warning(
                    "[group-moved] "
                    "%s: another client moved group %s to %d; the driver moves it back to %d, because the query's "
                    "checkpoint decides", partition, self._session.group, reply.currOffset, claim.position.group,
                )  # fmt: skip
            except TransportError as error:
                _log.info("%s", error)
                claim.state = _State.LOST
            lost[partition] = claim.position.group
        return ends, lost

    # Lending

    def lend(self, partitions: Iterable[Partition]) -> None:
        """Let tasks take these partitions over."""
        for partition in partitions:
            self._claim_on(partition).state = _State.LENT

    def next_batch(self) -> ClaimId:
        """Return the claim from which the next batch's tasks derive theirs. The driver's later claims are newer."""
        current = self.claim
        self.claim = replace(current, batch=current.batch + 1)
        return current

    def restore(self, positions: Mapping[Partition, int]) -> None:
        """Take partitions back, also from killed tasks, and move the group, as far as the brokers answer at once. Raise
        nothing. `release` lets a claim that was taken from a killed task expire: the next run meets it before that, and
        verifies what it reads."""
        missing: dict[Partition, int | None] = dict(positions)
        acquirer = self.new_acquirer()
        with suppress(TubeMQError):
            self._attempt(missing, ReadStatus.NORMAL, acquirer, self._close_timeout)
            if missing:
                self._attempt(missing, ReadStatus.NORMAL, acquirer, self._close_timeout)
        for partition, claim in self._claims.items():
            claim.keep = partition in positions and claim.is_doubtful

    def mark_doubtful(self, partition: Partition) -> None:
        """Mark a held partition, because a fetch of the driver itself was not answered and may still be running."""
        self._claims[partition].is_doubtful = True

    def is_doubtful(self, partition: Partition) -> bool:
        """Return True if the next reader of the partition has to verify what it reads."""
        return partition in self._claims and self._claims[partition].is_doubtful

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget claims on partitions that do not exist any more."""
        with self._lock:
            for partition in partitions:
                self._claims.pop(partition, None)

    def release(self) -> None:
        """Release all held partitions; the group does not move. This raises nothing and does not wait for long."""
        if self._stop_heartbeat is not None:
            self._stop_heartbeat()
            self._stop_heartbeat = None
        with self._lock:
            held = [(p, claim.client_id) for p, claim in self._claims.items() if claim.is_held and not claim.keep]
            held += [(p, claim.unanswered_id) for p, claim in self._claims.items() if claim.unanswered_id]
            # What was never acquired may be doubtful, and may be claimed later.
            self._claims = {p: claim for p, claim in self._claims.items() if claim.state is _State.FREE}
        broker, unregister = self._session.broker, self.requests.unregister
        requests = [unregister(broker(partition), partition, name) for partition, name in held]
        send_requests(self._settings, requests, self._close_timeout)

    def _send_heartbeats(self) -> None:
        with self._lock:
            held: dict[tuple[Broker, str], list[Partition]] = {}
            for partition, claim in self._claims.items():
                # A lent claim too, until a task takes the partition. From then on the broker's reply says that the
                # driver does not hold it, which does no harm.
                if claim.client_id and claim.state in (_State.HELD, _State.LENT):
                    held.setdefault((self._session.broker(partition), claim.client_id), []).append(partition)
        settings = self._settings
        heartbeat = self.requests.heartbeat
        requests = [heartbeat(broker, client_id, partitions) for (broker, client_id), partitions in held.items()]
        outcomes = send_requests(settings, requests, min(settings.timings.reader_close_timeout, settings.rpc_timeout))
        for (broker, _), request, outcome in zip(held, requests, outcomes, strict=True):
            # The next `refresh` meets a broker's errors, too, and handles them.
            with suppress(TubeMQError), self._lock:
                reply = unwrap_reply(outcome, broker_pb.HeartBeatResponseB2C, request.what)
                for failure in reply.failureInfo:
                    _, topic, partition_id = parse_failure_info(failure)
                    partition = Partition(broker.broker_id, topic, partition_id)
                    if partition in self._claims:
                        self._claims[partition].is_suspect = True

    @property
    def _close_timeout(self) -> float:
        return min(self._settings.timings.claims_close_timeout, self._settings.rpc_timeout)

    def place(self, partition: Partition) -> tuple[Broker, Partition, str]:
        """Return what each request needs: the broker, the held partition and the client id."""
        return self._session.broker(partition), partition, self._claims[partition].client_id

    def _claim_on(self, partition: Partition) -> _PartitionClaim:
        with self._lock:
            return self._claims.setdefault(partition, _PartitionClaim())

    @property
    def requests(self) -> GroupRequests:
        return GroupRequests(self._settings, self._session.group, self._session.token)

    @staticmethod
    def _gave_up(error: TransportError, partitions: Iterable[Partition], seconds: float) -> TransportError:
        return TransportError(
            f"{error}; gave up after {seconds:g} s. Check that the broker runs and can be reached from the driver",
            unserved=frozenset(partitions),
        )
