# SPDX-License-Identifier: Apache-2.0
"""Probes: reads or counts the first messages at single positions of partitions that the driver holds.

A probe is a seek (a register at the position), one fetch or a few, and a seek back to the group's position. All of them
go out in one write, so the group is elsewhere only for a moment. The probes of many partitions are sent together.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import Exchange, GroupRequests, unwrap_seek
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.retries import RetryBackoff
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import READ_EVERYTHING, READ_FILES
from tubemq_spark.protocol.errcode import ErrCode, NotFound, not_found_kind
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_PARTITIONS_PER_WRITE = 32  # a reply may have half a megabyte, and all replies of one write are kept in memory
_FETCHES = (1, 4, 16, 16, 16, 16)  # of each attempt: other partitions' messages may fill a fetch

PartitionPosition = tuple[Partition, int]


class ProbeResult(NamedTuple):
    """The seek led to `begin`; `message_ids` are the ids of the partition's first messages from there on.

    No ids mean: the partition has no message from `begin` to the end of the store. Where `is_conclusive` is False they
    only mean that it has none exactly at `begin`; the probe did not read further.
    """

    begin: int
    message_ids: tuple[int, ...]
    is_conclusive: bool = True

    @property
    def first_id(self) -> int | None:
        return self.message_ids[0] if self.message_ids else None


class _OthersOnly(NamedTuple):
    """The fetches from `begin` on passed over other partitions' messages only."""

    begin: int
    is_certain: bool  # the cursor advanced; a reply without messages may also have read nothing


class MessageCount(NamedTuple):
    """One fetch returned so many `messages`; the store ended at `end` afterwards."""

    messages: int
    end: int


