# SPDX-License-Identifier: Apache-2.0
"""Batch end: where the next micro-batch ends, and what the stores still have of one that is planned.

A partition is read up to the end of its store, but earlier where one of these says so, in this order:

1. The store's last entries are of no known partition: before them. They are looked at again from time to time.
2. The run has the trigger AvailableNow: where the store ended when the run began.
3. The topic may have long messages: where the store's files end.
4. A limit of the options: where the store's share of it ends. `minOffsetsPerTrigger` lets the whole batch wait.
5. A partition that is new ends where it begins, and is read from the next batch on.
6. The store lost messages that were read, or another one has its place: where new messages begin, which may be before
   the batch begins. No limit applies. The loss goes to the loss policy.
7. The last entry up to there is of no known partition: behind the last one that is.

1 to 5 are numbers that `_observe` and `RateLimit` have; 6 and 7 are found by asking (`TruncationCheck`), and `decide`
puts all together. While a store changes or is replaced, the planner asks for everything again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.size_sample import sample_sizes
from tubemq_spark.client.retries import Deadline
from tubemq_spark.protocol.data_loss import lost_tails
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.empty_partitions import empty_partitions
from tubemq_spark.source.long_messages import LongMessages
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_set import PartitionSet
from tubemq_spark.source.rate_limit import RateLimit
from tubemq_spark.source.snapshot import PartitionView, Snapshot, decide
from tubemq_spark.source.truncation_check import REPLACED_AFTER, Checked, StoreChangedError, TruncationCheck

_log = logging.getLogger(__name__)


class UnreadLossError(StoreChangedError):
    """A store became shorter before a new query has read anything, and the user has named no position: nothing is lost,
    and the query begins elsewhere."""


class _UnownedTail(NamedTuple):
    """No known partition has the store's entries in [begin, end). They are looked at `again` from time to time."""

    begin: int
    end: int
    again: Deadline


