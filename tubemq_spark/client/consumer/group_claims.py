# SPDX-License-Identifier: Apache-2.0
"""Claims on the partitions of the user's group, which a query's driver holds for as long as the query runs.

They keep other clients of the group out, also between micro-batches. Only their holder moves the group, to positions
that Spark has committed; everything is read in other groups, see `working_group`. One cheap request in a held
partition, a roll-back, returns the store's end. Heartbeats keep the claims, and claim a partition again that the broker
forgot. The driver also claims all again once an hour, because servers drop groups that are idle for long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tubemq_spark.client import system
from tubemq_spark.client.cluster.cluster_metadata import by_store
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests, check_positions
from tubemq_spark.client.consumer.claim_acquirer import ClaimAnswer, ClaimConflict, ClaimTarget, GroupPosition, claiming
from tubemq_spark.client.consumer.conversations import Begin, Conversation, DirectChannel, hold
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Broker, Partition, parse_failure_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_ALL_PARTITIONS_CHECK = 60.0  # seconds; between two checks of the group's position in all partitions of a store
_CLAIM_AGAIN_AFTER = 3600.0  # seconds; the driver repeats its claims, because servers drop groups that are idle

_log = logging.getLogger(__name__)
_UNKNOWN_POSITION = GroupPosition(-1, -1)


@dataclass
class _PartitionClaim:
    """The claim on one partition, or the attempts to get one."""

    is_held: bool = False
    was_held: bool = False  # by this client, now or before
    may_exist: bool = False  # the broker may have made the claim, but did not confirm it
    position: GroupPosition = _UNKNOWN_POSITION  # as the broker reported it last
    claimed_at: float = 0.0  # on the monotonic clock
    is_suspect: bool = False  # a heartbeat's reply says that the partition is not held

    def on_acquired(self, position: GroupPosition, now: float) -> None:
        self.is_suspect = False
        self.is_held = self.was_held = True
        self.position, self.claimed_at = position, now


class GroupClaims:
    """Claims on partitions of a session's group. One thread uses it; heartbeats run in another."""

    def __init__(
        self, session: ConsumerSession, claim: ClaimId, claim_timeout: float, *, keeps_position: bool = True
    ) -> None:
        """`claim_timeout` is how many seconds to wait for a partition that another consumer holds. `keeps_position`:
        the group is moved back if another client moves it."""
        self.claim = claim
        self._client_id = str(claim)
        self._session = session
        session.held = self.held
        self._settings = session.settings
        self._claim_timeout = claim_timeout
        self._keeps_position = keeps_position
        self._claims: dict[Partition, _PartitionClaim] = {}
        self._lock = system.Lock()  # of the dictionary, which the heartbeat thread iterates over
        self._claiming = system.Lock()  # one thread claims at a time
        self._stop_heartbeat: Callable[[], None] | None = None
        self._all_checked_at = self._settings.clock.monotonic()
        self._checks = 0  # how often the partitions were checked
        self.losses = 0  # how often brokers forgot claims, or did not answer

    def __repr__(self) -> str:
        held, known = len(self.held()), len(self._claims)
        return f"<GroupClaims {self.claim} holds {held} of {known} partitions in {self._session.group}>"

    def holds(self, partition: Partition) -> bool:
        return partition in self._claims and self._claims[partition].is_held

    def held(self) -> list[Partition]:
        """Return the held partitions. Any thread may ask, also one with the session's lock."""
        return [partition for partition, claim in list(self._claims.items()) if claim.is_held]

    def position(self, partition: Partition) -> GroupPosition:
        """Return the group's position and the store's end, as the broker reported them last."""
        return self._claims[partition].position

    # Acquiring

    def take(
        self,
        positions: Mapping[Partition, int | None],
        read_status: ReadStatus = ReadStatus.NORMAL,
        retry_for: float | None = None,
    ) -> None:
        """Claim partitions, or move the group in held ones. Positions and `read_status` are as for `ClaimTarget`,
        `retry_for` is in seconds, by default that of the settings.

        Raise `PartitionOccupiedError` if another consumer holds one of them for too long, `FencedError` if a newer run
        of this query does, `TransportError` with the `unserved` partitions if a broker does not answer.
        """
        if self._stop_heartbeat is None:
            self._stop_heartbeat = HEARTBEAT().keep(self._beat, self._settings.timings.heartbeat_period)
        self._take(positions, read_status, retry_for)

    def hold(self, partitions: Iterable[Partition], read_status: ReadStatus = ReadStatus.NORMAL) -> None:
        """Claim those of the partitions that are not held; the group stays."""
        self.take(dict.fromkeys(partition for partition in partitions if not self.holds(partition)), read_status)

    def look(self, partitions: Iterable[Partition]) -> dict[Partition, GroupPosition]:
        """Return the group's position and the store's end in partitions that nobody else holds. Each claim is released
        in the same write, so that two clients that look at the same time cannot block each other."""
        wanted = dict.fromkeys(partitions)
        self._take(wanted, ReadStatus.NORMAL, release=True)
        return {partition: self._claims.pop(partition).position for partition in wanted}

    def _take(
        self,
        positions: Mapping[Partition, int | None],
        read_status: ReadStatus,
        retry_for: float | None = None,
        *,
        release: bool = False,
    ) -> None:
        """Claim the partitions, or move the group there."""
        hold(
            DirectChannel(self._settings),
            self._conversations(positions, read_status, release=release),
            f"claiming partitions of group {self._session.group}",
            retry_for=retry_for,
            at_once=len(positions),
            lock=self._claiming,  # heartbeats must be able to claim in pauses what a broker forgot
        )

    def _conversations(
        self, positions: Mapping[Partition, int | None], read_status: ReadStatus, *, release: bool = False
    ) -> dict[Partition, Begin[None]]:
        conflict = ClaimConflict(self._settings, self._session.group, self.claim, self._claim_timeout)

        def begin(partition: Partition, position: int | None) -> Conversation[None]:
            was_ours = self._claim_on(partition).was_held

            def next_target() -> ClaimTarget:
                return ClaimTarget(
                    self._requests,
                    self._session.broker(partition),
                    partition,
                    self._client_id,
                    position,
                    read_status,
                    release_after=release,
                )

            def note(_: ClaimTarget, answer: ClaimAnswer) -> None:
                claim = self._claim_on(partition)
                claim.may_exist = not answer.is_answered
                if answer.position is not None:
                    claim.on_acquired(answer.position, self._settings.clock.monotonic())
                # The broker may have restarted meanwhile.
                self.losses += was_ours and isinstance(answer.error, TransportError)

            return claiming(next_target, conflict, note, was_ours=was_ours)

        return {partition: partial(begin, partition, position) for partition, position in positions.items()}

    # Positions

    def refresh(self, older_than: float) -> None:
        """Update the store ends of all held partitions, but those claimed after `older_than` on the monotonic clock.

        Partitions of one store have one end, so the driver asks one of them, another one each time; heartbeats watch
        the others. After an unexpected answer, and once a minute, it asks all. It claims partitions again that the
        broker forgot, and moves a group back that another client moved, if the claims keep its position."""
        with self._claiming:
            lost = self._refresh(older_than)
        self._take(lost, ReadStatus.NORMAL)

    def _refresh(self, older_than: float) -> dict[Partition, int | None]:
        """Return the partitions that must be claimed again, with positions."""
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
            if claim.is_held and now - claim.claimed_at > _CLAIM_AGAIN_AFTER:
                lost[partition] = self._wanted_position(claim)
        return lost

    def _wanted_position(self, claim: _PartitionClaim) -> int | None:
        """Return where the group must be when the partition is claimed again, None for where it is."""
        return claim.position.group if self._keeps_position else None

    def _partitions_to_check(self, held: Sequence[Partition], now: float) -> Set[Partition]:
        """Return one partition of each store, and the suspects; at times all."""
        suspects = {partition for partition in held if self._claims[partition].is_suspect}
        for claim in self._claims.values():
            claim.is_suspect = False
        if now - self._all_checked_at >= _ALL_PARTITIONS_CHECK:
            self._all_checked_at = now
            return set(held)
        self._checks += 1
        return {partitions[self._checks % len(partitions)] for partitions in by_store(held).values()} | suspects

    def _check(self, partitions: Sequence[Partition]) -> tuple[dict[Store, int], dict[Partition, int | None]]:
        """Return the ends of the partitions' stores, and the partitions that must be claimed again, with positions."""
        requests = [self._requests.roll_back(*self._place(partition)) for partition in partitions]
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
                if reply.currOffset == claim.position.group or not self._keeps_position:
                    claim.position = GroupPosition(reply.currOffset, reply.maxOffset)
                    ends[partition.store] = reply.maxOffset
                    continue
                _log.warning(
                    "[group-moved] "
                    "%s: another client moved group %s to %d; the driver moves it back to %d, because the query's "
                    "checkpoint decides", partition, self._session.group, reply.currOffset, claim.position.group,
                )  # fmt: skip
            except TransportError as error:
                _log.info("%s", error)
                claim.is_held = False
                self.losses += 1
            lost[partition] = self._wanted_position(claim)
        return ends, lost

    # Ending

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
        with self._claiming:
            held = [self._place(one) for one, claim in self._claims.items() if claim.is_held or claim.may_exist]
            with self._lock:
                self._claims.clear()
            requests = [self._requests.unregister(*place) for place in held]
            timeout = min(self._settings.timings.claims_close_timeout, self._settings.rpc_timeout)
            send_requests(self._settings, requests, timeout)

    def _beat(self) -> None:
        """Send heartbeats, and claim again at once what a broker forgot: it must not be free until the next batch."""
        forgotten = self._send_heartbeats()
        if not forgotten or not self._claiming.acquire(blocking=False):
            return  # the driver's thread is claiming
        try:
            lost = {p: self._wanted_position(self._claims[p]) for p in forgotten if self.holds(p)}
            for partition in lost:
                self._claims[partition].is_held = False
                self.losses += 1
            hold(
                DirectChannel(self._settings, self._beat_timeout),
                self._conversations(lost, ReadStatus.NORMAL),
                f"claiming partitions of group {self._session.group}",
                retry_for=0.0,
                leave_out=True,
                at_once=len(lost),
            )
        finally:
            self._claiming.release()

    def _send_heartbeats(self) -> list[Partition]:
        """Return the partitions whose claims the brokers do not know any more."""
        with self._lock:
            held: dict[Broker, list[Partition]] = {}
            for partition in self.held():
                held.setdefault(self._session.broker(partition), []).append(partition)
        requests = [self._requests.heartbeat(broker, self._client_id, several) for broker, several in held.items()]
        outcomes = send_requests(self._settings, requests, self._beat_timeout)
        forgotten: list[Partition] = []
        for broker, request, outcome in zip(held, requests, outcomes, strict=True):
            # The next `refresh` meets a broker's errors, too, and handles them.
            with suppress(TubeMQError), self._lock:
                reply = unwrap_reply(outcome, broker_pb.HeartBeatResponseB2C, request.what)
                for failure in reply.failureInfo:
                    code, topic, partition_id = parse_failure_info(failure)
                    partition = Partition(broker.broker_id, topic, partition_id)
                    if self.holds(partition):
                        self._claims[partition].is_suspect = True
                        if code == ErrCode.HB_NO_NODE:
                            forgotten.append(partition)
        return forgotten

    @property
    def _beat_timeout(self) -> float:
        return min(self._settings.timings.reader_close_timeout, self._settings.rpc_timeout)

    def _place(self, partition: Partition) -> tuple[Broker, Partition, str]:
        """Return what each request needs: the broker, the held partition and the client id."""
        return self._session.broker(partition), partition, self._client_id

    def _claim_on(self, partition: Partition) -> _PartitionClaim:
        with self._lock:
            return self._claims.setdefault(partition, _PartitionClaim())

    @property
    def _requests(self) -> GroupRequests:
        return GroupRequests(self._settings, self._session.group, self._session.token)
