"""The driver's side of a streaming query, between Spark's calls and the cluster.

It is a member of the group at the master and holds the group's partitions at the brokers (`DriverClaims`). Each
question for the latest offset says where Spark has got to: the group is moved there, and the same round tells where the
stores end.
"""

from __future__ import annotations

import logging
import platform
import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.errors import ConfigError, DataLossError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.empty_partitions import without_messages
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.input_partition_planner import counted_stores, input_partitions
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.offset_resolver import partitions_to_read, starting_positions_of
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.poll_interval import PollInterval
from tubemq_spark.source.range_planner import Ranges, lost_tails, ranges, store_of
from tubemq_spark.source.rate_limit import RateLimit
from tubemq_spark.source.store_check import ids_between
from tubemq_spark.source.truncation_check import TruncationCheck

_log = logging.getLogger(__name__)

_HIDDEN_FOR = 20.0  # seconds in which a new master's lists fill up (seen: 13)
_LOOK_AGAIN_AFTER = 0.5  # seconds
_GET_READY = 2.0  # seconds a broker has to serve a partition that is new in the lists, before it is tried later


def new_query_id() -> str:
    return secrets.token_hex(8)


def partition_of(loss: DataLossError) -> Partition:
    return Partition(loss.broker_id, loss.topic, loss.partition)


