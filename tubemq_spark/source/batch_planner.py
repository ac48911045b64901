"""The driver's side of a batch read."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.errors import NoTimesError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.application_id import planner_claim
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.input_partition_planner import input_partitions, knows_offsets
from tubemq_spark.source.micro_batch_planner import read_status
from tubemq_spark.source.offset_resolver import (
    ending_positions_of,
    partitions_to_read,
    positions_at_time,
    starting_positions_of,
)
from tubemq_spark.source.options import Bound, SourceOptions
from tubemq_spark.source.range_planner import Ranges, check_partitions, ranges

if TYPE_CHECKING:
    from tubemq_spark.source.pushdown import Narrowing

_log = logging.getLogger(__name__)

DISORDER = timedelta(minutes=15)
"""Conditions on `msg_time` find messages whose times are out of order by no more than this."""

_FIRST, _LAST = (moment.replace(tzinfo=timezone.utc) for moment in (datetime.min, datetime.max))


def plan_batch(options: SourceOptions, narrowing: Narrowing | None = None) -> list[TubeMQInputPartition]:
    """The tasks of a batch read, of what `narrowing` leaves. The group stands afterwards where it stood before.

    Another scan of the application may hold some of the partitions at the moment, and it may be a plan as well. So this
    takes the partitions that it can have, learns what it needs, gives them back, and only then waits for the others.
    """
    session = ConsumerSession(options.client, options.group, options.topics, options.filters)
    session.register()
    claims = DriverClaims(session, planner_claim(), options.claim_timeout)
    waiting = claims.new_waiting()
    to_read: dict[Partition, tuple[int, int]] = {}
    group_positions: dict[Partition, int] = {}
    doubtful: set[Partition] = set()
    try:
        partitions = partitions_to_read(options, session)
        _check_bounds(options, partitions)
        left = set(partitions)
        while left:
            taken = claims.take_some(left, waiting, read_status(options))
            to_read |= _ranges_of(taken, options, session, claims, narrowing)
            group_positions |= {partition: claims.standing(partition).group for partition in taken}
            doubtful |= {partition for partition in taken if claims.is_doubtful(partition)}
            claims.release()
            left -= taken
        return input_partitions(
            options,
            session,
            claims.claim,
            {partition: to_read[partition] for partition in partitions if partition in to_read},
            doubtful=doubtful,
            group_positions=group_positions,
            only_types=None if narrowing is None else narrowing.msg_types,
        )
    finally:
        claims.release()
        session.close()


def _check_bounds(options: SourceOptions, partitions: Collection[Partition]) -> None:
    """Explicit positions name all partitions, of which there may be some at a time later."""
    for option, bound in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if isinstance(bound, dict):
            check_partitions(option, bound, partitions)


def _ranges_of(
    taken: Collection[Partition],
    options: SourceOptions,
    session: ConsumerSession,
    claims: DriverClaims,
    narrowing: Narrowing | None,
) -> Ranges:
    """What to read of partitions that `claims` hold."""
    options = replace(options, starting=_part(options.starting, taken), ending=_part(options.ending, taken))
    starts = starting_positions_of(options, session, claims, taken)
    to_read: Ranges = ranges(starts, ending_positions_of(options, session, claims, starts))
    return to_read if narrowing is None else _narrowed(to_read, narrowing, options, session, claims)


def _part(bound: Bound, partitions: Collection[Partition]) -> Bound:
    if not isinstance(bound, dict):
        return bound
    return {partition: position for partition, position in bound.items() if partition in partitions}


def _narrowed(
    to_read: Ranges, narrowing: Narrowing, options: SourceOptions, session: ConsumerSession, claims: DriverClaims
) -> Ranges:
    left: dict[Partition, tuple[int, int]] = {}
    for partition, (start, end) in to_read.items():
        if narrowing.includes(partition):
            if knows_offsets(options, session, partition):
                start, end = narrowing.cut(start, end)
            elif narrowing.bounds_offset:
                continue  # no row has an offset here
            left[partition] = start, end
    try:
        if narrowing.since is not None and narrowing.since - _FIRST > DISORDER:
            since = positions_at_time(narrowing.since - DISORDER, options, session, claims, left)
            left = {partition: (max(start, since[partition]), end) for partition, (start, end) in left.items()}
        if narrowing.until is not None and _LAST - narrowing.until > DISORDER:
            until = positions_at_time(narrowing.until + DISORDER, options, session, claims, left)
            left = {partition: (start, min(end, until[partition])) for partition, (start, end) in left.items()}
    except NoTimesError as error:
        _log.warning("conditions on msg_time do not narrow what is read: %s", error)
    return {partition: (start, end) for partition, (start, end) in left.items() if start < end}
