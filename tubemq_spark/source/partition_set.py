# SPDX-License-Identifier: Apache-2.0
"""Partition set: what a run of a streaming query knows about its partitions, and which of them are gone.

It moves the group at the brokers, because how far a partition is committed is known here."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.unknown_topics import READ_ADVICE, UnknownTopicError
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.errors import ConfigError, DataLossError, TransportError
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.options import SourceOptions

_log = logging.getLogger(__name__)

_HIDDEN_PARTITION_POLL = 0.5  # seconds; between two requests while a partition is missing in the lists
_MASTER_RESTART = 10.0  # seconds; for an answer of the masters when brokers have taken the time for retries
_NEW_MASTER_LISTS_FILL_UP = 20.0  # seconds; a new master needs up to 13 s to list all topics (measured)


@dataclass(slots=True)
class PartitionState:
    """What a run knows about one partition. Positions are bytes of the index, 28 a message."""

    is_gone: bool = False  # the cluster has it no more and the loss was reported, or the options do not name it
    committed: int | None = None  # up to where Spark is known to have committed
    accepted_loss: DataLossError | None = None  # of a lost tail; the next batch ends where the store goes on

    def stored(self, committed: int) -> int:
        """Return the `committed` position, or where the store goes on if it lost its tail before that."""
        if self.accepted_loss is not None and committed == self.accepted_loss.asked:
            return self.accepted_loss.offered  # Spark passes the position once more after its loss was accepted
        self.accepted_loss = None  # the batch behind the loss is committed
        return committed


class PartitionSet:
    """The partitions of one run of a query. Not thread-safe."""

    def __init__(self, options: SourceOptions, session: ConsumerSession) -> None:
        self._options = options
        self._topics = frozenset(options.topics)
        self._session = session
        self._clock = options.client.clock
        self._states: defaultdict[Partition, PartitionState] = defaultdict(PartitionState)

    def present(self, positions: Positions) -> dict[Partition, int]:
        """Return the positions without those of partitions that are gone."""
        return {partition: at for partition, at in positions.items() if not self.is_gone(partition)}

    def move_group(self, claims: GroupClaims, committed: Positions, *, is_latest: bool) -> None:
        """Move the group forward to what is still stored of the positions that Spark has `committed`. If these are the
        latest, the checkpoint holds them, and decides even if the group is ahead.

        With `commitOffsets` false, the partitions are claimed and the group stays where it is.
        """
        moves: dict[Partition, int] = {}
        for partition, at in self.present(committed).items():
            state = self._states[partition]
            position, before = state.stored(at), state.committed
            target = position if is_latest or before is None else max(position, before)
            if not claims.holds(partition) or claims.position(partition).group != target:
                moves[partition] = target
        if not self._options.commit_offsets:
            claims.hold(moves)
            return
        claims.take(moves)
        for partition, moved_to in moves.items():
            self._states[partition].committed = moved_to

    def accept_losses(self, claims: GroupClaims, losses: Mapping[Partition, DataLossError]) -> None:
        """Report the losses of tails to the loss policy, and let the group go on where the stores do."""
        for loss in losses.values():
            self._options.loss_policy.report(loss)
        for partition, loss in losses.items():
            claims.take({partition: loss.offered if self._options.commit_offsets else None})
            state = self._states[partition]
            state.committed, state.accepted_loss = loss.offered, loss

    def leave_out_unsubscribed(self, offset: StreamOffset) -> StreamOffset:
        """Return the offset without partitions that the options do not name any more. Raise `ConfigError` instead if
        the query must fail on data loss."""
        unnamed = {partition for partition in offset.positions if not self._is_subscribed(partition)}
        if not unnamed:
            return offset
        names = ", ".join(sorted({partition.topic for partition in unnamed}))
        if self._options.loss_policy.fail:
            raise ConfigError(
                f"the checkpoint has positions of partitions of {names} that options 'subscribe', 'subscribePattern' "
                "or 'assign' do not name any more: name them again, use another checkpoint, or set option "
                "'failOnDataLoss' to false to go on without them"
            )
        if not all(self.is_gone(partition) for partition in unnamed):
            _log.warning(
                "[partition-left-out] %s is not read any more: options 'subscribe', 'subscribePattern' and 'assign' do "
                "not name it. If they name it again, the query goes on where it was", names,
            )  # fmt: skip
            self._mark(unnamed)
        left = {partition: offset.positions[partition] for partition in unnamed}
        positions = {partition: at for partition, at in offset.positions.items() if partition not in unnamed}
        return replace(offset, positions=positions, left={**offset.left, **left})

    def leave_out_of_plan(self, begin: Positions, end: StreamOffset) -> StreamOffset:
        """Return the end of a planned batch as `leave_out_unsubscribed` does. Report the parts of the batch that nobody
        reads for that reason."""
        named = self.leave_out_unsubscribed(end)
        for partition in sorted(end.positions.keys() - named.positions.keys()):
            at, until = begin.get(partition), named.left[partition]
            if at is not None and at < until:  # one that enters with the batch has no range in it
                text = (
                    f"{partition}: options 'subscribe', 'subscribePattern' and 'assign' do not name the partition any "
                    f"more, and [{at}, {until}) of an unfinished batch is not read"
                )
                self._options.loss_policy.report(loss_of(partition, text, asked=at, offered=until))
        return named

    def check_topics(self, known: Iterable[Partition]) -> None:
        """Raise `ConfigError` if the cluster lacks a topic of which the query knows no partition, or a partition that
        option `assign` names and the query does not know. What it knows was removed, which counts as a loss."""
        if self._options.pattern is not None:
            return  # the session has warned of topics that only the configuration has
        known = set(known)
        if unknown := set(self._session.missing_topics).difference(partition.topic for partition in known):
            raise UnknownTopicError(unknown, READ_ADVICE).with_similar_names(self._options.client)
        _check_assigned(self._options, known.union(_listed(self._session)))

    def report_missing(self, wanted: Iterable[Partition], offset: StreamOffset, claims: GroupClaims) -> None:
        """Report those of the `wanted` partitions to the loss policy that the cluster does not have any more; the query
        has read up to `offset`. Raise `TransportError` if no master answers."""
        self._report_gone(set(wanted) - set(self.listed()), offset, claims)

    def report_unserved(self, error: TransportError, offset: StreamOffset, claims: GroupClaims) -> None:
        """Report the partitions that their brokers do not serve, as `report_missing` does. Raise `error` if the cluster
        has one of them."""
        if not error.unserved:
            raise error
        self._report_gone(error.unserved, offset, claims, error)

    def _report_gone(
        self,
        suspects: Collection[Partition],
        offset: StreamOffset,
        claims: GroupClaims,
        error: TransportError | None = None,
    ) -> None:
        """Mark those of the `suspects`, which are not listed or not served, that the cluster does not have any more.
        Report each to the loss policy; the query has read up to `offset`.

        Raise `error` if one of them exists, or if no master answers.
        """
        gone = {partition for partition in suspects if not self.is_gone(partition)}
        gone = self._without_existing(gone, error) if gone else gone
        if gone:
            self._session.forget_unlisted()
        for partition in sorted(gone):
            position = offset.positions.get(partition, -1)
            text = (
                f"{partition}: the cluster does not have the partition any more: its broker or topic was removed, or "
                f"option 'tubemq.master' names another cluster; the query has read up to {position}, and all later "
                "messages are gone"
            )
            self._options.loss_policy.report(loss_of(partition, text, asked=position, offered=-1))
        self._mark(gone)
        claims.drop(gone)
        if error is not None and not (gone and all(self.is_gone(partition) for partition in suspects)):
            raise error

    def _without_existing(self, gone: set[Partition], error: TransportError | None) -> set[Partition]:
        """Return those of the partitions that the cluster does not have. Brokers may have said so in the `error`.

        A new master's lists are short at first, so it is asked several times, at least once, and for longer if a master
        restarts or takes over meanwhile."""
        clock, retry_for = self._clock, self._options.client.retry_for
        unknown = frozenset() if error is None else error.unknown
        begin, fill_up = clock.monotonic(), min(_NEW_MASTER_LISTS_FILL_UP, retry_for)
        while True:
            asked_at = clock.monotonic()
            try:
                listed = self._session.listed(inf if error is None else _MASTER_RESTART)
            except TransportError as no_answer:
                if error is None:
                    raise
                text = f"{error}. No master answers either: {no_answer}"
                raise TransportError(text, unserved=error.unserved, unknown=error.unknown) from None
            # A master goes on listing a topic that was removed, but its brokers do not know it any more.
            gone = gone - listed.difference(unknown)
            # Masters that change again and again must not keep us here for ever.
            short_since = min(max(begin, self._session.master_changed_at), begin + retry_for)
            if not gone or asked_at >= short_since + fill_up:
                return gone
            clock.sleep(_HIDDEN_PARTITION_POLL)

    def missing(self, partitions: Collection[Partition]) -> set[Partition]:
        """Return those of the partitions that the cluster does not have, and forget that it had them. Raise
        `TransportError` if no master answers."""
        missing = self._without_existing(set(partitions), None)
        if missing:
            self._session.forget_unlisted()
        return missing

    def listed(self) -> list[Partition]:
        """Return the partitions to read that the cluster is known to have."""
        return [partition for partition in _listed(self._session) if self._is_subscribed(partition)]

    def _is_subscribed(self, partition: Partition) -> bool:
        if self._options.assigned is not None:
            return partition in self._options.assigned
        if self._options.pattern is not None:
            return self._options.pattern.fullmatch(partition.topic) is not None
        return partition.topic in self._topics

    def is_gone(self, partition: Partition) -> bool:
        """Whether the partition is not read any more, because the cluster lacks it or the options do not name it."""
        return partition in self._states and self._states[partition].is_gone

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Forget what was known about partitions that are new, or there again."""
        for partition in partitions:
            self._states.pop(partition, None)

    def _mark(self, gone: Collection[Partition]) -> None:
        for partition in gone:
            self._states[partition].is_gone = True


def partitions_to_read(options: SourceOptions, session: ConsumerSession) -> list[Partition]:
    """Return the topics' partitions that the master lists, or those that option `assign` names. Raise `ConfigError` if
    the cluster does not have one of these."""
    found = _listed(session)
    _check_assigned(options, found)
    return found if options.assigned is None else sorted(options.assigned)


def _listed(session: ConsumerSession) -> list[Partition]:
    return [partition for topic in session.topics for partition in session.cluster.partitions(topic)]


def _check_assigned(options: SourceOptions, found: Collection[Partition]) -> None:
    if unknown := sorted((options.assigned or frozenset()).difference(found)):
        raise ConfigError(
            f"option 'assign' names {', '.join(map(str, unknown))} (brokerId:topic:partitionId), which the cluster "
            f"does not have: it has {', '.join(map(str, sorted(found)))}"
        )
