"""Finds index positions by time, for partitions that the driver holds (see `protocol.time_search` for what it means).

A probe moves the group, reads a little in manual mode, and moves the group back, all in one write, so that the group
stands elsewhere for a moment only. The partitions' probes go out together. O(log n) probes find a position among n
entries, if the messages have times; stretches without are read once or twice, a few windows a probe.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple, cast

from tubemq_spark.client.cluster.master_client import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.errors import NoTimesError, ProtocolError, TransportError
from tubemq_spark.protocol.consumer_lifecycle import not_found_kind
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, reaction_to
from tubemq_spark.protocol.exact_range import NotFound
from tubemq_spark.protocol.fetched_batch import StoredMessage
from tubemq_spark.protocol.flow_rules import LONGEST_WAIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.time_search import Payload, Reply, Search, TimeSearch, time_in

_log = logging.getLogger(__name__)

_TOGETHER = 32  # probes in one write: a fetch may bring half a megabyte, and all answers are kept until they are heard
_LEAST_LIMIT_MS = 200  # what a broker wants at the least of those that it limits

Outcome = Response | Failure | TransportError | ProtocolError


class _ClaimLostError(Exception):
    """Trying again is of no use before the partition was claimed again."""


class _Refusal(NamedTuple):
    """Why a probe told nothing; `pause` is how many seconds a broker that limits the group wants it to wait, else 0."""

    text: str
    pause: float = 0.0


def find_positions(
    session: ConsumerSession,
    claims: DriverClaims,
    moments: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    zone: tzinfo,
) -> dict[Partition, int]:
    """For each partition of `moments` the position of its first message whose `$msgTime$`, a text in `zone`, is not
    earlier; the end of the store, as `claims` heard it last, when there is none.

    Moments are in microseconds since the epoch and rounded down to their minutes. Positions are bytes of the index;
    `earliest` tells where the stores begin. `claims` must hold the partitions; their groups stand where they stood when
    this returns, and usually when it raises, too.

    A group that the cluster limits (452) waits as long as it takes. Raises `TransportError` when a claim was lost, or
    when a broker stays away or refuses for longer than the settings' `retry_for`; `NoTimesError` when the messages
    seem to have no times; `ServerError` or another `TubeMQError` for a refusal that time does not heal.
    """

    def time_of(message: StoredMessage) -> int | None:
        return time_in(cast(Payload, message), zone)

    searches = {
        partition: TimeSearch(moment, earliest[partition], claims.standing(partition).end, time_of)
        for partition, moment in moments.items()
    }
    found = run_searches(session, claims, searches, "a time")
    untimed = [partition for partition, search in searches.items() if search.untimed and not search.has_times]
    if untimed:
        _log.warning(
            "no message of %s has a $msgTime$, so none is late enough: the end of the store stands for the time",
            ", ".join(map(str, untimed)),
        )
    return found


def run_searches(
    session: ConsumerSession, claims: DriverClaims, searches: Mapping[Partition, Search], what: str
) -> dict[Partition, int]:
    """What each of the searches finds; `what` they look for is said in errors. Otherwise as `find_positions`."""
    probing = _Probing(session, claims)
    stamina = Retries(_log, f"looking for {what} in group {session.group}", session.settings.retry_for)
    active = list(searches)
    refused: dict[Partition, _Refusal] = {}  # they wait until the others have come to their ends
    told: set[Partition] = set()
    while True:
        active = [partition for partition in active if searches[partition].position is None]
        if not active and not refused:
            break
        if not active:
            trouble = min(refused.values(), key=lambda refusal: refusal.pause)
            if trouble.pause:  # all are limited by the cluster's rules, which is no trouble
                stamina.progress()
            pause = max(refusal.pause for refusal in refused.values())
            if not (stamina.pause(pause) if trouble.pause else stamina.failed(trouble.text, pause)):
                raise TransportError(
                    f"{trouble.text}; gave up looking for {what} after {session.settings.retry_for:g} s. Check that "
                    "the broker runs, can be reached from the driver, and has the topic open for reading"
                )
            active, refused = list(refused), {}
        part, rest = active[:_TOGETHER], active[_TOGETHER:]
        missed = probing.probe({partition: searches[partition] for partition in part})
        for partition in part:
            if searches[partition].is_hopeless:
                raise NoTimesError(
                    f"{partition}: the search for {what} has read {searches[partition].untimed} messages from all over "
                    "the store, and none has a $msgTime$. Let the producers set it, or give positions instead, with "
                    "'startingOffsets' and 'endingOffsets'"
                )
        for partition, refusal in missed.items():
            first = partition not in told
            told.add(partition)
            _log.log(logging.WARNING if first and refusal.pause else logging.INFO, "%s; trying again", refusal.text)
        if len(missed) < len(part):
            stamina.progress()
        refused |= missed
        active = rest + [partition for partition in part if partition not in missed]
    return {partition: cast(int, search.position) for partition, search in searches.items()}


class _Probing:
    """Sends probes, and tells the searches what came of them."""

    def __init__(self, session: ConsumerSession, claims: DriverClaims) -> None:
        self._session = session
        self._claims = claims
        self._calls = GroupRequests(session.settings, session.group, session.token)

    def probe(self, searches: Mapping[Partition, Search]) -> dict[Partition, _Refusal]:
        """One probe each. The partitions for which that was of no use, and why."""
        probes = {partition: self._probe(partition, search) for partition, search in searches.items()}
        outcomes = iter(send_requests(self._session.settings, [call for calls in probes.values() for call in calls]))
        heard = {partition: [next(outcomes) for _ in calls] for partition, calls in probes.items()}
        refused: dict[Partition, _Refusal] = {}
        for partition, search in searches.items():
            try:
                refusal = self._hear(search, probes[partition], heard[partition])
            except _ClaimLostError as lost:
                raise TransportError(str(lost)) from None
            except TransportError as error:
                self._claims.doubt(partition)
                refusal = _Refusal(str(error))
            if refusal is not None:
                refused[partition] = refusal
        return refused

    def _probe(self, partition: Partition, search: Search) -> list[ServerRequest]:
        client_id = self._claims.client_id(partition)
        probe = search.next_probe()
        assert client_id is not None, f"{partition} is not held"
        assert probe is not None, f"{search!r} needs none"
        broker = self._session.broker(partition)
        return [
            self._calls.register(broker, partition, client_id, probe.position),
            *[self._calls.fetch(broker, partition, client_id)] * probe.fetches,
            self._calls.register(broker, partition, client_id, self._claims.standing(partition).group),
        ]

    def _hear(self, search: Search, calls: Sequence[ServerRequest], outcomes: Sequence[Outcome]) -> _Refusal | None:
        begin = _registered(calls[0], outcomes[0])
        back = _registered(calls[-1], outcomes[-1])  # before anything else is judged: the group must be back
        found: list[Reply | NotFound] = []
        refusal = _Refusal(f"{calls[1].what}: nothing new was found at {begin.currOffset}")
        for call, outcome in zip(calls[1:-1], outcomes[1:-1], strict=True):
            got = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, call.what)
            if got.errCode == ErrCode.SUCCESS:
                found.append(Reply(got.currOffset, got.messages))
                continue
            _check_claim(call, got.errCode, got.errMsg)
            kind = not_found_kind(got.errMsg) if got.errCode == ErrCode.NOT_FOUND else NotFound.WAIT
            if got.errCode != ErrCode.NOT_FOUND and reaction_to(got.errCode) not in (Reaction.RETRY, Reaction.WAIT):
                raise error_for_code(got.errCode, got.errMsg, call.what)
            found.append(kind)
            if kind is NotFound.WAIT:
                limited = got.errCode == ErrCode.SERVER_CONSUME_SPEED_LIMIT
                pause = min(max(_LEAST_LIMIT_MS, got.minLimitTime), LONGEST_WAIT) / 1000 if limited else 0.0
                asked = f", asked again after {pause:g} s" if limited else ""
                refusal = _Refusal(f"{call.what}: {got.errCode} {got.errMsg}{asked}", pause)
                break
        return None if search.found(begin.currOffset, found, back.maxOffset) else refusal


def _registered(call: ServerRequest, outcome: Outcome) -> broker_pb.RegisterResponseB2C:
    reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
    _check_claim(call, reply.errCode, reply.errMsg)
    if reply.errCode == ErrCode.SUCCESS:
        return reply
    if reaction_to(reply.errCode) is Reaction.RETRY:
        raise TransportError(f"{call.what}: {reply.errCode} {reply.errMsg}")
    raise error_for_code(reply.errCode, reply.errMsg, call.what)


def _check_claim(call: ServerRequest, code: int, message: str) -> None:
    if code == ErrCode.PARTITION_OCCUPIED or reaction_to(code) is Reaction.CLAIM_LOST:
        raise _ClaimLostError(f"{call.what}: the claim was lost ({code} {message})")