@dataclass(frozen=True)
class Prober:
    """Probes partitions that `claims` holds. The groups' positions do not change."""

    session: ConsumerSession
    claims: DriverClaims

    def probe(
        self, places: Iterable[PartitionPosition], only_exact: Collection[PartitionPosition] = frozenset()
    ) -> dict[PartitionPosition, ProbeResult]:
        """Return what is stored at the positions (bytes of the index). A position is left out if its broker gives no
        clear answer for now. In `only_exact` it suffices to know whether the partition has a message exactly there.

        A claim that was lost is taken again. Raise `TransportError` if a broker does not come back, else as
        `DriverClaims.take`; even then the groups usually are where they were.
        """
        wanted = missing = sorted(set(places))
        results: dict[PartitionPosition, ProbeResult] = {}
        backoff = RetryBackoff(self.session.settings.retry_for, clock=self.session.settings.clock)
        for fetches in _FETCHES:
            answers, lost = self._attempt(missing, fetches)
            if lost:
                self.claim_again(lost)
            for place, answer in answers.items():
                if isinstance(answer, ProbeResult):
                    results[place] = answer
                elif answer.is_certain and place in only_exact:
                    results[place] = ProbeResult(answer.begin, (), is_conclusive=False)
            is_last_size = fetches == _FETCHES[-1]
            missing = [place for place in missing if place not in results and not (is_last_size and place in answers)]
            if not missing or ((lost or is_last_size) and not backoff.pause()):
                break
        for partition, position in wanted:
            if (partition, position) not in results:
                _log.info("%s: the broker does not tell for now what is stored at %d", partition, position)
        return results

    def claim_again(self, partitions: Iterable[Partition]) -> None:
        """Claim partitions that are lost, or may be, at their groups' positions."""
        self.claims.take({partition: self.claims.position(partition).group for partition in partitions})

    def flushed_ends(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return where the files of each partition's store end, in bytes of the index. A crash of the broker loses
        nothing before that position. Partitions whose brokers do not answer are left out.
        """
        groups = {partition: self.claims.position(partition).group for partition in partitions}
        requests = {one: [self.seek(one, group, READ_FILES), self.seek_back(one)] for one, group in groups.items()}
        ends: dict[Partition, int] = {}
        for partition, exchanges in self.exchange(requests).items():
            try:
                ends[partition] = unwrap_seek(exchanges[0]).maxOffset
            except TransportError as error:
                _log.info("%s", error)
        return ends

    def count_messages(self, partitions: Sequence[Partition]) -> dict[Partition, MessageCount]:
        """Return how many messages one fetch from the group's position finds in each partition.

        The cursor is there already, so a roll-back behind the fetch suffices. A partition is left out if its broker
        gives an unusual answer (`DriverClaims.refresh` handles that), or if its store has more messages by now than the
        claims know of.
        """
        counts: dict[Partition, MessageCount] = {}
        roll_back, place = self.claims.requests.roll_back, self.claims.place
        for batch in write_batches(partitions):
            grown = {one.store for one, count in counts.items() if count.end != self.claims.position(one).end}
            requests = {
                partition: [self.fetch(partition, escape=True), roll_back(*place(partition))]
                for partition in batch
                if partition.store not in grown
            }
            for partition, exchanges in self.exchange(requests).items():
                try:
                    count = _count(exchanges, self.claims.position(partition).group)
                except TransportError as error:
                    _log.info("%s", error)
                    self.claims.mark_doubtful(partition)  # the fetch may still be running
                    continue
                if count is not None:
                    counts[partition] = count
        return counts

    # Requests for partitions that are held; the time search sends them too

    def seek(self, partition: Partition, position: int, policy: int = READ_EVERYTHING) -> ServerRequest:
        return self.claims.requests.register(*self.claims.place(partition), position, policy=policy)

    def seek_back(self, partition: Partition) -> ServerRequest:
        """Return a seek to the group's position, which must be the last request of each probe."""
        return self.seek(partition, self.claims.position(partition).group)

    def fetch(self, partition: Partition, *, escape: bool) -> ServerRequest:
        """Return a fetch from the cursor; with `escape` the broker does not count it against the group's rate limit."""
        return self.claims.requests.fetch(*self.claims.place(partition), escape=escape)

    def exchange(self, requests: Mapping[Partition, Sequence[ServerRequest]]) -> dict[Partition, list[Exchange]]:
        """Send all requests in one write for each broker; return each of them with its outcome."""
        outcomes = iter(send_requests(self.session.settings, [one for several in requests.values() for one in several]))
        return {partition: [(one, next(outcomes)) for one in several] for partition, several in requests.items()}

    def _attempt(
        self, places: Iterable[PartitionPosition], fetches: int
    ) -> tuple[dict[PartitionPosition, ProbeResult | _OthersOnly], set[Partition]]:
        """Return the clear answers, and the partitions that have to be claimed again."""
        by_partition: dict[Partition, list[int]] = {}
        for partition, position in places:
            by_partition.setdefault(partition, []).append(position)
        answers: dict[PartitionPosition, ProbeResult | _OthersOnly] = {}
        lost: set[Partition] = set()
        for batch in write_batches(list(by_partition)):
            requests: dict[Partition, list[ServerRequest]] = {}
            for partition in batch:
                fetch = self.fetch(partition, escape=True)
                probes = [(self.seek(partition, at), *[fetch] * fetches) for at in by_partition[partition]]
                requests[partition] = [*(one for probe in probes for one in probe), self.seek_back(partition)]
            for partition, exchanges in self.exchange(requests).items():
                try:
                    unwrap_seek(exchanges[-1])  # before the replies are judged, because the group must be back
                    for number, position in enumerate(by_partition[partition]):
                        first = number * (1 + fetches)
                        answer = _answer(exchanges[first : first + 1 + fetches])
                        if answer is not None:
                            answers[partition, position] = answer
                except TransportError as error:
                    _log.info("%s", error)
                    self.claims.mark_doubtful(partition)
                    lost.add(partition)
        return answers, lost


def has_message_at(
    requests: GroupRequests, held: tuple[Broker, Partition, str], position: int, message_id: int, *, back_to: int
) -> bool:
    """Return True if the message is one of the first two that `partition` has at `position` or behind it.

    This is a probe for a task, which has its own claim: the client id in `held` must hold the partition, and no request
    of it may be in flight. The group's position is `back_to` afterwards. Raise `TransportError` if the broker does not
    answer.
    """
    sent = [
        requests.register(*held, position),
        *[requests.fetch(*held, escape=True)] * _FETCHES[1],
        requests.register(*held, back_to),
    ]
    exchanges = list(zip(sent, send_requests(requests.settings, sent), strict=True))
    unwrap_seek(exchanges[-1])
    answer = _answer(exchanges[:-1])
    return isinstance(answer, ProbeResult) and message_id in answer.message_ids


def write_batches(partitions: Sequence[Partition]) -> list[Sequence[Partition]]:
    """Divide `partitions` into batches whose replies may be kept in memory together."""
    size = _PARTITIONS_PER_WRITE
    return [partitions[first : first + size] for first in range(0, len(partitions), size)]


def _answer(exchanges: Sequence[Exchange]) -> ProbeResult | _OthersOnly | None:
    """Return what a seek and the fetches behind it found, None if an attempt a little later may find more."""
    seek = unwrap_seek(exchanges[0])
    begin = seek.currOffset
    if begin >= seek.maxOffset:
        return ProbeResult(begin, ())
    is_first = True
    is_certain = False
    for request, outcome in exchanges[1:]:
        reply = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
        if reply.errCode == ErrCode.SUCCESS:
            if is_first and reply.currOffset != begin:
                return None  # another client moved the cursor
            if reply.messages:
                return ProbeResult(begin, tuple(message.messageId for message in reply.messages[:2]))
        elif reply.errCode != ErrCode.NOT_FOUND:
            return None
        elif (kind := not_found_kind(reply.errMsg)) is not NotFound.PASSED:
            return ProbeResult(begin, ()) if kind is NotFound.END else None
        else:
            is_certain = True
        is_first = False
    return _OthersOnly(begin, is_certain)


def _count(exchanges: Sequence[Exchange], group: int) -> MessageCount | None:
    """Return None if the fetch did not begin at the group's position, or read nothing."""
    (fetched, fetch_outcome), (rolled_back, outcome) = exchanges
    fetch = unwrap_reply(fetch_outcome, broker_pb.GetMessageResponseB2C, fetched.what)
    back = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, rolled_back.what)
    if back.errCode != ErrCode.SUCCESS:
        return None
    if fetch.errCode == ErrCode.NOT_FOUND:
        return MessageCount(0, back.maxOffset)
    if fetch.errCode == ErrCode.SUCCESS and fetch.currOffset == group:
        return MessageCount(len(fetch.messages), back.maxOffset)
    return None
