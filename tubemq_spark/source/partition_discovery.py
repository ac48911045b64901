# SPDX-License-Identifier: Apache-2.0
"""Partition discovery: which topics match a pattern, which partitions are new to a streaming query, and where
it begins to read them."""

from __future__ import annotations

import logging

from tubemq_spark.client.admin_api import matching_topics
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.first_message import at_first_messages
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.client.retries import OUTAGES, Deadline, Retries
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_set import PartitionSet
from tubemq_spark.source.truncation_check import TruncationCheck

_log = logging.getLogger(__name__)

_TOPICS, _PARTITIONS = "the masters' list of topics", "the masters' list of partitions"
_NEW_PARTITION_TIMEOUT = 2.0  # seconds; of a broker that must serve a partition it listed just now


class PartitionDiscovery:
    """Finds partitions for one run of a query. Not thread-safe."""

    def __init__(
        self, options: SourceOptions, session: ConsumerSession, partitions: PartitionSet, prober: Prober
    ) -> None:
        self._options, self._session, self._partitions, self._prober = options, session, partitions, prober
        self._clock, self._timings = options.client.clock, options.client.timings
        self._refresh = Deadline(options.metadata_interval, self._clock)
        self._waiting: set[Partition] = set()  # listed, but their brokers do not serve them yet

    def new_positions(self, known: Positions, start: StreamOffset, claims: GroupClaims) -> dict[Partition, int]:
        """Claim partitions that are new, and return where they are read from: those that the query has read or left
        before `start` go on there, or where new messages begin if the store was truncated. If the query reads a topic
        and not the store, the store's beginning belongs to the query: its loss goes to the loss policy."""
        found = self._discover(known, claims)
        back = {
            p: at
            for p, at in start.left_without(known).items()
            if p in found and (p.store in start.fingerprints or at <= found[p].end)
        }
        if back:
            check = TruncationCheck(self._prober, self._session.cluster, self._partitions)
            back |= check.lost_since(back, start.fingerprints)[0]
        new: dict[Partition, int] = {}
        topics, stores = {p.topic for p in known}, {p.store for p in (*known, *start.left)}
        for partition, (begin, end) in found.items():
            new[partition] = min(back.get(partition, begin), end)
            if partition in back:
                _log.info("%s is there again; reading goes on at %d", partition, new[partition])
            elif begin and partition.topic in topics and partition.store not in stores:
                text = (
                    f"{partition}: the store is new to the query and begins at {begin}, because retention removed "
                    f"[0, {begin}) before the query knew it. If its broker was only away when the query began, start "
                    "it once with option 'failOnDataLoss' false"
                )
                self._options.loss_policy.report(loss_of(partition, text, asked=0, offered=begin))
            elif begin:
                _log.warning(
                    "[new-partition-late] %s is new to the query, and its store begins at %d: of messages before that "
                    "the query reads none", partition, begin,
                )  # fmt: skip
            else:
                _log.info("%s is new; it is read from its beginning", partition)
        if self._options.commit_offsets:  # a commit moves it only at the next trigger
            claims.take({partition: at for partition, at in new.items() if claims.position(partition).group > at})
        return new

    def _discover(self, known: Positions, claims: GroupClaims) -> dict[Partition, Extent]:
        """Return where the stores of new partitions begin and end, and claim these partitions. One that its broker does
        not serve is tried again after the next `metadataIntervalMs`, as is a master that does not answer."""
        is_due = self._refresh.passed
        if is_due:
            self._find_topics()
            self._refresh_lists(len(known))
            self._refresh = Deadline(self._options.metadata_interval, self._clock)
        new = [p for p in self._partitions.listed() if p not in known and (is_due or not self._is_missing(p))]
        if not new or not (new := self._claim_served(new, claims)):
            return {}
        self._partitions.forget(new)
        self._waiting.difference_update(new)
        extents = self._prober.extents(new)
        begins, _ = at_first_messages(
            self._prober, self._session.cluster, {one: at.begin for one, at in extents.items()}
        )
        return {one: Extent(begins[one], extents[one].end) for one in new}

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
        wanted = options.of_topics(
            tuple(sorted({*found, *(partition.topic for partition in self._partitions.listed())}))
        )
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
            is_known = all(self._is_missing(partition) for partition in error.unserved)
            _log.log(
                logging.INFO if is_known else logging.WARNING,
                "[new-partitions-wait] new partitions cannot be read yet: %s",
                error,
            )
            self._waiting.update(error.unserved)
            return [partition for partition in new if partition not in error.unserved]

    def _is_missing(self, partition: Partition) -> bool:
        return partition in self._waiting or self._partitions.is_gone(partition)


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