def first_claim(query: str) -> ClaimId:
    """The driver's claim at the start of a run of `query`; a later run's is newer, unless the clock was set back."""
    return ClaimId(query, run=time.time_ns() // 1_000_000, batch=1, label=label_of(platform.node()))


def read_status(options: SourceOptions) -> ReadStatus:
    """Where a group that is new begins, so that nobody finds it at the wrong end."""
    at_the_end = options.starting == "latest" and options.starting_at is None
    return ReadStatus.FROM_MAX if at_the_end else ReadStatus.NORMAL


class _Answer(NamedTuple):
    """What `latest` found out: asked from `start`, the batch ends at `end`, the stores at `heads`."""

    start: StreamOffset
    limited: bool
    end: StreamOffset
    heads: StreamOffset


class MicroBatchPlanner:
    """One run of a streaming query. Not thread-safe: Spark calls from one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = frozenset(options.topics)
        self._session = ConsumerSession(options.client, options.group, options.topics, options.filters)
        self._session.register()
        self._claims: DriverClaims | None = None
        self._query = ""
        self._initial: StreamOffset | None = None
        self._first: Positions | None = None
        self._admission = RateLimit(options.min_offsets, options.max_offsets, options.max_delay)
        self._bounded = False  # whether the run ends at `_target`, the stores' ends at its first look
        self._target: Positions | None = None
        self._gone: dict[Partition, int] = {}  # what the cluster had once and has no more, which was told; read up to
        self._planned: tuple[StreamOffset, StreamOffset, list[TubeMQInputPartition]] | None = None  # the last batch
        self._lent_at: dict[Partition, int] = {}  # where the group is to stand in what the last plan lent
        self._unready: set[Partition] = set()  # new ones that could not be claimed yet
        self._committed: dict[Partition, int] = {}  # up to where Spark is known to have committed
        self._accepted: dict[Partition, DataLossError] = {}  # lost tails that the next batch's end accepts
        self._metadata_due = time.monotonic() + options.metadata_interval
        self._answer: _Answer | None = None
        self._pace = PollInterval(options.heads_interval)
        self._checked: StreamOffset | None = None  # the last end of a batch that is known to have stood
        self._empty: tuple[StreamOffset | None, frozenset[Partition]] = None, frozenset()  # in the batch with that end

    def __repr__(self) -> str:
        return f"<StreamDriver of query {self._query}: {self._claims!r}>"

    def initial(self) -> StreamOffset:
        """What a new query begins with: an id, but no positions.

        Spark asks for it before a restarted query repeats its first batch, too. Nothing is looked up for that, nor
        claimed under an id that is not the query's: the end of the first batch tells both, see `plan`.
        """
        if self._initial is None:
            self._initial = StreamOffset(new_query_id(), {})
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """`start` is what Spark has committed, or the initial offset: the group moves there. Gives where the next
        micro-batch ends, `limited` by the options or at the stores' ends; `start` itself when there is nothing new. The
        brokers are asked at most every `headsIntervalMs`, and less often while nothing arrives (see `PollInterval`).

        Raises as `starting_positions_of` and `DriverClaims.take`, and `DataLossError` when a store ends before the
        position reached or a partition is no more, unless the options say to go on.
        """
        now = time.monotonic()
        last = self._answer
        is_the_same = last is not None and (last.start, last.limited) == (start, limited)
        if last is not None and is_the_same and not self._pace.is_due:
            return last.end
        begin = self._without_left_topics(start)
        claims = self._claims_of(start.query)
        while True:
            try:
                end, heads = self._look(begin, claims, now, limited)
                break
            except TransportError as trouble:
                if not trouble.unserved:
                    raise
                self._judge(trouble.unserved, begin, trouble)
        self._answer = _Answer(start, limited, end, heads)
        self._pace.asked(has_news=not is_the_same or heads.positions != start.positions)
        return end

    def _look(
        self, start: StreamOffset, claims: DriverClaims, now: float, limited: bool
    ) -> tuple[StreamOffset, StreamOffset]:
        """The end of the next micro-batch, and where the stores end."""
        if start.positions or not self._is_initial(start):
            self._judge(start.positions.keys() - set(self._partitions()), start)
            begin: Positions = self._present(start.positions)
            first = None
            self.confirm(start)
        else:
            begin = first = self._first_positions(claims)
        claims.ask(heard_since=now)
        heads = {partition: claims.standing(partition).end for partition in begin}
        # What is new enters with where it begins, to be read from the batch after on, so that the checkpoint knows both
        # ends of every range.
        added = self._new_partitions(begin) if self._target is None else {}
        ends = heads
        if self._bounded:
            if self._target is None:
                self._target = {**heads, **{partition: claims.standing(partition).end for partition in added}}
            ends = {partition: min(end, self._target.get(partition, end)) for partition, end in heads.items()}
        if limited:
            whole = {partition: end for partition, end in ends.items() if end >= begin[partition]}
            ends = {**ends, **self._admission.end({p: begin[p] for p in whole}, whole, to_the_end=self._bounded)}
        first_look = self._checked is None
        empty = without_messages(self._session, claims, begin, ends)
        check = TruncationCheck(Prober(self._session, claims))
        lost, fingerprints = check.check(begin, ends, heads, start.fingerprints, idle_too=first_look, empty=empty)
        self._accept_losses(lost_tails(begin, lost, heads), claims)
        ends = {**ends, **lost, **added}
        end = start
        if ends != start.positions:
            counted = counted_stores(self._session, ends)
            end = StreamOffset(start.query, ends, initial=first, fingerprints=fingerprints, counted=counted)
        self._checked = end
        self._empty = end, empty
        return end, StreamOffset(start.query, {**heads, **added})

    def stop_at_the_next_ends(self) -> None:
        """What the stores hold when `latest` is asked next is all that this run reads."""
        self._bounded = True

    @property
    def last_answer(self) -> StreamOffset | None:
        """Where the stores ended when the brokers were last asked."""
        return None if self._answer is None else self._answer.heads

    def confirm(self, offset: StreamOffset) -> None:
        """Moves the group to `offset`, which Spark has committed: forwards only, and each partition once. Where the
        group is not to follow, its partitions are claimed where it stands.
        """
        claims = self._claims_of(offset.query)
        positions = self._without_lost_tails(self._present(offset.positions))
        free = [partition for partition in positions if not claims.holds(partition)]
        if not self._options.commit_offsets:
            claims.take(dict.fromkeys(free))
            return
        # What this run read stands at the start of its last batch. What it has not touched yet may stand anywhere:
        # look.
        untouched = [partition for partition in free if partition not in self._committed]
        claims.take(dict.fromkeys(untouched))
        forward: dict[Partition, int | None] = {}
        for partition, position in positions.items():
            if partition in untouched:
                if position != claims.standing(partition).group:
                    forward[partition] = position  # the checkpoint decides, be the group ahead
            elif partition in free:
                forward[partition] = max(position, self._committed[partition])
            elif not position <= claims.standing(partition).group <= claims.standing(partition).end:
                forward[partition] = position  # a group beyond the end is one that a crash left there
        claims.take(forward)
        for partition, position in positions.items():
            self._committed[partition] = max(position, self._committed.get(partition, 0))

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[TubeMQInputPartition]:
        """The tasks for [start, end), to which the partitions' claims are lent.

        Spark asks once for each scan of the micro-batch, which may have several, as the two of `df.union(df)`. Tasks of
        the first may be reading when it asks for the second. So the second plan is the first one, and claims nothing.
        """
        if self._planned is None or self._planned[:2] != (start, end):
            self._planned = start, end, self._plan(start, end)
        return self._planned[2]

    def _plan(self, start: StreamOffset, end: StreamOffset) -> list[TubeMQInputPartition]:
        """`start` has no positions when this is the first batch. `end` knows where it began, and whose it is: the
        start's id is another one when the batch is repeated after a restart.
        """
        begin = start.positions or end.initial or ({} if start.query == end.query else None)
        if begin is None or (start.positions and start.query != end.query):
            raise ConfigError(
                f"the checkpoint mixes offsets of two queries ({start.query} and {end.query}): use one checkpoint a "
                "query"
            )
        end = self._without_left_topics(end)
        claims = self._claims_of(end.query)
        begun = replace(end, positions=begin)
        # Marks, which prove more than ids, were looked at just now where an earlier run thought the batch out.
        ids = ids_between(begin, self._present(end.positions), end.fingerprints) if end == self._checked else {}
        while True:
            try:
                self._judge(end.positions.keys() - set(self._partitions()), begun)
                to_read = ranges(begin, self._what_still_stands(end, claims))
                group_positions = self._where_others_left_it(to_read, claims)
                break
            except TransportError as trouble:
                if not trouble.unserved:
                    raise
                self._judge(trouble.unserved, begun, trouble)
        looked_at, empty = self._empty
        if looked_at == end:
            to_read = {partition: positions for partition, positions in to_read.items() if partition not in empty}
        claims.lend(to_read)
        for partition, (position, _) in to_read.items():
            self._committed.setdefault(partition, position)
        self._lent_at = {
            partition: group_positions.get(partition, position) for partition, (position, _) in to_read.items()
        }
        self._answer = None
        return input_partitions(
            self._options,
            self._session,
            claims.next_batch(),
            to_read,
            previous_client_ids={partition: claims.client_id(partition) for partition in to_read},
            doubtful=[partition for partition in to_read if claims.is_doubtful(partition)],
            group_positions=group_positions,
            ids=ids,
            counted=end.counted,
        )

    def _where_others_left_it(self, to_read: Ranges, claims: DriverClaims) -> dict[Partition, int]:
        """Where the group stands that is not to follow."""
        if self._options.commit_offsets:
            return {}
        claims.take({partition: None for partition in to_read if not claims.holds(partition)})
        return {partition: claims.standing(partition).group for partition in to_read}

    def _is_initial(self, start: StreamOffset) -> bool:
        """Whether the query has not begun; an offset without positions may also be all that losses left of it."""
        return self._planned is None and self._initial is not None and start.query == self._initial.query

    def stop(self) -> None:
        """Gives the claims back and leaves the group, which stays where it was confirmed. May be called twice."""
        if self._claims is not None:
            lent = {partition: at for partition, at in self._lent_at.items() if not self._claims.holds(partition)}
            self._claims.restore(self._present(lent))  # a task that was killed cannot put the group back
            self._claims.release()
            self._claims = None
        self._session.close()

    def _claims_of(self, query: str) -> DriverClaims:
        if self._claims is None or query != self._query:
            if self._claims is not None:
                self._claims.release()
            self._query = query
            self._claims = DriverClaims(self._session, first_claim(query), self._options.claim_timeout)
        return self._claims

    def _without_left_topics(self, offset: StreamOffset) -> StreamOffset:
        """A topic of the checkpoint that is not to be read any more is a loss, too."""
        left_out = {partition for partition in offset.positions if not self._is_wanted(partition)}
        if not left_out:
            return offset
        names = ", ".join(sorted({partition.topic for partition in left_out}))
        if self._options.loss_policy.fail:
            raise ConfigError(
                f"the checkpoint has positions of partitions of {names} that options 'subscribe' or 'assign' do not "
                "name any more: name them again, use another checkpoint, or set option 'failOnDataLoss' to false to go "
                "on without them"
            )
        if not left_out <= self._gone.keys():
            _log.warning("%s is not read any more: options 'subscribe' and 'assign' do not name it", names)
            self._gone |= {partition: offset.positions[partition] for partition in left_out}
        return replace(offset, positions={p: at for p, at in offset.positions.items() if p not in left_out})

    def _is_wanted(self, partition: Partition) -> bool:
        if self._options.assigned is not None:
            return partition in self._options.assigned
        return partition.topic in self._topics

    def _first_positions(self, claims: DriverClaims) -> Positions:
        """Where a new query begins, as the options say; looked up once."""
        found = partitions_to_read(self._options, self._session) if self._first is None else list(self._first)
        partitions = [partition for partition in found if partition not in self._gone]
        free = [partition for partition in partitions if not claims.holds(partition)]
        claims.take(dict.fromkeys(free), read_status(self._options))
        if self._first is None:
            self._first = starting_positions_of(self._options, self._session, claims, partitions)
        return self._present(self._first)

    def _partitions(self) -> list[Partition]:
        """Those to read that the cluster is known to have."""
        found = (p for topic in self._options.topics for p in self._session.cluster.partitions(topic))
        return [partition for partition in found if self._is_wanted(partition)]

    def _new_partitions(self, known: Positions) -> Positions:
        """Partitions that the cluster has and `known` has not, with where they begin. One that its broker does not
        serve yet, or not any more, is tried again when the lists are."""
        if self._claims is None:
            return {}
        is_due = time.monotonic() >= self._metadata_due
        if is_due:
            self._session.refresh()
            self._metadata_due = time.monotonic() + self._options.metadata_interval
        waiting = set() if is_due else self._gone.keys() | self._unready
        added = [partition for partition in self._partitions() if partition not in known and partition not in waiting]
        if not added:
            return {}
        try:
            self._claims.take(dict.fromkeys(added), retry_for=min(_GET_READY, self._options.client.retry_for))
        except TransportError as trouble:
            if not trouble.unserved:
                raise
            _log.log(logging.INFO if set(trouble.unserved) <= self._unready | self._gone.keys() else logging.WARNING,
                     "new partitions cannot be read yet: %s", trouble)  # fmt: skip
            self._unready.update(trouble.unserved)
            added = [partition for partition in added if partition not in trouble.unserved]
        if not added:
            return {}
        _log.info("new partitions, to be read from their beginning: %s", ", ".join(map(str, added)))
        earliest = self._claims.earliest(added)
        back = {partition: self._gone.pop(partition) for partition in added if partition in self._gone}
        self._unready.difference_update(added)
        for partition, position in back.items():  # a store that ends before that is another one
            if earliest[partition] < position <= self._claims.standing(partition).end:
                _log.info("%s is there again, and read on from %d", partition, position)
                earliest[partition] = position
        return earliest

    # What is lost

    def _what_still_stands(self, end: StreamOffset, claims: DriverClaims) -> dict[Partition, int]:
        """The ends of a batch that is planned. Stores may have lost the tail of one that an earlier run thought out;
        that is accepted when the end of the next batch is asked for."""
        ends = self._present(end.positions)
        if end == self._checked or not end.fingerprints:
            return ends
        suspects = [partition for partition in ends if store_of(partition) in end.fingerprints]
        claims.take(dict.fromkeys(suspects))
        lost = TruncationCheck(Prober(self._session, claims)).lost_since(ends, end.fingerprints, suspects)
        heads = {partition: claims.standing(partition).end for partition in lost}
        losses = lost_tails(ends, lost, heads)
        if self._options.loss_policy.fail:  # where the store is too short, its readers tell exactly what is lost
            losses = [loss for loss in losses if heads[partition_of(loss)] >= loss.asked]
            lost = {partition_of(loss): loss.offered for loss in losses}
        for loss in losses:
            self._options.loss_policy.report(loss)
        self._checked = None if lost else end
        return {**ends, **lost}

    def _accept_losses(self, losses: list[DataLossError], claims: DriverClaims) -> None:
        for loss in losses:
            self._options.loss_policy.report(loss)
        for loss in losses:
            partition = partition_of(loss)
            claims.take({partition: loss.offered if self._options.commit_offsets else None})
            self._committed[partition] = loss.offered
            self._accepted[partition] = loss

    def _without_lost_tails(self, positions: Positions) -> dict[Partition, int]:
        """What Spark has committed, as far as it still stands. Spark tells a position once more after its loss was
        accepted.
        """
        found = dict(positions)
        for partition, loss in list(self._accepted.items()):
            if found.get(partition) == loss.asked:
                found[partition] = loss.offered
            elif partition in found:
                del self._accepted[partition]  # the batch behind the loss is committed
        return found

    def _judge(
        self, suspects: Collection[Partition], offset: StreamOffset, trouble: TransportError | None = None
    ) -> None:
        """Whether partitions that are not served, or not listed, are gone for good. The lists of a new master are short
        at first, so it is asked for a while. Raises `trouble` when one of them is there, or when no master answers: the
        time to retry was used up for it.
        """
        gone = {partition for partition in suspects if partition not in self._gone}
        if not gone:
            if trouble is not None:
                raise trouble
            return
        deadline = Deadline(min(_HIDDEN_FOR, self._options.client.retry_for))
        while True:  # it is asked once at least, and when the time is over
            is_last = deadline.passed
            # A master goes on listing a topic that was removed, but its brokers know it no more.
            gone -= self._listed(trouble) - (self._claims.unknown if self._claims and trouble else frozenset())
            if not gone or is_last:
                break
            time.sleep(min(_LOOK_AGAIN_AFTER, deadline.left))
        if not gone:
            if trouble is not None:
                raise trouble
            return
        self._session.forget_unlisted()
        for partition in sorted(gone):
            position = offset.positions.get(partition, -1)
            loss = DataLossError(
                f"{partition}: the cluster does not have the partition any more: its broker or topic was removed, or "
                f"option 'tubemq.master' is another cluster's; the query has read up to {position}, what came behind "
                "is gone",
                topic=partition.topic,
                broker_id=partition.broker_id,
                partition=partition.partition_id,
                asked=position,
                offered=-1,
            )
            self._options.loss_policy.report(loss)
        self._gone |= {partition: offset.positions.get(partition, 0) for partition in gone}
        if self._claims is not None:
            self._claims.drop(gone)
        if trouble is not None and not set(suspects) <= self._gone.keys():
            raise trouble

    def _listed(self, trouble: TransportError | None) -> set[Partition]:
        """What the master lists now; raises `trouble`, when there is one, without an answer."""
        try:
            return self._session.listed(once=trouble is not None)
        except TransportError as error:
            if trouble is None:
                raise
            raise TransportError(f"{trouble}. No master answers either: {error}", unserved=trouble.unserved) from None

    def _present(self, positions: Positions) -> dict[Partition, int]:
        return {partition: position for partition, position in positions.items() if partition not in self._gone}