class BatchEnd:
    """Finds the ends of the micro-batches of one run. Not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        session: ConsumerSession,
        partitions: PartitionSet,
        prober: Prober,
        long_messages: LongMessages,
    ) -> None:
        self._options, self._session, self._partitions, self._prober = options, session, partitions, prober
        self._long_messages = long_messages
        self._clock = options.client.clock
        self.rate_limit = RateLimit(
            options.min_offsets, options.max_offsets, options.max_delay, self._clock, options.max_bytes
        )
        self._verified: StreamOffset | None = None  # an end that the stores held when they were checked
        self._known_lost_claims = 0  # at that check
        self._unowned: dict[Store, _UnownedTail] = {}

    def find_next(
        self,
        start: StreamOffset,
        begin: Positions,
        new: Positions,
        claims: GroupClaims,
        *,
        is_first: bool,
        limited: bool,
    ) -> tuple[StreamOffset, StreamOffset]:
        """Return the end of the micro-batch from `start`, and the log ends. `begin` is where its partitions begin, and
        `new` has the positions at which others enter. `is_first`: the query has read nothing before.

        Raises `StoreChangedError`, `UnflushedError`, and as `Prober.extents` and `GroupClaims.take`. Reports lost
        tails to the loss policy.
        """
        seen = self._observe(start, begin, new, claims, is_first=is_first)
        ends = self._limited_ends(seen, limited=limited)
        lost_claims = claims.losses  # a broker that forgot one may have lost messages, also of stores without news
        checked, empty = self._check(
            seen, ends, may_have_lost=self._verified is None or self._known_lost_claims != lost_claims
        )
        decision = decide(seen, ends, checked, empty, self._session.cluster)
        if decision.losses and is_first and not any(isinstance(one, int) for one in self._options.starting.places):
            gone = next(iter(decision.losses))
            raise UnreadLossError(f"{gone} became shorter before the query has read anything")
        self._partitions.accept_losses(claims, decision.losses)
        self._skip_unowned(checked.unowned, seen.log_ends)
        self._verified, self._known_lost_claims = decision.end, lost_claims
        self.rate_limit.keep_run_ends()
        return decision.end, StreamOffset(start.query, seen.log_ends)

    def _observe(
        self, start: StreamOffset, begin: Positions, new: Positions, claims: GroupClaims, *, is_first: bool
    ) -> Snapshot:
        log_ends = {partition: self._without_unowned_tail(partition, at, claims) for partition, at in begin.items()}
        log_ends |= {partition: max(claims.position(partition).end, at) for partition, at in new.items()}
        for partition in new:
            self._unowned.pop(partition.store, None)
        begin = {**begin, **new}
        flushed = self._long_messages.flushed_ends(begin, log_ends, start.fingerprints)
        views = {one: PartitionView(at, log_ends[one], flushed.get(one), one in new) for one, at in begin.items()}
        return Snapshot(start, views, is_first)

    def _limited_ends(self, seen: Snapshot, *, limited: bool) -> dict[Partition, int]:
        """Return where the options let the batch end."""
        read, new = seen.read, seen.new
        begin, log_ends, readable = read.begin, read.log_ends, read.readable_ends
        is_sampled = limited and self.rate_limit.needs_sizes
        sizes = _sizes(self._prober, begin, {**log_ends, **readable}) if is_sampled else {}
        ends = self.rate_limit.batch_end(begin, log_ends, new.log_ends, limited=limited, readable=readable, sizes=sizes)
        return {**ends, **new.begin}

    def _check(self, seen: Snapshot, ends: Positions, *, may_have_lost: bool) -> tuple[Checked, frozenset[Partition]]:
        """Return what the stores have of the batch, and the partitions that have no message in it."""
        visitor, read, cluster = self._prober.visitor, seen.read, self._session.cluster
        failures, counted_at = visitor.failures, self._clock.monotonic()
        empty = empty_partitions(self._prober, cluster, read.begin, ends, read.log_ends)
        checked = self._truncation_check.check(
            seen.begin,
            ends,
            seen.log_ends,
            seen.start.fingerprints,
            idle_too=seen.is_first or may_have_lost or bool(seen.new.partitions),
            empty=empty,
            unflushed=seen.unflushed,
        )
        if visitor.failures != failures or self._clock.monotonic() - counted_at > REPLACED_AFTER:
            empty = frozenset()  # the stores may be others since their messages were counted
        return checked, empty

    def cut_lost_tails(self, end: StreamOffset, begin: Positions, present: Positions) -> StreamOffset:
        """Return the end of a batch that is planned, with its positions that are `present`, cut where stores lost the
        tail of a batch of an earlier run, or what lay before it. The end of the next batch accepts such a loss."""
        if end == self._verified or not end.fingerprints:  # a loss since then shows in the tasks
            return replace(end, positions=present)
        lost, intact = self._truncation_check.lost_since(present, end.fingerprints)
        log_ends = {partition: extent.end for partition, extent in self._prober.extents(lost).items()}
        losses = lost_tails(present, lost, log_ends)
        if self._options.loss_policy.fail:  # where the store is too short, its readers report the exact loss
            reported = {
                p for p, loss in losses.items() if begin.get(p, present[p]) < present[p] and log_ends[p] < loss.asked
            }
            losses = {partition: loss for partition, loss in losses.items() if partition not in reported}
            lost = {partition: loss.offered for partition, loss in losses.items()}
        for loss in losses.values():
            self._options.loss_policy.report(loss)
        self._verified = None if lost else end
        kept = {partition.store: intact[partition.store] for partition in lost}
        return replace(end, positions={**present, **lost}, fingerprints={**end.fingerprints, **kept})

    def _without_unowned_tail(self, partition: Partition, begin: int, claims: GroupClaims) -> int:
        """Return where the partition's store ends, without a tail that is known to be of no known partition."""
        end = claims.position(partition).end
        tail = self._unowned.get(partition.store)
        return max(begin, tail.begin) if tail is not None and tail.end == end and not tail.again.passed else end

    def _skip_unowned(self, unowned: Mapping[Store, int], log_ends: Positions) -> None:
        """Do not ask again soon for the entries of stores from these positions on, which no known partition has."""
        for store, begin in unowned.items():
            if store not in self._unowned:
                _log.warning(
                    "[store-end-unowned] broker %d, topic %s, store %d: the messages from %d on are of no partition "
                    "that the master lists, or the broker cannot read them yet. The query reads the store up to there, "
                    "and goes on when the master lists their partition or readable messages follow", *store, begin,
                )  # fmt: skip
            end = next(log_end for partition, log_end in log_ends.items() if partition.store == store)
            again = Deadline(self._options.metadata_interval, self._clock)
            self._unowned[store] = _UnownedTail(begin, end, again)

    @property
    def _truncation_check(self) -> TruncationCheck:
        return TruncationCheck(self._prober, self._session.cluster, self._partitions)


def _sizes(prober: Prober, begin: Positions, log_ends: Positions) -> dict[Store, float]:
    """Return the mean bytes of a message for each store with new entries, as far as its broker says: the greatest mean
    that a sample of one of its partitions shows."""
    growing = {partition: position for partition, position in begin.items() if position < log_ends[partition]}
    found: dict[Store, float] = {}
    for partition, sample in sample_sizes(prober, growing).items():
        if sample.mean is not None:
            found[partition.store] = max(sample.mean, found.get(partition.store, 0.0))
    return found
