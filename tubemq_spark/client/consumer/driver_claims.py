"""The driver's claims: between micro-batches it holds all partitions of the group itself.

Holding keeps rivals out, makes the group's position a matter of one register, and lets the ends of the stores be asked
for cheaply (a roll-back on a held claim). For a batch the claims are lent to the tasks, which take the partitions under
names of their own; afterwards the driver takes them back at the position that Spark has committed. Heartbeats keep the
claims; a broker that came back is told the positions again, and idle groups are said once an hour, for servers drop
those.

Who takes a partition from somebody that may have fetches under way must have it read with `RangeToRead.verify`, see
`waiting`. `DriverClaims` remembers such partitions as doubtful until tasks have read and returned them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_conflict import ClaimConflict
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.errors import ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, holder_in
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.consumer_lifecycle import CLAIM, ClaimEvent, ClaimState
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, is_unknown_topic, reaction_to
from tubemq_spark.protocol.lifecycle import Lifecycle
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Broker, Partition, parse_failure_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_SAY_AGAIN_AFTER = 3600.0  # seconds
_ASK_ALL_AFTER = 60.0  # seconds in which somebody may move the group in one partition of a store unnoticed
_PARTING_TIMEOUT = 2.0  # seconds: a stop must not hang on a broker that is away


class GroupPosition(NamedTuple):
    """Where the group stands in a partition, and where its store ends."""

    group: int
    end: int


_NOWHERE = GroupPosition(-1, -1)


@dataclass
class _Claim:
    life: Lifecycle[ClaimState, ClaimEvent]
    client_id: str = ""
    standing: GroupPosition = _NOWHERE
    said_at: float = 0.0
    is_doubtful: bool = False  # whether a fetch of an earlier holder may still come to its end

    @property
    def held(self) -> bool:
        return self.life.state is ClaimState.HELD


class DriverClaims:
    """The claims of one query's driver on partitions of a group. Used by one thread; heartbeats come from another."""

    def __init__(self, session: ConsumerSession, claim: ClaimId, claim_timeout: float) -> None:
        """`claim_timeout` is how many seconds to wait for a partition that another consumer holds."""
        self._session = session
        self._claim = claim
        self._claim_timeout = claim_timeout
        self._claims: dict[Partition, _Claim] = {}
        self._lock = threading.Lock()  # of the dictionary, which the heartbeat thread walks over
        self._stop_beating: Callable[[], None] | None = None
        self._kept: set[Partition] = set()  # not to be given back at the end
        self._unsure: set[Partition] = set()  # taken from holders whose last fetches may be under way
        self._unknown: set[Partition] = set()  # whose topics their brokers do not know
        self._suspects: set[Partition] = set()  # which a heartbeat did not find with us; `ask` looks
        self._all_asked_at = time.monotonic()
        self._turn = 0  # of the partitions of a store, to be asked
        self._unanswered: dict[Partition, str] = {}  # the client ids whose claims may have come about unheard of

    def __repr__(self) -> str:
        states = [claim.life.state.name for claim in self._claims.values()]
        counts = {state: states.count(state) for state in sorted(set(states))}
        return f"<DriverClaims {self._claim} of group {self._session.group}: {counts}>"

    @property
    def claim(self) -> ClaimId:
        return self._claim

    def holds(self, partition: Partition) -> bool:
        return partition in self._claims and self._claims[partition].held

    def standing(self, partition: Partition) -> GroupPosition:
        """As last heard of."""
        return self._claims[partition].standing

    @property
    def unknown(self) -> frozenset[Partition]:
        """Partitions whose brokers said, when they were asked last, that they have no such topic."""
        return frozenset(self._unknown)

    def client_id(self, partition: Partition) -> str | None:
        """The client id under which the driver has, or lent, the partition."""
        return self._claims[partition].client_id if partition in self._claims else None

    def take(
        self,
        positions: Mapping[Partition, int | None],
        read_status: ReadStatus = ReadStatus.NORMAL,
        retry_for: float | None = None,
    ) -> None:
        """Claims partitions, or takes lent ones back. With a position the group is moved there; without, it is left
        where it stands, and a new group begins at the earliest or latest position as `read_status` says. `retry_for`
        is in seconds, by default that of the settings.

        `PartitionOccupiedError` when another consumer keeps one of them, `FencedError` when a newer run of this query
        does, `TransportError` with the `unserved` partitions when a broker stays away. Not for a planner, which must
        not wait for siblings while it holds partitions: see `take_some`.
        """
        patience = self._session.settings.retry_for if retry_for is None else retry_for
        self._take(dict(positions), read_status, patience, self.new_waiting(), some=False)

    def take_some(
        self, partitions: Iterable[Partition], waiting: ClaimConflict, read_status: ReadStatus = ReadStatus.NORMAL
    ) -> set[Partition]:
        """Claims as many of `partitions` as nobody holds, one at least, and leaves their groups where they stand. Waits
        only while it has none of them: two who hold nothing before never wait for each other. Raises as `take` does;
        `waiting` says how long for."""
        missing: dict[Partition, int | None] = dict.fromkeys(partitions)
        wanted = set(missing)
        self._take(missing, read_status, self._session.settings.retry_for, waiting, some=True)
        return wanted - missing.keys()

    def new_waiting(self) -> ClaimConflict:
        """For partitions that others hold."""
        return ClaimConflict(self._claim, self._session.group, self._claim_timeout, self._session.settings.retry_for)

    def _take(
        self,
        missing: dict[Partition, int | None],
        read_status: ReadStatus,
        patience: float,
        waiting: ClaimConflict,
        *,
        some: bool,
    ) -> None:
        wanted = len(missing)
        stamina = Retries(_log, f"claiming partitions of group {self._session.group}", patience)
        while missing:
            trouble = self._try_once(missing, read_status, waiting)
            if trouble is None:
                stamina.progress()
            if some and len(missing) < wanted:
                return
            if trouble is not None and not stamina.failed(f"{trouble}; {len(missing)} partitions are missing"):
                raise self._gave_up(trouble, missing, patience) from None
            waiting.pause()

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first position of each held partition's store.

        Only a register below it tells, which moves the group for the moment until the next request of the same write.
        One partition of each store is asked.
        """
        wanted = list(partitions)
        asked = list({partition.store: partition for partition in wanted}.values())
        what = f"asking for the beginnings of stores in group {self._session.group}"
        stamina = Retries(_log, what, self._session.settings.retry_for)
        while True:
            calls: list[ServerRequest] = []
            for partition in asked:
                claim = self._claims[partition]
                broker = self._broker(partition)
                calls.append(self._calls().register(broker, partition, claim.client_id, 0))
                calls.append(self._calls().register(broker, partition, claim.client_id, claim.standing.group))
            outcomes = send_requests(self._session.settings, calls)
            try:  # every second one too, for the groups must be back
                replies = [_registered(call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]
            except TransportError as trouble:
                if not stamina.failed(trouble):
                    raise self._gave_up(trouble, wanted, self._session.settings.retry_for) from None
                continue
            begins = {partition.store: reply.currOffset for partition, reply in zip(asked, replies[::2], strict=True)}
            return {partition: begins[partition.store] for partition in wanted}

    def ask(self, heard_since: float) -> None:
        """Renews the standing of all held partitions but those heard of since that moment of the monotonic clock.

        The partitions of a store have one end, so one of them is asked for all, in turn. Heartbeats watch the claims
        of the others; where a broker gives an unusual answer, and once a minute, all are asked. A claim that the
        broker forgot is made again, and a group that was moved from outside is put back. Raises as `take` does.
        """
        now = time.monotonic()
        held = [p for p, claim in self._claims.items() if claim.held and claim.said_at < heard_since]
        asked = self._those_to_ask(held, now)
        ends, lost = self._ask([partition for partition in held if partition in asked])
        if lost:
            brokers = {partition.broker_id for partition in lost}
            others, more = self._ask([p for p in held if p.broker_id in brokers and p not in asked])
            ends |= others
            lost |= more
        for partition, claim in self._claims.items():
            if claim.held and partition.store in ends:
                claim.standing = GroupPosition(claim.standing.group, ends[partition.store])
        for partition in held:
            claim = self._claims[partition]
            if claim.held and now - claim.said_at > _SAY_AGAIN_AFTER:
                lost[partition] = claim.standing.group
        self.take(lost)

    def _those_to_ask(self, held: Sequence[Partition], now: float) -> Set[Partition]:
        """One partition of each store, another one each time, and those that a heartbeat did not find with us."""
        with self._lock:
            suspects, self._suspects = self._suspects, set()
        if now - self._all_asked_at >= _ASK_ALL_AFTER:
            self._all_asked_at = now
            return set(held)
        stores: defaultdict[Store, list[Partition]] = defaultdict(list)
        for partition in held:
            stores[partition.store].append(partition)
        self._turn += 1
        return {partitions[self._turn % len(partitions)] for partitions in stores.values()} | suspects

    def _ask(self, partitions: Sequence[Partition]) -> tuple[dict[Store, int], dict[Partition, int | None]]:
        """Where the stores of `partitions` end, and which of them are to be claimed again with which position."""
        calls = [
            self._calls().roll_back(self._broker(partition), partition, self._claims[partition].client_id)
            for partition in partitions
        ]
        ends: dict[Store, int] = {}
        lost: dict[Partition, int | None] = {}
        for partition, call, outcome in zip(
            partitions, calls, send_requests(self._session.settings, calls), strict=True
        ):
            claim = self._claims[partition]
            try:
                reply = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, call.what)
            except TransportError as error:
                _log.info("%s", error)
                claim.life.on(ClaimEvent.REFUSED)
                lost[partition] = claim.standing.group
                continue
            if reply.errCode == ErrCode.SUCCESS and reply.currOffset == claim.standing.group:
                ends[partition.store] = reply.maxOffset
            elif reply.errCode == ErrCode.SUCCESS:
                _log.warning(
                    "%s: somebody moved group %s to %d; it goes back to %d, for the query's checkpoint decides",
                    partition, self._session.group, reply.currOffset, claim.standing.group,
                )  # fmt: skip
                lost[partition] = claim.standing.group
            else:
                _log.info("%s: the broker has forgotten the claim (%d %s)", partition, reply.errCode, reply.errMsg)
                claim.life.on(ClaimEvent.REFUSED)
                lost[partition] = claim.standing.group
        return ends, lost

    def lend(self, partitions: Iterable[Partition]) -> None:
        """From now on tasks may take these."""
        with self._lock:
            for partition in partitions:
                self._claims.setdefault(partition, self._new(partition)).life.on(ClaimEvent.LENT)

    def restore(self, positions: Mapping[Partition, int]) -> None:
        """Takes partitions back, from tasks that were killed too, and moves the group there, as far as the brokers
        answer at once. Raises nothing.

        A claim that was taken from a killed task is not given back by `release`, so that the next run finds it and
        verifies what it reads. It expires soon.
        """
        timeout = min(_PARTING_TIMEOUT, self._session.settings.rpc_timeout)
        missing: dict[Partition, int | None] = dict(positions)
        with suppress(TubeMQError):
            self._try_once(missing, ReadStatus.NORMAL, self.new_waiting(), timeout)
            if missing:
                self._try_to_take(missing, ReadStatus.NORMAL, timeout)
        self._kept = {partition for partition in positions if self.is_doubtful(partition)}

    def doubt(self, partition: Partition) -> None:
        """A fetch of the driver's own, in a held partition, was not answered and may still come to its end."""
        self._claims[partition].is_doubtful = True

    def is_doubtful(self, partition: Partition) -> bool:
        """Whether who reads the partition next has to verify what it reads."""
        return partition in self._claims and self._claims[partition].is_doubtful

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forgets claims on partitions that are no more."""
        with self._lock:
            for partition in partitions:
                self._claims.pop(partition, None)
                self._unanswered.pop(partition, None)
                self._unsure.discard(partition)

    def next_batch(self) -> ClaimId:
        """The claim that tasks of the next plan derive theirs from; later claims of the driver are newer than those."""
        current = self._claim
        self._claim = replace(current, batch=current.batch + 1)
        return current

    def release(self) -> None:
        """Gives all held partitions back, the group stays where it stands. Does not fail and does not wait for long."""
        if self._stop_beating is not None:
            self._stop_beating()
            self._stop_beating = None
        with self._lock:
            held = [(partition, claim.client_id) for partition, claim in self._claims.items() if claim.held]
            held = [(partition, name) for partition, name in held if partition not in self._kept]
            held += self._unanswered.items()
            for claim in self._claims.values():
                claim.life.on(ClaimEvent.UNREGISTERED)
            self._claims = {}
        calls = [self._calls().unregister(self._broker(partition), partition, name) for partition, name in held]
        send_requests(self._session.settings, calls, timeout=min(_PARTING_TIMEOUT, self._session.settings.rpc_timeout))

    def _try_to_take(
        self, missing: dict[Partition, int | None], read_status: ReadStatus, timeout: float | None = None
    ) -> tuple[dict[Partition, str], TransportError | None]:
        """One round for all of `missing`, from which the taken ones are removed: who holds others, what went wrong."""
        asked = list(missing.items())
        # What is held moves under the name that it has: under a newer one the broker would refuse it at first.
        names = {p: self._claims[p].client_id if self.holds(p) else str(self._claim) for p, _ in asked}
        calls = [
            self._calls().register(self._broker(partition), partition, names[partition], position, read_status)
            for partition, position in asked
        ]
        holders: dict[Partition, str] = {}
        trouble: TransportError | None = None
        end: TubeMQError | None = None  # raised when all answers were heard, for the other claims are to be given back
        outcomes = send_requests(self._session.settings, calls, timeout)
        for (partition, _), call, outcome in zip(asked, calls, outcomes, strict=True):
            self._unanswered[partition] = names[partition]
            try:
                reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
            except TransportError as error:
                trouble = error
                continue
            except TubeMQError as error:
                end = end or error
                continue
            del self._unanswered[partition]
            if reply.errCode == ErrCode.SUCCESS:
                with self._lock:
                    claim = self._claims.setdefault(partition, self._new(partition))
                    was_lent = claim.life.state is ClaimState.LENT
                    claim.is_doubtful = partition in self._unsure or (claim.is_doubtful and not was_lent)
                    self._unsure.discard(partition)
                    claim.life.on(ClaimEvent.REGISTERED)
                    claim.client_id = names[partition]
                    claim.standing = GroupPosition(reply.currOffset, reply.maxOffset)
                    claim.said_at = time.monotonic()
                self._unknown.discard(partition)
                del missing[partition]
            elif reply.errCode == ErrCode.PARTITION_OCCUPIED:
                holders[partition] = holder_in(reply.errMsg)
            elif reaction_to(reply.errCode) is Reaction.RETRY:
                if is_unknown_topic(reply.errCode, reply.errMsg):
                    self._unknown.add(partition)
                trouble = TransportError(f"{call.what}: {reply.errCode} {reply.errMsg}")
            else:
                end = end or error_for_code(reply.errCode, reply.errMsg, call.what)
        if end is not None:
            raise end
        return holders, trouble

    def _try_once(
        self,
        missing: dict[Partition, int | None],
        read_status: ReadStatus,
        waiting: ClaimConflict,
        timeout: float | None = None,
    ) -> TransportError | None:
        """One round for all of `missing`, from which the taken ones are removed. Takes partitions from predecessors, so
        that the next round has them. Gives what went wrong."""
        if self._stop_beating is None:
            self._stop_beating = HEARTBEAT.keep(self._beat)
        holders, trouble = self._try_to_take(missing, read_status, timeout)
        calls: list[ServerRequest] = []
        for partition, holder in holders.items():
            broker = self._broker(partition)
            where = f"{partition} at {broker}"
            if waiting.meet(where, holder, was_ours=bool(self.client_id(partition))):
                calls.append(self._calls().unregister(broker, partition, holder))
            if waiting.is_unsure(where):
                self._unsure.add(partition)
        for call, outcome in zip(calls, send_requests(self._session.settings, calls, timeout), strict=True):
            try:
                reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
            except TransportError as error:
                trouble = error
                continue
            if reply.errCode != ErrCode.SUCCESS and reaction_to(reply.errCode) is not Reaction.CLAIM_LOST:
                trouble = TransportError(f"{call.what}: {reply.errCode} {reply.errMsg}")
        return trouble

    @staticmethod
    def _gave_up(trouble: TransportError, partitions: Iterable[Partition], patience: float) -> TransportError:
        return TransportError(
            f"{trouble}; gave up after {patience:g} s. Check that the broker runs and can be reached from the driver",
            unserved=frozenset(partitions),
        )

    def _beat(self) -> None:
        with self._lock:
            held: dict[tuple[Broker, str], list[Partition]] = {}
            for partition, claim in self._claims.items():
                # Lent ones too, until a task takes them: then the broker tells us off, and no harm is done.
                if claim.client_id and claim.life.state in (ClaimState.HELD, ClaimState.LENT):
                    held.setdefault((self._broker(partition), claim.client_id), []).append(partition)
        calls = [self._calls().heartbeat(broker, name, partitions) for (broker, name), partitions in held.items()]
        outcomes = send_requests(self._session.settings, calls, timeout=min(3.0, self._session.settings.rpc_timeout))
        suspects: set[Partition] = set()
        for (broker, _), call, outcome in zip(held, calls, outcomes, strict=True):
            # Trouble with the broker is left to the next `ask`, which meets it too and knows what to do.
            with suppress(TubeMQError):
                reply = unwrap_reply(outcome, broker_pb.HeartBeatResponseB2C, call.what)
                for failure in reply.failureInfo:
                    _, topic, partition_id = parse_failure_info(failure)
                    suspects.add(Partition(broker.broker_id, topic, partition_id))
        with self._lock:
            self._suspects |= suspects

    def _calls(self) -> GroupRequests:
        return GroupRequests(self._session.settings, self._session.group, self._session.token)

    def _broker(self, partition: Partition) -> Broker:
        return self._session.broker(partition)

    def _new(self, partition: Partition) -> _Claim:
        return _Claim(Lifecycle(f"the driver's claim on {partition}", ClaimState.FREE, CLAIM))


def _registered(
    call: ServerRequest, outcome: Response | Failure | TransportError | ProtocolError
) -> broker_pb.RegisterResponseB2C:
    """The answer to a register that nobody but the network can make fail, for the partition is held."""
    reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
    if reply.errCode != ErrCode.SUCCESS:
        raise TransportError(f"{call.what}: {reply.errCode} {reply.errMsg}")
    return reply
