"""Offset resolver: asks the brokers for the positions that the user's bounds mean, and for the log ends."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta, timezone

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_set import PartitionSet
from tubemq_spark.source.range_planner import ending_positions, needs_earliest, starting_positions

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class OffsetResolver:
    """Positions are bytes of the index, 28 a message. `claims` must hold the partitions of a call."""

    def __init__(self, options: SourceOptions, session: ConsumerSession) -> None:
        self._options = options
        self._session = session
        self._initial: Positions | None = None

    def initial(self, partitions: PartitionSet, claims: DriverClaims) -> Positions:
        """Return where a new query begins, and claim its partitions. Later calls return the same positions.

        Raises as `partitions_to_read`, `DriverClaims.take` and `starting`.
        """
        first = partitions.first() if self._initial is None else list(partitions.present(self._initial))
        free = [partition for partition in first if not claims.holds(partition)]
        claims.take(dict.fromkeys(free), read_status(self._options))
        if self._initial is None:
            self._initial = self.starting(first, claims)
        return partitions.present(self._initial)

    def starting(self, partitions: Collection[Partition], claims: DriverClaims) -> dict[Partition, int]:
        """Return where each partition is read from, by the options. Raises as `starting_positions`."""
        options = self._options
        if options.starting_at is not None:
            return self.at_time(options.starting_at, partitions, claims)
        group_positions = {partition: claims.position(partition) for partition in partitions}
        earliest = claims.earliest(partitions) if needs_earliest(options.starting) else {}
        return starting_positions(options.starting, group_positions, earliest)

    def ending(self, starts: Positions, claims: DriverClaims) -> dict[Partition, int]:
        """Return where the range of each partition of `starts` ends, by the options. Raises as `ending_positions`."""
        options = self._options
        if options.ending_at is None:
            group_positions = {partition: claims.position(partition) for partition in starts}
            return ending_positions(options.ending, starts, group_positions)
        ends = self.at_time(options.ending_at, starts, claims)
        return {partition: max(starts[partition], end) for partition, end in ends.items()}

    def at_time(
        self, moment: datetime, partitions: Collection[Partition], claims: DriverClaims
    ) -> dict[Partition, int]:
        """Return the position of each partition's first message that is not earlier, see `find_positions`."""
        wanted = dict.fromkeys(partitions, (moment - _EPOCH) // timedelta(microseconds=1))
        earliest = claims.earliest(partitions)
        return find_positions(Prober(self._session, claims), wanted, earliest, self._options.msg_time_zone)


def read_status(options: SourceOptions) -> ReadStatus:
    """Return where brokers let a new group begin, so that its position is right from the start."""
    at_the_end = options.starting == "latest" and options.starting_at is None
    return ReadStatus.FROM_MAX if at_the_end else ReadStatus.NORMAL
