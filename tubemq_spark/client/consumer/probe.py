"""Looks at what stands at positions of partitions that the driver holds.

A look is a seek and a fetch for each position of a partition, and a seek back to where its group stands, all in one
write, so that the group stands elsewhere for a moment only. The partitions' looks go out together.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tubemq_spark.client.backoff import RetryBackoff
from tubemq_spark.client.cluster.master_client import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import READ_FILES
from tubemq_spark.protocol.consumer_lifecycle import not_found_kind
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.exact_range import NotFound
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_TOGETHER = 32  # partitions in one write: a fetch may bring a third of a megabyte, and all answers are kept
_FETCHES = (1, 4, 16)  # of one look and its repetitions, where other partitions' messages fill the store
_TRIES = 6  # of a look that finds nothing certain

Place = tuple[Partition, int]
Outcome = Response | Failure | TransportError | ProtocolError


class ProbeResult(NamedTuple):
    """What a look found: the seek led to `begin`, and `ids` are those of the partition's first messages from there on,
    one at the least, or none when it has none up to the end of the store. Without `to_the_end` it has none at `begin`
    itself, and nobody looked on."""

    begin: int
    ids: tuple[int, ...]
    to_the_end: bool = True

    @property
    def first(self) -> int | None:
        return self.ids[0] if self.ids else None


class _Passed(NamedTuple):
    """Other partitions' messages fill what was fetched from `begin` on. It `is_certain` that the cursor went on: an
    answer without messages may also have read nothing."""

    begin: int
    is_certain: bool


def probe_positions(
    session: ConsumerSession,
    claims: DriverClaims,
    wanted: Mapping[Partition, Collection[int]],
    only_there: Collection[Place] = frozenset(),
) -> dict[Place, ProbeResult]:
    """What stands at the positions (bytes of the index) of each partition; a place is missing when that cannot be told
    for now. Of the places in `only_there` it is enough to know that no message of the partition stands just there.

    `claims` must hold the partitions; one that was lost is taken again. Their groups stand where they stood when this
    returns, and usually when it raises, too: `TransportError` when a broker stays away, else as `DriverClaims.take`.
    """
    places = [(partition, position) for partition, positions in wanted.items() for position in sorted(set(positions))]
    seen: dict[Place, ProbeResult] = {}
    open_places = places
    stamina = RetryBackoff(session.settings.retry_for)
    for number in range(_TRIES):
        lost: set[Partition] = set()
        far: set[Place] = set()
        fetches = _FETCHES[min(number, len(_FETCHES) - 1)]
        for part in _parts(open_places):
            found, unclear, troubled = _Look(session, claims, part, fetches).take()
            seen |= found
            for place, passed in unclear.items():
                if passed.is_certain and place in only_there:
                    seen[place] = ProbeResult(passed.begin, (), to_the_end=False)
                else:
                    far.add(place)
            lost |= troubled
        if lost:
            claims.take({partition: claims.standing(partition).group for partition in lost})
        is_last = number >= len(_FETCHES) - 1
        open_places = [place for place in open_places if place not in seen and not (is_last and place in far)]
        if not open_places or ((lost or is_last) and not stamina.pause()):
            break
    for partition, position in [place for place in places if place not in seen]:
        _log.info("%s: what stands at %d cannot be told for now", partition, position)
    return seen


def stands_at(
    requests: GroupRequests,
    broker: Broker,
    partition: Partition,
    client_id: str,
    position: int,
    message_id: int,
    *,
    back_to: int,
) -> bool:
    """Return True if the message is one of the first two that `partition` has at `position` or behind it.

    `client_id` must hold the partition, and nothing of it may be in flight. The group is put `back_to` a position.
    Raise `TransportError` if the broker does not answer.
    """
    fetch = requests.fetch(broker, partition, client_id, escape=True)
    calls = [
        requests.register(broker, partition, client_id, position),
        *[fetch] * _FETCHES[1],
        requests.register(broker, partition, client_id, back_to),
    ]
    heard = list(zip(calls, send_requests(requests.settings, calls), strict=True))
    _registered(*heard[-1])
    seen = _seen(heard[:-1])
    return isinstance(seen, ProbeResult) and message_id in seen.ids


def flushed_ends(
    session: ConsumerSession, claims: DriverClaims, partitions: Collection[Partition]
) -> dict[Partition, int]:
    """Return where the files of each partition's store end, in bytes of the index. A crash of the broker loses nothing
    before that position. A partition is missing when its broker gives no answer.

    `claims` must hold the partitions. Their groups stand where they stood.
    """
    calls: list[ServerRequest] = []
    for partition in partitions:
        client_id = claims.client_id(partition)
        assert client_id is not None, f"{partition} is not held"
        broker, group = session.broker(partition), claims.standing(partition).group
        requests = GroupRequests(session.settings, session.group, session.token)
        calls.append(requests.register(broker, partition, client_id, group, policy=READ_FILES))
        calls.append(requests.register(broker, partition, client_id, group))
    outcomes = send_requests(session.settings, calls)
    ends: dict[Partition, int] = {}
    for number, partition in enumerate(partitions):
        try:
            ends[partition] = _registered(calls[2 * number], outcomes[2 * number]).maxOffset
        except TransportError as trouble:
            _log.info("%s", trouble)
    return ends


def _parts(places: Sequence[Place]) -> Iterable[dict[Partition, list[int]]]:
    """A few partitions each."""
    part: dict[Partition, list[int]] = {}
    for partition, position in places:
        if partition not in part and len(part) == _TOGETHER:
            yield part
            part = {}
        part.setdefault(partition, []).append(position)
    if part:
        yield part


class _Look:
    """One write for each broker."""

    def __init__(
        self, session: ConsumerSession, claims: DriverClaims, part: Mapping[Partition, Sequence[int]], fetches: int
    ) -> None:
        self._session = session
        self._claims = claims
        self._part = part
        self._fetches = fetches

    def take(self) -> tuple[dict[Place, ProbeResult], dict[Place, _Passed], set[Partition]]:
        """What was seen, the places behind which more has to be fetched, and the partitions whose claims have to be
        taken again."""
        calls = {partition: self._calls(partition, positions) for partition, positions in self._part.items()}
        outcomes = iter(send_requests(self._session.settings, [call for several in calls.values() for call in several]))
        found: dict[Place, ProbeResult] = {}
        far: dict[Place, _Passed] = {}
        lost: set[Partition] = set()
        for partition, positions in self._part.items():
            heard = [(call, next(outcomes)) for call in calls[partition]]
            try:
                _registered(*heard[-1])  # before anything else is judged: the group must be back
                for number, position in enumerate(positions):
                    begin = number * (1 + self._fetches)
                    seen = _seen(heard[begin : begin + 1 + self._fetches])
                    if isinstance(seen, ProbeResult):
                        found[partition, position] = seen
                    elif seen is not None:
                        far[partition, position] = seen
            except TransportError as trouble:
                _log.info("%s", trouble)
                self._claims.doubt(partition)
                lost.add(partition)
        return found, far, lost

    def _calls(self, partition: Partition, positions: Sequence[int]) -> list[ServerRequest]:
        client_id = self._claims.client_id(partition)
        assert client_id is not None, f"{partition} is not held"
        broker = self._session.broker(partition)
        calls = GroupRequests(self._session.settings, self._session.group, self._session.token)
        fetch = calls.fetch(broker, partition, client_id, escape=True)
        looks: list[ServerRequest] = []
        for position in positions:
            looks += [calls.register(broker, partition, client_id, position), *[fetch] * self._fetches]
        return [*looks, calls.register(broker, partition, client_id, self._claims.standing(partition).group)]


def _seen(heard: Sequence[tuple[ServerRequest, Outcome]]) -> ProbeResult | _Passed | None:
    """None when it may be clear a little later."""
    sought = _registered(*heard[0])
    begin = sought.currOffset
    if begin >= sought.maxOffset:
        return ProbeResult(begin, ())
    at: int | None = begin
    is_certain = False
    for call, outcome in heard[1:]:
        got = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, call.what)
        if got.errCode == ErrCode.SUCCESS and got.currOffset != (got.currOffset if at is None else at):
            return None  # the cursor was moved by something else
        at = None
        if got.errCode == ErrCode.SUCCESS:
            if got.messages:
                return ProbeResult(begin, tuple(message.messageId for message in got.messages[:2]))
        elif got.errCode != ErrCode.NOT_FOUND:
            return None
        elif (kind := not_found_kind(got.errMsg)) is not NotFound.PASSED:
            return ProbeResult(begin, ()) if kind is NotFound.END else None
        else:
            is_certain = True
    return _Passed(begin, is_certain)


def _registered(call: ServerRequest, outcome: Outcome) -> broker_pb.RegisterResponseB2C:
    reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, call.what)
    if reply.errCode != ErrCode.SUCCESS:
        raise TransportError(f"{call.what}: {reply.errCode} {reply.errMsg}")
    return reply
