# SPDX-License-Identifier: Apache-2.0
"""Probes: find out what stores have at single positions, and where they begin and end.

A probe is a seek and one fetch or a few, sent in one write by a `Visitor`. What is asked one partition is a
conversation; `Prober` holds those with many partitions together. The user's group does not move.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from tubemq_spark.client.consumer.broker_requests import Exchange, unwrap_seek
from tubemq_spark.client.consumer.conversations import Begin, Conversation, Wait, hold
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_EVERYTHING, READ_FILES
from tubemq_spark.protocol.errcode import ErrCode, NotFound, is_unknown_partition, not_found_kind
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_FETCHES = (1, 4, 16)  # of each attempt: other partitions' messages may fill a fetch
_FETCHES_TO_PASS_A_REPLY = 4  # a read of memory may pass more entries than one of files

PartitionPosition = tuple[Partition, int]
SeekAndFetch = tuple[broker_pb.RegisterResponseB2C, broker_pb.GetMessageResponseB2C]
T = TypeVar("T")


class ProbeResult(NamedTuple):
    """The seek led to `begin`; `message_ids` are the ids of the partition's first messages from there on.

    No ids mean: the partition has no message from `begin` to the end of the store; where only the exact position was
    asked for, it may have some behind `begin`. `is_behind_end` means that the store ends at `begin` or before it.
    `is_exact` means that the first message surely stands at `begin`: all entries from there on are the partition's.
    `is_later` means that it surely stands behind `begin`: a reply without a message came before it.
    """

    begin: int
    message_ids: tuple[int, ...]
    is_behind_end: bool = False
    is_exact: bool = False
    is_later: bool = False

    @property
    def first_id(self) -> int | None:
        return self.message_ids[0] if self.message_ids else None

    def begins_as(self, other: ProbeResult) -> bool:
        """Return True if retention removed nothing of what `other` found first."""
        return (self.begin, self.first_id) == (other.begin, other.first_id)


class _OthersOnly(NamedTuple):
    """The fetches from `begin` on passed over other partitions' messages only."""

    begin: int
    is_certain: bool  # the cursor advanced; one reply without messages may also have read nothing


class Extent(NamedTuple):
    """Where a store begins and ends, in bytes of the index."""

    begin: int
    end: int


