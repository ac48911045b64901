"""The driver's side of a streaming query, between Spark's calls and the cluster.

It is a member of the group at the master and holds the group's partitions at the brokers (`DriverClaims`). Each
question for the latest offset says where Spark has got to: the group is moved there, and the same round tells where the
stores end.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping

from tubemq_spark.client.claims import DriverClaims, Standing
from tubemq_spark.client.consumer import RangeToRead
from tubemq_spark.client.master import ConsumerSession
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.consume import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.options import Bound, SourceOptions
from tubemq_spark.source.partition import TubeMQInputPartition
from tubemq_spark.source.plan import ending_positions, needs_earliest, next_end, ranges, starting_positions

_log = logging.getLogger(__name__)


def new_query_id() -> str:
    return secrets.token_hex(8)


def first_claim(query: str) -> ClaimId:
    """The driver's claim at the start of a run of `query`; a later run's is newer."""
    return ClaimId(query, run=time.time_ns() // 1_000_000, batch=1)


def read_status(starting: Bound) -> ReadStatus:
    """Where a group that is new begins, so that nobody finds it at the wrong end."""
    return ReadStatus.FROM_MAX if starting == "latest" else ReadStatus.NORMAL


class StreamDriver:
    """One run of a streaming query. Not thread-safe: Spark calls from one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._session = ConsumerSession(options.client, options.group, options.topics)
        self._session.register()
        self._claims: DriverClaims | None = None
        self._query = ""
        self._initial: StreamOffset | None = None
        self._first: Positions | None = None
        self._bounded = False  # whether the run ends at `_target`, the stores' ends at its first look
        self._target: Positions | None = None
        self._committed: dict[Partition, int] = {}  # up to where Spark is known to have committed
        self._metadata_due = time.monotonic() + options.metadata_interval
        self._answer: tuple[StreamOffset, StreamOffset, float] | None = None  # asked from, found, when

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

    def latest(self, start: StreamOffset) -> StreamOffset:
        """`start` is what Spark has committed, or the initial offset: the group moves there. Gives where the stores
        end; `start` itself when there is nothing new. The brokers are asked at most every `headsIntervalMs`.

        Raises as `starting_positions`, `next_end` and `DriverClaims.take`.
        """
        now = time.monotonic()
        if (
            self._answer is not None
            and self._answer[0] == start
            and now - self._answer[2] < self._options.heads_interval
        ):
            return self._answer[1]
        self._check_topics(start)
        claims = self._claims_of(start.query)
        if start.positions:
            begin, first = start.positions, None
            self.confirm(start)
        else:
            begin = first = self._first_positions(claims)
        claims.ask(heard_since=now)
        added = self._new_partitions(begin) if self._target is None else {}
        ends = {partition: claims.standing(partition).end for partition in (*begin, *added)}
        if self._bounded:
            self._target = self._target or ends
            ends = {partition: min(end, self._target[partition]) for partition, end in ends.items()}
        positions = next_end(begin, ends, added)
        end = start if positions == start.positions else StreamOffset(start.query, positions, initial=first)
        self._answer = (start, end, time.monotonic())
        return end

    def stop_at_the_next_ends(self) -> None:
        """What the stores hold when `latest` is asked next is all that this run reads."""
        self._bounded = True

    @property
    def last_answer(self) -> StreamOffset | None:
        """Where the stores ended when the brokers were last asked."""
        return None if self._answer is None else self._answer[1]

    def confirm(self, offset: StreamOffset) -> None:
        """Moves the group to `offset`, which Spark has committed: forwards only, and each partition once."""
        claims = self._claims_of(offset.query)
        free = [partition for partition in offset.positions if not claims.holds(partition)]
        # What this run read stands at the start of its last batch. What it has not touched yet may stand anywhere:
        # look.
        untouched = [partition for partition in free if partition not in self._committed]
        claims.take(dict.fromkeys(untouched))
        forward: dict[Partition, int | None] = {}
        for partition, position in offset.positions.items():
            if partition in free and partition not in untouched:
                forward[partition] = max(position, self._committed[partition])
            elif position > claims.standing(partition).group:
                forward[partition] = position
        claims.take(forward)
        for partition, position in offset.positions.items():
            self._committed[partition] = max(position, self._committed.get(partition, 0))

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[TubeMQInputPartition]:
        """The tasks for [start, end), to which the partitions' claims are lent.

        `start` has no positions when this is the first batch; `end` knows where it began, and whose it is: the start's
        id is another one when the batch is repeated after a restart.
        """
        begin = start.positions or end.initial
        if begin is None or (start.positions and start.query != end.query):
            raise ConfigError(
                f"the checkpoint mixes offsets of two queries ({start.query} and {end.query}): use one checkpoint a "
                "query"
            )
        self._check_topics(end)
        claims = self._claims_of(end.query)
        to_read = ranges(begin, end.positions)
        lenders = {partition: claims.client_id(partition) for partition in to_read}
        claims.lend(to_read)
        for partition, (position, _) in to_read.items():
            self._committed.setdefault(partition, position)
        claim = claims.next_batch()
        self._answer = None
        return [
            TubeMQInputPartition(
                settings=self._options.client,
                group=self._options.group,
                claim=claim,
                wanted=RangeToRead(
                    broker=self._session.broker(partition),
                    partition=partition,
                    start=position,
                    end=until,
                    sole=self._session.cluster.is_sole(partition),
                    lender=lenders[partition],
                ),
                visit_token=self._session.visit_token,
                claim_timeout=self._options.claim_timeout,
            )
            for partition, (position, until) in to_read.items()
        ]

    def stop(self) -> None:
        """Gives the claims back and leaves the group, which stays where it was confirmed. May be called twice."""
        if self._claims is not None:
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

    def _check_topics(self, offset: StreamOffset) -> None:
        if left_out := sorted({partition.topic for partition in offset.positions} - set(self._options.topics)):
            raise ConfigError(
                f"the checkpoint has positions of topic {', '.join(left_out)}, which option 'subscribe' does not name "
                "any more: subscribe to it again, or use another checkpoint"
            )

    def _first_positions(self, claims: DriverClaims) -> Positions:
        """Where a new query begins, as `startingOffsets` says; looked up once."""
        partitions = self._partitions() if self._first is None else list(self._first)
        free = [partition for partition in partitions if not claims.holds(partition)]
        claims.take(dict.fromkeys(free), read_status(self._options.starting))
        if self._first is None:
            standings = {partition: claims.standing(partition) for partition in partitions}
            earliest = claims.earliest(partitions) if needs_earliest(self._options.starting) else {}
            self._first = starting_positions(self._options.starting, standings, earliest)
        return self._first

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self._options.topics for partition in self._session.cluster.partitions(topic)]

    def _new_partitions(self, known: Positions) -> Positions:
        """Partitions that the cluster has and `known` has not, with where they begin."""
        if time.monotonic() >= self._metadata_due:
            self._session.refresh()
            self._metadata_due = time.monotonic() + self._options.metadata_interval
        added = [partition for partition in self._partitions() if partition not in known]
        if not added or self._claims is None:
            return {}
        _log.info("new partitions, to be read from their beginning: %s", ", ".join(map(str, added)))
        self._claims.take(dict.fromkeys(added))
        return self._claims.earliest(added)


