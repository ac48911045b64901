# SPDX-License-Identifier: Apache-2.0
"""Partition discovery: which partitions a streaming query reads, and what this run of it knows about each of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tubemq_spark.client.admin_api import matching_topics
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.client.retries import OUTAGES, Deadline, Retries
from tubemq_spark.errors import ConfigError, DataLossError, TransportError, TubeMQError
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.options import SourceOptions

_log = logging.getLogger(__name__)

_HIDDEN_PARTITION_POLL = 0.5  # seconds; between two requests while a partition is missing in the lists
_NEW_MASTER_LISTS_FILL_UP = 20.0  # seconds; a new master needs up to 13 s to list all topics (measured)
_TOPICS, _PARTITIONS = "the masters' list of topics", "the masters' list of partitions"
_NEW_PARTITION_TIMEOUT = 2.0  # seconds; of a broker that must serve a partition it listed just now


class Status(Enum):
    PRESENT = "read, or to be read when it appears in the lists"
    NOT_READY = "listed, but its broker does not serve it yet"
    GONE = "the cluster had it and has it no more, and the loss was reported"


@dataclass(slots=True)
class PartitionState:
    """What a run knows about one partition. Positions are bytes of the index, 28 a message."""

    status: Status = Status.PRESENT
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
        self._clock, self._timings = options.client.clock, options.client.timings
        self._states: dict[Partition, PartitionState] = {}
        self._refresh = Deadline(options.metadata_interval, self._clock)

    def __getitem__(self, partition: Partition) -> PartitionState:
        return self._states.setdefault(partition, PartitionState())

    def present(self, positions: Positions) -> dict[Partition, int]:
        """Return the positions without those of partitions that are gone."""
        return {partition: at for partition, at in positions.items() if not self._is(partition, Status.GONE)}

    def committed(self, positions: Positions) -> dict[Partition, int]:
        """Return what is still stored of the positions that Spark has committed."""
        return {partition: self[partition].stored(at) for partition, at in self.present(positions).items()}

    def without_unsubscribed(self, offset: StreamOffset) -> StreamOffset:
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
        if not all(self._is(partition, Status.GONE) for partition in unnamed):
            _log.warning(
                "[partition-left-out] %s is not read any more: options 'subscribe', 'subscribePattern' and 'assign' do "
                "not name it. If they name it again, the query goes on where it was", names,
            )  # fmt: skip
            self._mark(unnamed)
        left = {partition: offset.positions[partition] for partition in unnamed}
        positions = {partition: at for partition, at in offset.positions.items() if partition not in unnamed}
        return replace(offset, positions=positions, left={**offset.left, **left})

    def check_topics(self, known: Iterable[Partition]) -> None:
        """Raise `ConfigError` if the cluster lacks a topic of which the query knows no partition, or a partition that
        option `assign` names and the query does not know. What it knows was removed, which counts as a loss."""
        if self._options.pattern is not None:
            return  # the session has warned of topics that only the configuration has
        known = set(known)
        if unknown := set(self._session.missing_topics).difference(partition.topic for partition in known):
            raise ConfigError(
                f"the cluster has no topic {', '.join(sorted(unknown))}. Check option 'subscribe', or create the topic"
            )
        _check_assigned(self._options, known.union(_listed(self._session)))

    def discover(self, known: Positions, claims: GroupClaims, prober: Prober) -> dict[Partition, Extent]:
        """Return where the stores of new partitions begin and end, and claim these partitions. One that its broker does
        not serve is tried again after the next `metadataIntervalMs`, as is a master that does not answer."""
        is_due = self._refresh.passed
        if is_due:
            self._find_topics()
            self._refresh_lists(len(known))
            self._refresh = Deadline(self._options.metadata_interval, self._clock)
        new = [p for p in self.listed() if p not in known and (is_due or self._is(p, Status.PRESENT))]
        if not new or not (new := self._claim_served(new, claims)):
            return {}
        for partition in new:
            self._states.pop(partition, None)
        return prober.extents(new)

    def _find_topics(self) -> None:
        """Let the session have the topics that match `subscribePattern` now, and those that the query still reads."""
        options, session = self._options, self._session
        if options.pattern is None:
            return
        try:
            timeout = min(self._timings.silent_master_timeout, options.client.rpc_timeout)
            found = matching_topics(options.client, options.pattern, timeout)
        except TubeMQError as error:
            return self._knows_only(_TOPICS, len(session.topics), error)
        OUTAGES().worked(_log, _TOPICS)
        wanted = options.of_topics(tuple(sorted({*found, *(partition.topic for partition in self.listed())})))
        if set(wanted.topics) != set(session.topics):
            _log.info("option 'subscribePattern' matches other topics now: %s", ", ".join(wanted.topics))
            session.change_topics(wanted.topics, wanted.filters)

    def _refresh_lists(self, known: int) -> None:
        """Ask the master for the lists. A query that has `known` partitions needs no answer."""
        if not known:
            self._session.refresh()
            return
        try:
            self._session.refresh_soon()
        except TransportError as error:
            self._knows_only(_PARTITIONS, known, error)
        else:
            OUTAGES().worked(_log, _PARTITIONS)

    def _knows_only(self, subject: str, known: int, error: TubeMQError) -> None:
        again = f"asks for new ones every {self._options.metadata_interval:g} s"
        text = f"{subject} is missing: {error}. The query reads the {known} that it knows, and {again}"
        OUTAGES().failed(_log, subject, lambda: text, clock=self._clock, at_once=True)

    def _claim_served(self, new: list[Partition], claims: GroupClaims) -> list[Partition]:
        """Return those of the `new` partitions that could be claimed."""
        try:
            timeout = min(_NEW_PARTITION_TIMEOUT, self._options.client.retry_for)
            claims.take(dict.fromkeys(new), retry_for=timeout)
            return new
        except TransportError as error:
            if not error.unserved:
                raise
            is_known = all(not self._is(partition, Status.PRESENT) for partition in error.unserved)
            _log.log(
                logging.INFO if is_known else logging.WARNING,
                "[new-partitions-wait] new partitions cannot be read yet: %s",
                error,
            )
            for partition in error.unserved:
                if self._is(partition, Status.PRESENT):
                    self[partition].status = Status.NOT_READY
            return [partition for partition in new if partition not in error.unserved]

    def mark_gone(
        self,
        suspects: Collection[Partition],
        offset: StreamOffset,
        claims: GroupClaims,
        error: TransportError | None = None,
    ) -> None:
        """Mark those of the `suspects`, which are not listed or not served, that the cluster does not have any more.
        Report each to the loss policy; the query has read up to `offset`.

        Raise `error` if one of them exists, or if no master answers: the time for retries was spent before.
        """
        gone = {partition for partition in suspects if not self._is(partition, Status.GONE)}
        gone = self._without_existing(gone, claims, error) if gone else gone
        if gone:
            self._session.forget_unlisted()
            for partition in sorted(gone):
                position = offset.positions.get(partition, -1)
                text = (
                    f"{partition}: the cluster does not have the partition any more: its broker or topic was removed, "
                    "or option 'tubemq.master' names another cluster; the query has read up to "
                    f"{position}, and all later messages are gone"
                )
                self._options.loss_policy.report(loss_of(partition, text, asked=position, offered=-1))
            self._mark(gone)
            claims.drop(gone)
        if error is not None and not (gone and all(self._is(partition, Status.GONE) for partition in suspects)):
            raise error

    def _without_existing(
        self, gone: set[Partition], claims: GroupClaims, error: TransportError | None
    ) -> set[Partition]:
        """Return those of the partitions that the cluster does not have. A new master's lists are short at first, so it
        is asked several times, at least once."""
        deadline = Deadline(min(_NEW_MASTER_LISTS_FILL_UP, self._options.client.retry_for), self._clock)
        while True:
            is_last = deadline.passed
            try:
                listed = self._session.listed(once=error is not None)
            except TransportError as no_answer:
                if error is None:
                    raise
                text = f"{error}. No master answers either: {no_answer}"
                raise TransportError(text, unserved=error.unserved) from None
            # A master goes on listing a topic that was removed, but its brokers do not know it any more.
            gone = gone - (listed - (claims.unknown_topics if error else frozenset()))
            if not gone or is_last:
                return gone
            self._clock.sleep(_HIDDEN_PARTITION_POLL)

    def listed(self) -> list[Partition]:
        """Return the partitions to read that the cluster is known to have."""
        return [partition for partition in _listed(self._session) if self._is_subscribed(partition)]

    def _is_subscribed(self, partition: Partition) -> bool:
        if self._options.assigned is not None:
            return partition in self._options.assigned
        if self._options.pattern is not None:
            return self._options.pattern.fullmatch(partition.topic) is not None
        return partition.topic in self._topics

    def _is(self, partition: Partition, status: Status) -> bool:
        state = self._states.get(partition)
        return status is (Status.PRESENT if state is None else state.status)

    def _mark(self, gone: Collection[Partition]) -> None:
        for partition in gone:
            self[partition].status = Status.GONE


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


def with_matching_topics(options: SourceOptions) -> SourceOptions:
    """Return the options with the topics that match `subscribePattern` now; without a pattern, as they are. The HTTP
    API is asked again for as long as masters at a session's first request. Raises as `matching_topics`."""
    if options.pattern is None:
        return options
    client, what = options.client, "asking the masters' HTTP API for topics"
    retries = Retries(min(client.timings.first_contact_timeout, client.retry_for), client.clock, what, _log)
    while True:
        try:
            topics = matching_topics(client, options.pattern)
            break
        except TransportError as error:
            if not retries.failed(error):
                raise
    retries.progress()
    if not topics:
        _log.warning(
            "[no-topic-matches] no topic matches option 'subscribePattern', %r: a batch read is empty, and a stream "
            "waits for topics that match", options.pattern.pattern,
        )  # fmt: skip
    elif unmatched := {topic for topic in options.given_filters if topic is not None}.difference(topics):
        _log.warning(
            "[filters-without-topic] option 'filters' names %s, and no topic of that name matches option "
            "'subscribePattern' now", ", ".join(sorted(unmatched)),
        )  # fmt: skip
    return options.of_topics(topics)