@dataclass(frozen=True)
class Prober:
    """Probes partitions by visits of `visitor`, many at once."""

    visitor: Visitor

    def probe(
        self,
        places: Iterable[PartitionPosition],
        only_exact: Collection[PartitionPosition] = frozenset(),
        optional: Collection[Partition] = frozenset(),
    ) -> dict[PartitionPosition, ProbeResult]:
        """Return what is stored at the positions (bytes of the index), as `probing` finds it. Raises as `extents`."""
        wanted = _by_partition(places)
        exact = {one: {at for at in positions if (one, at) in only_exact} for one, positions in wanted.items()}
        found = self._hold(
            "probing stores",
            {
                one: partial(probing, self.visitor, one, positions, exact[one], is_optional=one in optional)
                for one, positions in wanted.items()
            },
        )
        for partition, positions in wanted.items():
            for position in positions:
                if position not in found[partition]:
                    _log.info("%s: the broker does not say for now what is stored at %d", partition, position)
        return {(one, at): result for one, results in found.items() for at, result in results.items()}

    def have_messages(
        self, spans: Iterable[tuple[Partition, int, int]], optional: Collection[Partition] = frozenset()
    ) -> dict[Partition, bool]:
        """Return whether each partition has a message in its span, [begin, end).

        A partition is left out if its broker gives no clear answer. Raises as `extents`.
        """
        found = self._hold(
            "looking for messages",
            {
                one: partial(looking_between, self.visitor, one, begin, end, is_optional=one in optional)
                for one, begin, end in spans
            },
        )
        return {one: answer for one, answer in found.items() if answer is not None}

    def messages_at(
        self, places: Mapping[Partition, int], optional: Collection[Partition] = frozenset()
    ) -> dict[Partition, int | None]:
        """Return the id of each partition's message at its position, None if it has none there. Raise `TransportError`
        also if a broker gives no clear answer for the settings' `retry_for`, else as `extents`."""
        return self._hold(
            "looking for messages",
            {
                one: partial(looking_at, self.visitor, one, position, is_optional=one in optional)
                for one, position in places.items()
            },
        )

    def proven(self, places: Iterable[PartitionPosition]) -> set[PartitionPosition]:
        """Return those of the places at which the partition surely has a message, however many entries of others
        follow. Raises as `extents`."""
        wanted = _by_partition(places)
        found = self._hold(
            "proving owners of messages",
            {one: partial(proving, self.visitor, one, positions) for one, positions in wanted.items()},
        )
        return {(one, position) for one, positions in found.items() for position in positions}

    def extents(self, partitions: Iterable[Partition], policy: int = READ_EVERYTHING) -> dict[Partition, Extent]:
        """Return where the store of each partition begins and ends. One partition of each store is asked.

        Raise `TransportError` with the `unserved` partitions if a broker does not answer for longer than the settings'
        `retry_for`; `AuthError`, `ConfigError` or `ServerError` for a permanent refusal.
        """
        wanted = list(partitions)
        asked = {partition.store: partition for partition in wanted}
        try:
            found = self._hold(
                "asking for the ends of stores",
                {one: partial(asking_extent, self.visitor, one, policy) for one in asked.values()},
                at_once=len(asked),  # the replies are short
            )
        except TransportError as error:
            error.unserved, error.unknown = (
                frozenset(one for one in wanted if asked[one.store] in partitions)
                for partitions in (error.unserved, error.unknown)
            )
            raise
        return {partition: found[asked[partition.store]] for partition in wanted}

    def flushed_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return where the files of each partition's store end, in bytes of the index. A crash of the broker loses
        nothing before that position. Raises as `extents`.
        """
        return {partition: extent.end for partition, extent in self.extents(partitions, READ_FILES).items()}

    def count_messages(self, places: Mapping[Partition, int], ends: Mapping[Store, int]) -> dict[Partition, int]:
        """Return how many messages one fetch from its position finds in each partition.

        A partition is left out if its broker gives an unusual answer, or if its store does not end at `ends` after all
        fetches.
        """
        counts: dict[Partition, int] = {}
        for partition, (at, reply) in self.fetch_once(places).items():
            if at.maxOffset == ends[partition.store] and at.currOffset == places[partition]:
                if reply.errCode == ErrCode.NOT_FOUND:
                    counts[partition] = 0
                elif reply.errCode == ErrCode.SUCCESS and reply.currOffset == places[partition]:
                    counts[partition] = len(reply.messages)
        extents = self.extents(counts)
        return {one: count for one, count in counts.items() if extents[one].end == ends[one.store]}

    def fetch_once(self, places: Mapping[Partition, int]) -> dict[Partition, SeekAndFetch]:
        """Return the replies to a seek and one fetch of each partition, but of those whose brokers do not answer. Raise
        `AuthError`, `ConfigError` or `ServerError` for a permanent refusal."""
        found = self._hold(
            "fetching once", {one: partial(fetching, self.visitor, one, at) for one, at in places.items()}
        )
        return {one: replies for one, replies in found.items() if replies is not None}

    def _hold(
        self, what: str, conversations: Mapping[Partition, Begin[T]], at_once: int | None = None
    ) -> dict[Partition, T]:
        return hold(self.visitor, conversations, f"{what} in group {self.visitor.group}", at_once=at_once)


def asking_extent(visitor: Visitor, partition: Partition, policy: int) -> Conversation[Extent]:
    (seek,) = yield [visitor.seek(partition, 0, policy)]
    reply = unwrap_seek(seek)
    return Extent(reply.currOffset, reply.maxOffset)


def probing(
    visitor: Visitor,
    partition: Partition,
    positions: Sequence[int],
    only_exact: Collection[int] = (),
    *,
    is_optional: bool = False,
) -> Conversation[dict[int, ProbeResult]]:
    """Return what is stored at the positions, which ascend. One is left out if the broker gives no clear answer for
    now. At `only_exact` it suffices to know whether the partition has a message exactly there. The broker may lack
    a partition that `is_optional`; then it gives none.

    The answers are of one moment, or that of a later position is newer: so a message that comes meanwhile is not taken
    for one between two positions.
    """
    results: dict[int, ProbeResult] = {}
    fetch = visitor.fetch(partition, escape=True)
    sizes = iter(_FETCHES)
    fetches = next(sizes)
    missing = list(positions)
    while missing:
        exchanges = yield [one for at in missing for one in (visitor.seek(partition, at), *[fetch] * fetches)]
        try:
            answers = {
                at: _answer(exchanges[number * (1 + fetches) : (number + 1) * (1 + fetches)])
                for number, at in enumerate(missing)
            }
        except TransportError as error:
            if is_optional and is_unknown_partition(str(error)):
                break
            raise
        for at, answer in answers.items():
            if isinstance(answer, ProbeResult):
                results[at] = answer
            elif answer is not None and answer.is_certain and at in only_exact:
                results[at] = ProbeResult(answer.begin, ())
        missing = [at for at in missing if at not in results]
        if fetches < _FETCHES[-1]:
            fetches = next(sizes)
        else:  # to ask again helps only where another client moved the cursor
            missing = [at for at in missing if answers[at] is None]
            if missing and not (yield Wait(f"{partition}: no clear answer about {missing[0]}")):
                break
        if missing:
            missing = [at for at in positions if at >= missing[0]]
            for at in missing:
                results.pop(at, None)
    return results


def looking_between(
    visitor: Visitor, partition: Partition, begin: int, end: int, *, is_optional: bool = False
) -> Conversation[bool | None]:
    """Return whether the partition has a message in [begin, end): then its first message from the begin on is another
    one than from the end on. None without a clear answer.

    Both are asked for twice. The first answers may be of different moments: what came behind the end between them, or
    was removed by retention, looks like a difference, too.
    """
    found = yield from probing(visitor, partition, [begin, end], is_optional=is_optional)
    if not {begin, end} <= found.keys():
        return None
    if found[begin].first_id in (None, found[end].first_id):
        return False
    again = yield from probing(visitor, partition, [begin, end], is_optional=is_optional)
    if not {begin, end} <= again.keys():
        return None
    return again[begin].begins_as(found[begin]) and again[end].first_id != found[begin].first_id


def looking_at(
    visitor: Visitor, partition: Partition, position: int, *, is_optional: bool = False
) -> Conversation[int | None]:
    """Return the id of the message at the position, None if the partition has none there, or `is_optional` and gives no
    clear answer. Else raise `TransportError` then."""
    places = [position, position + UNIT]
    found = yield from probing(visitor, partition, places, {position}, is_optional=is_optional)
    if position in found:
        first = found[position]
        if first.first_id is None or first.begin != position:
            return None
        if position + UNIT in found and found[position + UNIT].first_id == first.first_id:
            return None
        # These answers may be of different moments, see `looking_between`.
        again = yield from probing(visitor, partition, places, {position}, is_optional=is_optional)
        if position in again:
            if not again[position].begins_as(first):
                return None
            if position + UNIT in again:
                return None if again[position + UNIT].first_id == first.first_id else first.first_id
            if (yield from proving(visitor, partition, [position])):
                return first.first_id
    if is_optional:
        return None
    raise TransportError(f"the brokers do not say for now whether {partition} has a message at {position}")


def proving(visitor: Visitor, partition: Partition, positions: Iterable[int]) -> Conversation[list[int]]:
    """Return those of the positions at which the message surely stands that the first fetch from there on finds.

    One fetch more shows where the reply with this message ended. Fetches from behind the position that pass this end
    without a message prove that the message stands at the position.
    """
    proven: list[int] = []
    fetch = visitor.fetch(partition, escape=True)
    for position in positions:
        seeks = visitor.seek(partition, position), visitor.seek(partition, position + UNIT)
        exchanges = yield [seeks[0], fetch, fetch, seeks[1], *[fetch] * _FETCHES_TO_PASS_A_REPLY]
        try:
            if _stands_at(position, exchanges):
                proven.append(position)
        except (ConfigError, ServerError) as error:
            _log.info("%s", error)
    return proven


def fetching(visitor: Visitor, partition: Partition, position: int) -> Conversation[SeekAndFetch | None]:
    """Return the replies to a seek and one fetch, None if the broker does not answer."""
    seek, (request, outcome) = yield [visitor.seek(partition, position), visitor.fetch(partition, escape=True)]
    try:
        return unwrap_seek(seek), unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
    except TransportError as error:
        visitor.failed(partition, error)
        return None


def _by_partition(places: Iterable[PartitionPosition]) -> dict[Partition, list[int]]:
    found: dict[Partition, list[int]] = {}
    for partition, position in sorted(set(places)):
        found.setdefault(partition, []).append(position)
    return found


def _stands_at(position: int, exchanges: Sequence[Exchange]) -> bool:
    """Return whether the message that the first fetch found surely stands at `position`, see `Prober.proven`."""
    sought, behind = unwrap_seek(exchanges[0]), unwrap_seek(exchanges[3])
    replies = [
        unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
        for request, outcome in (*exchanges[1:3], *exchanges[4:])
    ]
    found, next_one, *later = replies
    if not (sought.currOffset == position and behind.currOffset == position + UNIT and found.currOffset == position):
        return False
    if not found.messages or next_one.errCode != ErrCode.SUCCESS:
        return False
    begin = position + UNIT  # of the next fetch; -1 if unknown
    for reply in later:
        if reply.errCode == ErrCode.NOT_FOUND and not_found_kind(reply.errMsg) is NotFound.PASSED:
            begin = -1
            continue
        if reply.errCode != ErrCode.SUCCESS or begin not in (-1, reply.currOffset):
            return False
        if reply.currOffset >= next_one.currOffset:
            return True
        if reply.messages:
            return reply.messages[0].messageId != found.messages[0].messageId
        begin = -1
    return False


def _answer(exchanges: Sequence[Exchange]) -> ProbeResult | _OthersOnly | None:
    """Return what a seek and the fetches behind it found, None if an attempt a little later may find more."""
    seek = unwrap_seek(exchanges[0])
    begin = seek.currOffset
    if begin >= seek.maxOffset:
        return ProbeResult(begin, (), is_behind_end=True)
    is_first = True
    is_certain = False
    for request, outcome in exchanges[1:]:
        reply = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
        if reply.errCode == ErrCode.SUCCESS:
            if is_first and reply.currOffset != begin:
                return None  # another client moved the cursor
            is_certain = is_certain or reply.currOffset > begin
            if reply.messages:
                is_exact = is_first and len(reply.messages) * UNIT == reply.maxOffset - begin
                ids = tuple(message.messageId for message in reply.messages[:2])
                return ProbeResult(begin, ids, is_exact=is_exact, is_later=reply.currOffset > begin)
        elif reply.errCode != ErrCode.NOT_FOUND:
            return None
        elif (kind := not_found_kind(reply.errMsg)) is not NotFound.PASSED:
            # The store does not end at `begin`, so an end that the first fetch meets is that of a moved cursor.
            return ProbeResult(begin, ()) if kind is NotFound.END and not is_first else None
        else:
            is_certain = True
        is_first = False
    return _OthersOnly(begin, is_certain)
