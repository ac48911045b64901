# SPDX-License-Identifier: Apache-2.0
"""Micro-batch planner: the driver's side of a streaming query, between Spark's calls and the cluster.

The driver is a member of the consumer group at the master and holds the group's partitions at the brokers as long as
the query runs (`GroupClaims`). Spark asks for the latest offset from the offset that it has committed. The planner
moves the group's position there and asks for the log ends. Probes and tasks read in other groups, see `working_group`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot
from tubemq_spark.client.consumer.size_sample import sample_sizes
from tubemq_spark.client.consumer.visitor import Visitor, visitor_for
from tubemq_spark.client.consumer.working_group import stream_group
from tubemq_spark.client.retries import Deadline, Retries
from tubemq_spark.errors import ConfigError, DataLossError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.data_loss import loss_of, lost_tails
from tubemq_spark.protocol.log_fingerprint import Fingerprints, Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.empty_partitions import empty_partitions
from tubemq_spark.source.expired_data import without_expired
from tubemq_spark.source.input_partition import TubeMQInputPartition, exclusive_stores, input_partitions
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.offset_resolver import OffsetResolver, read_status
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_set import PartitionSet, partitions_to_read, with_matching_topics
from tubemq_spark.source.range_planner import ranges
from tubemq_spark.source.rate_limit import PollInterval, RateLimit
from tubemq_spark.source.store_check import ids_between
from tubemq_spark.source.truncation_check import REPLACED_AFTER, StoreChangedError, TruncationCheck

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Answer(NamedTuple):
    """The answer to `latest`, asked from `start`: the batch ends at `end`, the stores at `log_ends`."""

    start: StreamOffset
    limited: bool
    end: StreamOffset
    log_ends: StreamOffset


class _UnownedTail(NamedTuple):
    """No known partition has the store's entries in [begin, end). They are looked at `again` from time to time."""

    begin: int
    end: int
    again: Deadline


