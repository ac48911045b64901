# SPDX-License-Identifier: Apache-2.0
"""Probes: find out what stores have at single positions, and where they begin and end.

A probe is a seek and one fetch or a few, sent in one write by a `Visitor`. The probes of many partitions are sent
together. The user's group does not move.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tubemq_spark.client.consumer.broker_requests import Exchange, unwrap_seek
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import ServerRequest, unwrap_reply
from tubemq_spark.client.retries import Retries
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_EVERYTHING, READ_FILES
from tubemq_spark.protocol.errcode import ErrCode, NotFound, is_unknown_partition, not_found_kind
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_PARTITIONS_PER_WRITE = 32  # a reply may have half a megabyte, and all replies of one write are kept in memory
_FETCHES = (1, 4, 16)  # of each attempt: other partitions' messages may fill a fetch
_FETCHES_TO_PASS_A_REPLY = 4  # a read of memory may pass more entries than one of files

PartitionPosition = tuple[Partition, int]


class ProbeResult(NamedTuple):
    """The seek led to `begin`; `message_ids` are the ids of the partition's first messages from there on.

    No ids mean: the partition has no message from `begin` to the end of the store; where only the exact position was
    asked for, it may have some behind `begin`. `is_behind_end` means that the store ends at `begin` or before it.
    `is_exact` means that the first message surely stands at `begin`: all entries from there on are the partition's.
    """

    begin: int
    message_ids: tuple[int, ...]
    is_behind_end: bool = False
    is_exact: bool = False

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
    """Probes partitions by visits of `visitor`."""

    visitor: Visitor

    def probe(
        self,
        places: Iterable[PartitionPosition],
        only_exact: Collection[PartitionPosition] = frozenset(),
        optional: Collection[Partition] = frozenset(),
    ) -> dict[PartitionPosition, ProbeResult]:
        """Return what is stored at the positions (bytes of the index). A position is left out if its broker gives no
        clear answer for now. In `only_exact` it suffices to know whether the partition has a message exactly there.
        The broker may lack `optional` partitions; then it gives none about them.

        The answers of a partition are of one moment, or that of a later position is newer: so a message that comes
        meanwhile is not taken for one between two positions. Raises as `extents`.
        """
        wanted = missing = sorted(set(places))
        results: dict[PartitionPosition, ProbeResult] = {}
        retries = self._retries("probing stores")
        sizes = iter(_FETCHES)
        fetches = next(sizes)
        while missing:
            answers, problem = self._attempt(missing, fetches, optional)
            for place, answer in answers.items():
                if isinstance(answer, ProbeResult):
                    results[place] = answer
                elif answer.is_certain and place in only_exact:
                    results[place] = ProbeResult(answer.begin, ())
            missing = [place for place in missing if place not in results]
            if problem is not None:
                self._on_failed(retries, problem, {place[0] for place in missing if place not in answers})
            elif fetches < _FETCHES[-1]:
                fetches = next(sizes)
            else:
                missing = [place for place in missing if place not in answers]
                if missing and not retries.pause():
                    break
            first_missing = dict(reversed(missing))
            missing = [place for place in wanted if place[1] >= first_missing.get(place[0], place[1] + 1)]
            for place in missing:
                results.pop(place, None)
        if wanted:
            retries.progress()
        for partition, position in wanted:
            if (partition, position) not in results:
                _log.info("%s: the broker does not say for now what is stored at %d", partition, position)
        return results

    def have_messages(
        self, spans: Iterable[tuple[Partition, int, int]], optional: Collection[Partition] = frozenset()
    ) -> dict[Partition, bool]:
        """Return whether each partition has a message in its span, [begin, end): then its first message from the begin
        on is another one than from the end on. Both are asked for twice. The first answers may be of different moments:
        what came behind the end between them, or was removed by retention, looks like a difference, too.

        A partition is left out if its broker gives no clear answer. Raises as `extents`.
        """
        wanted = list(spans)
        found = self.probe(((one, at) for one, *span in wanted for at in span), optional=optional)
        clear = [((one, begin), (one, end)) for one, begin, end in wanted if {(one, begin), (one, end)} <= found.keys()]
        differ = [places for places in clear if found[places[0]].first_id not in (None, found[places[1]].first_id)]
        has_message = {begin[0]: False for begin, _ in set(clear).difference(differ)}
        again = self.probe((place for places in differ for place in places), optional=optional)
        for begin, end in differ:
            if begin in again and end in again:
                first = found[begin]
                has_message[begin[0]] = again[begin].begins_as(first) and again[end].first_id != first.first_id
        return has_message

    def proven(self, places: Iterable[PartitionPosition]) -> Iterator[PartitionPosition]:
        """Yield those of the places at which the partition surely has a message, however many entries of others follow.

        One fetch more shows where the reply with this message ended. Fetches from behind the position that pass this
        end without a message prove that the message stands at the position.
        """
        for partition, position in places:
            fetch = self.visitor.fetch(partition, escape=True)
            seeks = self.visitor.seek(partition, position), self.visitor.seek(partition, position + UNIT)
            requests = [seeks[0], fetch, fetch, seeks[1], *[fetch] * _FETCHES_TO_PASS_A_REPLY]
            try:
                if _stands_at(position, self.visitor.exchange({partition: requests})[partition]):
                    yield partition, position
            except TransportError as error:
                self.visitor.failed(partition, error)
            except (ConfigError, ServerError) as error:
                _log.info("%s", error)

    def extents(self, partitions: Iterable[Partition], policy: int = READ_EVERYTHING) -> dict[Partition, Extent]:
        """Return where the store of each partition begins and ends. One partition of each store is asked.

        Raise `TransportError` with the `unserved` partitions if a broker does not answer for longer than the settings'
        `retry_for`; `AuthError`, `ConfigError` or `ServerError` for a permanent refusal.
        """
        wanted = list(partitions)
        missing = {partition.store: partition for partition in wanted}
        found: dict[Store, Extent] = {}
        retries = self._retries("asking for the ends of stores")
        while missing:
            problem: TransportError | None = None
            requests = {partition: [self.visitor.seek(partition, 0, policy)] for partition in missing.values()}
            for partition, (exchange,) in self.visitor.exchange(requests).items():
                try:
                    reply = unwrap_seek(exchange)
                except TransportError as error:
                    self.visitor.failed(partition, error)
                    problem = error
                else:
                    found[partition.store] = Extent(reply.currOffset, reply.maxOffset)
                    del missing[partition.store]
            if problem is not None:
                self._on_failed(retries, problem, [one for one in wanted if one.store in missing])
        if wanted:
            retries.progress()
        return {partition: found[partition.store] for partition in wanted}

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
        grown: set[Store] = set()
        for batch in write_batches(list(places)):
            left = {partition: places[partition] for partition in batch if partition.store not in grown}
            for partition, at, reply in fetch_once(self.visitor, left):
                if at.maxOffset != ends[partition.store]:
                    grown.add(partition.store)
                elif at.currOffset == places[partition] and reply.errCode == ErrCode.NOT_FOUND:
                    counts[partition] = 0
                elif reply.errCode == ErrCode.SUCCESS and at.currOffset == reply.currOffset == places[partition]:
                    counts[partition] = len(reply.messages)
        extents = self.extents(counts)
        return {one: count for one, count in counts.items() if extents[one].end == ends[one.store]}

    def _retries(self, what: str) -> Retries:
        settings = self.visitor.settings
        return Retries(settings.retry_for, settings.clock, f"{what} in group {self.visitor.group}", _log)

    def _on_failed(self, retries: Retries, problem: TransportError, unserved: Collection[Partition]) -> None:
        """Pause before the next attempt, or raise `TransportError`."""
        if not retries.failed(f"{problem}; {len(unserved)} partitions are missing"):
            raise TransportError(
                f"{problem}; gave up after {self.visitor.settings.retry_for:g} s. Check that the broker runs and can "
                "be reached from this machine",
                unserved=frozenset(unserved),
            )

    def _attempt(
        self, places: Iterable[PartitionPosition], fetches: int, optional: Collection[Partition]
    ) -> tuple[dict[PartitionPosition, ProbeResult | _OthersOnly], TransportError | None]:
        """Return the clear answers, and an error if a broker did not answer."""
        by_partition: dict[Partition, list[int]] = {}
        for partition, position in places:
            by_partition.setdefault(partition, []).append(position)
        answers: dict[PartitionPosition, ProbeResult | _OthersOnly] = {}
        problem: TransportError | None = None
        for batch in write_batches(list(by_partition)):
            requests: dict[Partition, list[ServerRequest]] = {}
            for partition in batch:
                fetch = self.visitor.fetch(partition, escape=True)
                probes = [(self.visitor.seek(partition, at), *[fetch] * fetches) for at in by_partition[partition]]
                requests[partition] = [one for probe in probes for one in probe]
            for partition, exchanges in self.visitor.exchange(requests).items():
                try:
                    for number, position in enumerate(by_partition[partition]):
                        first = number * (1 + fetches)
                        answer = _answer(exchanges[first : first + 1 + fetches])
                        if answer is not None:
                            answers[partition, position] = answer
                except TransportError as error:
                    if partition in optional and is_unknown_partition(str(error)):
                        answers |= {(partition, at): _OthersOnly(at, False) for at in by_partition[partition]}
                    else:
                        self.visitor.failed(partition, error)
                        problem = error
        return answers, problem


def write_batches(partitions: Sequence[Partition]) -> list[Sequence[Partition]]:
    """Divide `partitions` into batches whose replies may be kept in memory together."""
    size = _PARTITIONS_PER_WRITE
    return [partitions[first : first + size] for first in range(0, len(partitions), size)]


def fetch_once(
    visitor: Visitor, places: Mapping[Partition, int]
) -> Iterator[tuple[Partition, broker_pb.RegisterResponseB2C, broker_pb.GetMessageResponseB2C]]:
    """Yield the replies to a seek and one fetch of each partition, but of those whose brokers do not answer."""
    requests = {one: [visitor.seek(one, at), visitor.fetch(one, escape=True)] for one, at in places.items()}
    for partition, (seek, (request, outcome)) in visitor.exchange(requests).items():
        try:
            sought = unwrap_seek(seek)
            fetched = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
        except TransportError as error:
            visitor.failed(partition, error)
        else:
            yield partition, sought, fetched


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
                return ProbeResult(begin, ids, is_exact=is_exact)
        elif reply.errCode != ErrCode.NOT_FOUND:
            return None
        elif (kind := not_found_kind(reply.errMsg)) is not NotFound.PASSED:
            # The store does not end at `begin`, so an end that the first fetch meets is that of a moved cursor.
            return ProbeResult(begin, ()) if kind is NotFound.END and not is_first else None
        else:
            is_certain = True
        is_first = False
    return _OthersOnly(begin, is_certain)
