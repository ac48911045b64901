"""The user's bounds as positions: asks the brokers what `plan` needs to know."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta, timezone

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.range_planner import ending_positions, needs_earliest, starting_positions

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def partitions_to_read(options: SourceOptions, session: ConsumerSession) -> list[Partition]:
    """Those of the topics that the master tells of, or those assigned. `ConfigError` for an assigned one that is not
    there."""
    found = [partition for topic in options.topics for partition in session.cluster.partitions(topic)]
    if options.assigned is None:
        return found
    if unknown := sorted(options.assigned - set(found)):
        raise ConfigError(
            f"option 'assign' names {', '.join(map(str, unknown))} (brokerId:topic:partitionId), which the cluster "
            f"does not have: it has {', '.join(map(str, found))}"
        )
    return sorted(options.assigned)


def starting_positions_of(
    options: SourceOptions, session: ConsumerSession, claims: DriverClaims, partitions: Collection[Partition]
) -> dict[Partition, int]:
    """Where each of the partitions, which `claims` holds, is read from. Raises as `starting_positions`."""
    if options.starting_at is not None:
        return positions_at_time(options.starting_at, options, session, claims, partitions)
    standings = {partition: claims.standing(partition) for partition in partitions}
    earliest = claims.earliest(partitions) if needs_earliest(options.starting) else {}
    return starting_positions(options.starting, standings, earliest)


def ending_positions_of(
    options: SourceOptions, session: ConsumerSession, claims: DriverClaims, starts: Positions
) -> dict[Partition, int]:
    """Where the range of each partition of `starts` ends. Raises as `ending_positions`."""
    standings = {partition: claims.standing(partition) for partition in starts}
    if options.ending_at is None:
        return ending_positions(options.ending, starts, standings)
    ends = positions_at_time(options.ending_at, options, session, claims, starts)
    return {partition: max(starts[partition], end) for partition, end in ends.items()}


def positions_at_time(
    moment: datetime,
    options: SourceOptions,
    session: ConsumerSession,
    claims: DriverClaims,
    partitions: Collection[Partition],
) -> dict[Partition, int]:
    """The position of each partition's first message that is not earlier than `moment`, see `find_positions`."""
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    earliest = claims.earliest(partitions)
    moments = dict.fromkeys(partitions, microseconds)
    return find_positions(Prober(session, claims), moments, earliest, options.msg_time_zone)