def plan_batch(options: SourceOptions) -> list[TubeMQInputPartition]:
    """The tasks of a batch read. The group stands afterwards where it stood before."""
    session = ConsumerSession(options.client, options.group, options.topics)
    session.register()
    claims = DriverClaims(session, first_claim(new_query_id()), options.claim_timeout)
    try:
        partitions = [partition for topic in options.topics for partition in session.cluster.partitions(topic)]
        claims.take(dict.fromkeys(partitions), read_status(options.starting))
        standings: Mapping[Partition, Standing] = {partition: claims.standing(partition) for partition in partitions}
        earliest = claims.earliest(partitions) if needs_earliest(options.starting) else {}
        starts = starting_positions(options.starting, standings, earliest)
        to_read = ranges(starts, ending_positions(options.ending, starts, standings))
        claim = claims.next_batch()
        return [
            TubeMQInputPartition(
                settings=options.client,
                group=options.group,
                claim=claim,
                wanted=RangeToRead(
                    broker=session.broker(partition),
                    partition=partition,
                    start=position,
                    end=until,
                    sole=session.cluster.is_sole(partition),
                    leave_at=standings[partition].group,
                ),
                visit_token=session.visit_token,
                claim_timeout=options.claim_timeout,
            )
            for partition, (position, until) in to_read.items()
        ]
    finally:
        claims.release()
        session.close()
