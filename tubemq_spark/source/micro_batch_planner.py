# SPDX-License-Identifier: Apache-2.0
"""Micro-batch planner: the driver's side of a streaming query, between Spark's calls and the cluster.

The driver is a member of the consumer group at the master and holds the group's partitions at the brokers as long as
the query runs (`GroupClaims`). Spark asks for the latest offset from the offset that it has committed. The planner
moves the group's position there and asks for the log ends. Probes and tasks read in other groups, see `working_group`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.first_message import at_first_messages
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot
from tubemq_spark.client.consumer.visitor import visitor_for
from tubemq_spark.client.consumer.working_group import stream_group
from tubemq_spark.client.retries import Retries
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.log_fingerprint import Fingerprint, Store
from tubemq_spark.source.application import application_id
from tubemq_spark.source.batch_end import BatchEnd, UnreadLossError
from tubemq_spark.source.input_partition import TubeMQInputPartition, input_partitions
from tubemq_spark.source.long_messages import FlushWait, LongMessages
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.offset_resolver import OffsetResolver, read_status
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_discovery import PartitionDiscovery, with_matching_topics
from tubemq_spark.source.partition_set import PartitionSet, partitions_to_read
from tubemq_spark.source.range_planner import ranges
from tubemq_spark.source.rate_limit import PollInterval
from tubemq_spark.source.store_check import ids_between
from tubemq_spark.source.truncation_check import StoreChangedError, UnflushedError

_log = logging.getLogger(__name__)


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
        self._discovery = PartitionDiscovery(options, self._session, self._partitions, self._prober)
        self._long_messages = LongMessages(self._prober, options.long_topics)
        self._batch_end = BatchEnd(options, self._session, self._partitions, self._prober, self._long_messages)
        client = options.client
        self._poll_interval = PollInterval(options.poll_interval, client.timings.max_poll_interval, client.clock)
        self._initial = StreamOffset(system.token_hex(8), {})
        self._first: Positions | None = None  # where a new query begins
        self._first_messages: Mapping[Store, Fingerprint] = {}
        self._log_ends: StreamOffset | None = None
        self._asked_from: StreamOffset | None = None  # where Spark asked from last, if it has committed nothing since
        self._planned: tuple[StreamOffset, StreamOffset, list[TubeMQInputPartition]] | None = None  # the last batch
        self._batches = 0  # that were planned

    def initial(self) -> StreamOffset:
        """Return what a new query begins with: a query id, but no positions.

        Spark also asks for it before a restarted query repeats its first batch. So nothing is looked up here, and
        nothing is claimed under an id that is not the query's: the end of the first batch has both, see `plan`.
        """
        return self._initial

    def prepare_for_available_now(self) -> None:
        """Let this run end where the stores end when `latest` is called next."""
        self._batch_end.rate_limit.stop_at_next_ends()

    @property
    def missing_topics(self) -> list[str]:
        """The topics of which the cluster has nothing."""
        return self._session.missing_topics

    @property
    def log_ends(self) -> StreamOffset | None:
        """Where the stores ended when the brokers were asked last, without tails of no known partition."""
        return self._log_ends

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """Return where the next micro-batch ends; `start` itself if there is nothing new. Move the group
        to `start`.

        `start` is what Spark has committed, or the initial offset. The batch is `limited` by the options, or ends at
        the log ends. Each call asks the brokers, and first waits until `PollInterval` allows it if Spark has committed
        nothing since the last one: all that was stored before the call is in the answer, as Spark's
        `processAllAvailable` needs it.

        Raises as `OffsetResolver.starting` and `GroupClaims.take`. Lost tails and partitions that are gone are reported
        to the loss policy.
        """
        clock = self._options.client.clock
        is_repeated = self._asked_from == start
        if is_repeated and (pause := self._poll_interval.pause()):
            clock.sleep(pause)
        begin = self._partitions.leave_out_unsubscribed(start)
        self._partitions.check_topics([*begin.positions, *begin.left, *(self._first or ())])
        claims = self._claims_of(start.query)
        end, log_ends = self._find_end(begin, claims, limited)
        self._asked_from, self._log_ends = start, log_ends
        self._poll_interval.polled(has_news=not is_repeated or log_ends.positions != start.positions)
        return end

    def commit(self, offset: StreamOffset) -> None:
        """Move the group forward to `offset`, which Spark has committed, each partition once. Spark may pass an older
        offset than to `latest`.

        Spark calls this for each micro-batch, also if only another source had news: `latest` does not wait then.

        Raises as `GroupClaims.take`.
        """
        self._asked_from = None
        self._partitions.move_group(self._claims_of(offset.query), offset.positions, is_latest=False)

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
        self._long_messages.close()
        self._session.close()

    def _find_end(self, start: StreamOffset, claims: GroupClaims, limited: bool) -> tuple[StreamOffset, StreamOffset]:
        """Return the end of the next micro-batch, and the log ends.

        Ask again if a partition is gone, if a store changed meanwhile, when messages are in files that a fingerprint
        needs, and while a run with trigger AvailableNow waits for what cannot be read yet: it ends with the first
        micro-batch that brings nothing.
        """
        client = self._options.client
        wait = FlushWait(client)
        retries: Retries | None = None
        unflushed: Positions = {}
        while True:
            now = client.clock.monotonic()
            try:
                if unflushed:
                    ends, unflushed = unflushed, {}  # also if their partitions turn out to be gone
                    self._long_messages.wait_until_flushed(ends)
                self._partitions.report_missing(start.positions, start, claims)
                found = self._try_to_find_end(start, claims, now, limited)
            except TransportError as error:
                self._partitions.report_unserved(error, start, claims)
            except UnflushedError as error:
                unflushed = error.ends
            except StoreChangedError as changed:
                # An attempt may first wait for claims of an earlier run, which counts for the claim timeout only.
                retries = retries or Retries(client.retry_for, client.clock)
                _log.info("%s; asking again where the stores end", changed)
                if isinstance(changed, UnreadLossError):
                    self._first = None
                if not retries.pause():
                    raise TransportError(
                        f"{changed}, again and again for {client.retry_for:g} s. Check the brokers, and their logs"
                    ) from None
            else:
                held_back = self._batch_end.rate_limit.held_back
                if found[0] != start or not held_back:
                    return found
                retries = None
                wait.pause(held_back)

    def _try_to_find_end(
        self, start: StreamOffset, claims: GroupClaims, now: float, limited: bool
    ) -> tuple[StreamOffset, StreamOffset]:
        """Return as `_find_end`. Store ends that brokers told before `now` are asked for again."""
        # Losses, too, may leave an offset without positions.
        is_first = not start.positions and self._planned is None and start.query == self._initial.query
        if is_first:
            begin = self._first_positions(claims, now)
            if any(at > claims.position(partition).end for partition, at in begin.items()):
                now = self._options.client.clock.monotonic()  # a search by time met messages that came meanwhile
        else:
            begin = self._partitions.present(start.positions)
            self._partitions.move_group(claims, begin, is_latest=True)
        claims.refresh(older_than=now)
        new: Positions = {}
        if self._batch_end.rate_limit.admits_new_partitions:
            new = self._discovery.new_positions(begin, start, claims)
        return self._batch_end.find_next(start, begin, new, claims, is_first=is_first, limited=limited)

    def _first_positions(self, claims: GroupClaims, now: float) -> Positions:
        """Return where a new query begins, and claim its partitions. Later calls return the same positions. Store ends
        that brokers told before `now` are asked for again.

        Raises as `partitions_to_read`, `GroupClaims.take` and `OffsetResolver.starting`.
        """
        options = self._options
        listed = partitions_to_read(options, self._session) if self._first is None else self._first
        wanted = self._partitions.present(dict.fromkeys(listed, 0))
        claims.hold(wanted, read_status(options))
        if self._first is None:
            claims.refresh(older_than=now)
            at = {partition: claims.position(partition) for partition in wanted}
            starts = OffsetResolver(options, self._prober, self._long_messages).starting(at)
            self._first, self._first_messages = at_first_messages(self._prober, self._session.cluster, starts)
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
        claims = self._claims_of(end.query)
        end = self._partitions.leave_out_of_plan(begin, end)
        # A partition that left the query before the end is neither claimed nor checked: it may be gone by now.
        begin = {partition: at for partition, at in begin.items() if partition in end.positions}
        has_read = replace(end, positions=begin)
        while True:
            try:
                self._partitions.report_missing(end.positions, has_read, claims)
                present = self._partitions.present(end.positions)
                self._hold_planned(begin, present, claims, is_first=not start.positions)
                stored = self._batch_end.cut_lost_tails(end, begin, present)
                break
            except TransportError as error:
                self._partitions.report_unserved(error, has_read, claims)
        options = self._options.of_topics(self._session.topics)
        to_read = {p: positions for p, positions in ranges(begin, stored.positions).items() if p not in end.empty}
        # A store may lose the range after it answered this check, also while another broker lets it wait.
        ids = ids_between(begin, stored.positions, stored.fingerprints, self._session.cluster)
        snapshots = {
            partition: PartitionSnapshot(
                self._session.broker(partition),
                self._visitor.group,
                self._session.cluster.store_ids(partition),
                self._session.flow_rules,
                self._first_messages.get(partition.store),
            )
            for partition in to_read
        }
        self._batches += 1
        claim = replace(claims.claim, batch=self._batches)
        group = stream_group(options.group)
        return input_partitions(
            options, self._session, claim, to_read, snapshots, group, ids=ids, exclusive=end.exclusive
        )

    def _hold_planned(self, begin: Positions, ends: Positions, claims: GroupClaims, *, is_first: bool) -> None:
        """Claim the partitions of a batch that is planned. Move the group to its begin, but not before the first one: a
        restarted query repeats a batch before it asks for the next one."""
        starts = {partition: at for partition, at in begin.items() if partition in ends}
        if is_first:
            claims.hold(starts, read_status(self._options))
        else:  # an end before the start is an accepted loss
            earlier = {partition: min(at, ends[partition]) for partition, at in starts.items()}
            self._partitions.move_group(claims, earlier, is_latest=True)
        claims.hold(ends)

    def _claims_of(self, query: str) -> GroupClaims:
        if self._claims is None or self._claims.claim.query != query:
            if self._claims is not None:
                self._claims.release()
            options = self._options
            run = int(options.client.clock.time() * 1000)  # later runs are newer, unless the clock was set back
            process = f"{application_id()}-{system.process_id()}"
            claim = ClaimId(query, run=run, batch=1, label=label_of(system.host_name(), process))
            self._claims = GroupClaims(
                self._session, claim, options.claim_timeout, keeps_position=options.commit_offsets
            )
        return self._claims