class MicroBatchPlanner:
    """One run of a streaming query. Not thread-safe: Spark calls from one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options = with_matching_topics(options)
        may_lack = options.pattern is not None or not options.loss_policy.fail
        self._session = ConsumerSession(
            options.client, options.group, options.topics, options.filters, may_lack_topics=may_lack
        )
        self._session.register(wait=options.claim_timeout)
        self._claims: GroupClaims | None = None
        self._visitor = visitor_for(self._session)
        self._prober = Prober(self._visitor)
        self._partitions = PartitionSet(options, self._session)
        clock, timings = options.client.clock, options.client.timings
        self._rate_limit = RateLimit(
            options.min_offsets, options.max_offsets, options.max_delay, clock, options.max_bytes
        )
        self._poll_interval = PollInterval(options.poll_interval, timings.max_poll_interval, clock)
        self._initial = StreamOffset(system.token_hex(8), {})
        self._first: Positions | None = None  # where a new query begins
        self._answer: _Answer | None = None
        self._planned: tuple[StreamOffset, StreamOffset, list[TubeMQInputPartition]] | None = None  # the last batch
        self._verified_end: StreamOffset | None = None  # of a batch that the stores held when they were checked
        self._known_losses = 0  # of claims, at that check
        self._batches = 0  # that were planned
        self._unowned: dict[Store, _UnownedTail] = {}

    def initial(self) -> StreamOffset:
        """Return what a new query begins with: a query id, but no positions.

        Spark also asks for it before a restarted query repeats its first batch. So nothing is looked up here, and
        nothing is claimed under an id that is not the query's: the end of the first batch has both, see `plan`.
        """
        return self._initial

    def prepare_for_available_now(self) -> None:
        """Let this run end where the stores end when `latest` is called next."""
        self._rate_limit.stop_at_next_ends()

    @property
    def missing_topics(self) -> list[str]:
        """The topics of which the cluster has nothing."""
        return self._session.missing_topics

    @property
    def log_ends(self) -> StreamOffset | None:
        """Where the stores ended when the brokers were asked last."""
        return None if self._answer is None else self._answer.log_ends

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """Return where the next micro-batch ends; `start` itself if there is nothing new. Move the group
        to `start`.

        `start` is what Spark has committed, or the initial offset. The batch is `limited` by the options, or ends at
        the log ends. The brokers are asked at most every `headsIntervalMs`, and less often while nothing arrives (see
        `PollInterval`).

        Raises as `OffsetResolver.initial` and `GroupClaims.take`. Lost tails and partitions that are gone are reported
        to the loss policy.
        """
        last = self._answer
        if last is not None and (last.start, last.limited) != (start, limited):
            last = None
        if last is not None and not self._poll_interval.is_due:
            return last.end
        now = self._options.client.clock.monotonic()
        begin = self._partitions.without_unsubscribed(start)
        self._partitions.check_topics([*begin.positions, *begin.left, *(self._first or ())])
        end, log_ends = self._without_gone_partitions(
            begin, begin.positions, lambda claims: self._try_to_find_end(begin, claims, now, limited)
        )
        self._answer = _Answer(start, limited, end, log_ends)
        self._poll_interval.polled(has_news=last is None or log_ends.positions != start.positions)
        return end

    def commit(self, offset: StreamOffset) -> None:
        """Move the group forward to `offset`, which Spark has committed, each partition once. Spark may pass an older
        offset than to `latest`.

        With `commitOffsets` false, the partitions are claimed and the group stays where it is.
        """
        self._move_group(offset, is_latest=False)

    def _move_group(self, offset: StreamOffset, *, is_latest: bool) -> None:
        """Move the group to `offset`, which the checkpoint holds: it decides, even if the group is ahead."""
        claims = self._claims_of(offset.query)
        moves: dict[Partition, int] = {}
        for partition, position in self._partitions.committed(offset.positions).items():
            before = self._partitions[partition].committed
            target = position if is_latest or before is None else max(position, before)
            if not claims.holds(partition) or claims.position(partition).group != target:
                moves[partition] = target
        if not self._options.commit_offsets:
            claims.hold(moves)
            return
        claims.take(moves)
        for partition, moved_to in moves.items():
            self._partitions[partition].committed = moved_to

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[TubeMQInputPartition]:
        """Return the tasks for [start, end).

        Spark calls once for each scan of the micro-batch, for example twice for `df.union(df)`. Tasks of the first scan
        may be reading already. So the second call returns the first plan.
        """
        if self._planned is None or self._planned[:2] != (start, end):
            self._planned = start, end, self._plan(start, end)
        return self._planned[2]

    def stop(self) -> None:
        """Release the claims and leave the group, which stays where it was committed. May be called twice."""
        if self._claims is not None:
            self._claims.release()
            self._claims = None
        self._visitor.close()
        self._session.close()

    def _try_to_find_end(
        self, start: StreamOffset, claims: GroupClaims, now: float, limited: bool
    ) -> tuple[StreamOffset, StreamOffset]:
        client = self._options.client
        retries = Retries(client.retry_for, client.clock)
        while True:
            try:
                return self._find_end(start, claims, now, limited)
            except StoreChangedError as changed:
                _log.info("%s; asking again where the stores end", changed)
                if not retries.pause():
                    raise TransportError(
                        f"{changed}, again and again for {client.retry_for:g} s. Check the brokers, and their logs"
                    ) from None
                now = client.clock.monotonic()

    def _find_end(
        self, start: StreamOffset, claims: GroupClaims, now: float, limited: bool
    ) -> tuple[StreamOffset, StreamOffset]:
        """Return the end of the next micro-batch, and the log ends."""
        initial = None
        # Losses, too, may leave an offset without positions.
        if start.positions or self._planned is not None or start.query != self._initial.query:
            begin: Positions = self._partitions.present(start.positions)
            self._move_group(start, is_latest=True)
        else:
            begin = initial = self._first_positions(claims)
            if any(at > claims.position(partition).end for partition, at in begin.items()):
                now = self._options.client.clock.monotonic()  # a search by time met messages that came meanwhile
        claims.refresh(older_than=now)
        log_ends = {partition: self._owned_end(partition, at, claims) for partition, at in begin.items()}
        # New partitions enter at their earliest position and are read from the next batch on: then the checkpoint has
        # both ends of every range.
        left = {**start.left, **{p: at for p, at in start.positions.items() if p not in begin}}
        new = self._new_positions(begin, left, start.fingerprints, claims)
        new_ends = {partition: claims.position(partition).end for partition in new}
        ends = self._rate_limit.batch_end(
            begin, log_ends, new_ends, limited=limited, sizes=lambda: _sizes(self._visitor, begin, log_ends)
        )
        clock, failures = self._options.client.clock, self._visitor.failures
        counted_at = clock.monotonic()
        empty = empty_partitions(self._prober, self._session.cluster, begin, ends, log_ends)
        begin, ends = {**begin, **new}, {**ends, **new}
        log_ends |= {partition: max(new_ends[partition], at) for partition, at in new.items()}
        # A broker that forgot a claim may have lost messages, also of stores without news.
        losses = claims.losses
        may_have_lost = self._verified_end is None or self._known_losses != losses
        checked = self._truncation_check.check(
            begin, ends, log_ends, start.fingerprints, idle_too=may_have_lost or bool(new), empty=empty
        )
        if self._visitor.failures != failures or clock.monotonic() - counted_at > REPLACED_AFTER:
            empty = frozenset()  # the stores may be others since their messages were counted
        lost = lost_tails(begin, checked.ends, log_ends)
        if lost and initial is not None and not any(isinstance(one, int) for one in self._options.starting.places):
            self._first = None  # the user has named no position, so nothing is lost
            claims.refresh(older_than=clock.monotonic())
            raise StoreChangedError(f"{next(iter(lost))} became shorter before the query has read anything")
        self._accept_losses(lost, claims)
        self._skip_unowned(checked.unowned, log_ends)
        ends = {**ends, **checked.ends}
        end = start
        if ends != start.positions:
            exclusive = exclusive_stores(self._session, ends)
            left = {partition: at for partition, at in left.items() if partition not in new}
            end = StreamOffset(start.query, ends, initial, checked.fingerprints, exclusive, empty, left)
        self._verified_end, self._known_losses = end, losses
        self._rate_limit.keep_run_ends()
        return end, StreamOffset(start.query, log_ends)

    def _owned_end(self, partition: Partition, begin: int, claims: GroupClaims) -> int:
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
            again = Deadline(self._options.metadata_interval, self._options.client.clock)
            self._unowned[store] = _UnownedTail(begin, end, again)

    def _new_positions(
        self, known: Positions, left: Positions, fingerprints: Fingerprints, claims: GroupClaims
    ) -> dict[Partition, int]:
        """Claim partitions that are new, and return where they are read from: those that the query has read before, and
        `left`, go on there, or where new messages begin if the store was truncated."""
        if not self._rate_limit.admits_new_partitions:
            return {}
        found = self._partitions.discover(known, claims, self._prober)
        back = {p: at for p, at in left.items() if p in found and (p.store in fingerprints or at <= found[p].end)}
        back |= self._truncation_check.lost_since(back, fingerprints)[0] if back else {}
        new: dict[Partition, int] = {}
        for partition, (begin, end) in found.items():
            new[partition] = min(back.get(partition, begin), end)
            self._unowned.pop(partition.store, None)
            if partition in back:
                _log.info("%s is there again; reading goes on at %d", partition, new[partition])
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

    def _first_positions(self, claims: GroupClaims) -> Positions:
        """Return where a new query begins, and claim its partitions. Later calls return the same positions.

        Raises as `partitions_to_read`, `GroupClaims.take` and `OffsetResolver.starting`.
        """
        options = self._options
        listed = partitions_to_read(options, self._session) if self._first is None else self._first
        wanted = self._partitions.present(dict.fromkeys(listed, 0))
        claims.hold(wanted, read_status(options))
        if self._first is None:
            at = {partition: claims.position(partition) for partition in wanted}
            starts = OffsetResolver(options, self._prober).starting(at)
            self._first = without_expired(starts, options, self._session, self._prober)
        return self._partitions.present(self._first)

    def _plan(self, start: StreamOffset, end: StreamOffset) -> list[TubeMQInputPartition]:
        """`start` has no positions in the first batch: `end` has them, and the query's id. The ids differ when a first
        batch is repeated after a restart.
        """
        begin = start.positions or end.initial
        if begin is None and (start.query == end.query or not end.positions):  # no topic matched the pattern at first
            begin = {}
        if begin is None or (start.positions and start.query != end.query):
            raise ConfigError(
                f"the checkpoint mixes offsets of two queries ({start.query} and {end.query}): use one checkpoint a "
                "query"
            )
        planned, end = end, self._partitions.without_unsubscribed(end)
        self._report_left_out(begin, planned.positions.keys() - end.positions.keys(), end)
        # A partition that left the query before the end is neither claimed nor checked: it may be gone by now.
        begin = {partition: at for partition, at in begin.items() if partition in end.positions}

        def hold_and_check(claims: GroupClaims) -> StreamOffset:
            # A restarted query repeats a batch before it asks for the next one.
            if start.positions:
                # An end before the start is an accepted loss.
                earlier = {p: min(at, end.positions[p]) for p, at in begin.items()}
                self._move_group(replace(start, positions=earlier), is_latest=True)
            else:
                claims.hold(self._partitions.present(begin), read_status(options))
            claims.hold(self._partitions.present(end.positions))
            return self._stored(end)

        options = self._options.of_topics(self._session.topics)
        stored = self._without_gone_partitions(replace(end, positions=begin), end.positions, hold_and_check)
        to_read = {p: positions for p, positions in ranges(begin, stored.positions).items() if p not in end.empty}
        # A store may lose the range after it answered this check, also while another broker lets it wait.
        ids = ids_between(begin, stored.positions, stored.fingerprints, self._session.cluster)
        snapshots = {
            partition: PartitionSnapshot(self._session.broker(partition), self._visitor.group, self._session.flow_rules)
            for partition in to_read
        }
        self._answer = None
        self._batches += 1
        claim = replace(self._claims_of(end.query).claim, batch=self._batches)
        group = stream_group(options.group)
        return input_partitions(
            options, self._session, claim, to_read, snapshots, group, ids=ids, exclusive=end.exclusive
        )

    @property
    def _truncation_check(self) -> TruncationCheck:
        return TruncationCheck(self._prober, self._session.cluster)

    def _report_left_out(self, begin: Positions, unnamed: Collection[Partition], end: StreamOffset) -> None:
        """Report the parts of a planned batch that nobody reads, because the options do not name the partitions now."""
        for partition in sorted(unnamed):
            at, until = begin.get(partition), end.left[partition]
            if at is not None and at < until:  # one that enters with the batch has no range in it
                text = (
                    f"{partition}: options 'subscribe', 'subscribePattern' and 'assign' do not name the partition any "
                    f"more, and [{at}, {until}) of an unfinished batch is not read"
                )
                self._options.loss_policy.report(loss_of(partition, text, asked=at, offered=until))

    def _without_gone_partitions(
        self, begin: StreamOffset, expected: Collection[Partition], attempt: Callable[[GroupClaims], T]
    ) -> T:
        """Return the result of `attempt`; repeat it when a partition turns out to be gone and the loss policy accepts
        that. The query has read up to `begin`."""
        claims = self._claims_of(begin.query)
        while True:
            try:
                self._partitions.mark_gone(set(expected) - set(self._partitions.listed()), begin, claims)
                return attempt(claims)
            except TransportError as error:
                if not error.unserved:
                    raise
                self._partitions.mark_gone(error.unserved, begin, claims, error)

    def _stored(self, end: StreamOffset) -> StreamOffset:
        """Return the end of a batch that is planned, cut where stores lost the tail of a batch of an earlier run. The
        end of the next batch accepts such a loss."""
        ends = self._partitions.present(end.positions)
        if end == self._verified_end or not end.fingerprints:
            return replace(end, positions=ends)
        lost, intact = self._truncation_check.lost_since(ends, end.fingerprints)
        log_ends = {partition: extent.end for partition, extent in self._prober.extents(lost).items()}
        losses = lost_tails(ends, lost, log_ends)
        if self._options.loss_policy.fail:  # where the store is too short, its readers report the exact loss
            losses = {partition: loss for partition, loss in losses.items() if log_ends[partition] >= loss.asked}
            lost = {partition: loss.offered for partition, loss in losses.items()}
        for loss in losses.values():
            self._options.loss_policy.report(loss)
        self._verified_end = None if lost else end
        kept = {partition.store: intact[partition.store] for partition in lost}
        return replace(end, positions={**ends, **lost}, fingerprints={**end.fingerprints, **kept})

    def _accept_losses(self, losses: Mapping[Partition, DataLossError], claims: GroupClaims) -> None:
        for loss in losses.values():
            self._options.loss_policy.report(loss)
        for partition, loss in losses.items():
            claims.take({partition: loss.offered if self._options.commit_offsets else None})
            state = self._partitions[partition]
            state.committed, state.accepted_loss = loss.offered, loss

    def _claims_of(self, query: str) -> GroupClaims:
        if self._claims is None or self._claims.claim.query != query:
            if self._claims is not None:
                self._claims.release()
            options = self._options
            run = int(options.client.clock.time() * 1000)  # later runs are newer, unless the clock was set back
            claim = ClaimId(query, run=run, batch=1, label=label_of(system.host_name()))
            self._claims = GroupClaims(
                self._session, claim, options.claim_timeout, keeps_position=options.commit_offsets
            )
        return self._claims


def _sizes(visitor: Visitor, begin: Positions, log_ends: Positions) -> dict[Store, float]:
    """Return the mean bytes of a message for each store with new entries, as far as its broker says: the greatest mean
    that a sample of one of its partitions shows."""
    growing = {partition: position for partition, position in begin.items() if position < log_ends[partition]}
    found: dict[Store, float] = {}
    for partition, sample in sample_sizes(visitor, growing).items():
        if sample.mean is not None:
            found[partition.store] = max(sample.mean, found.get(partition.store, 0.0))
    return found
