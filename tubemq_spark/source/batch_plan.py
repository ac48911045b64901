"""The driver's side of a batch read."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from tubemq_spark.client.claims import DriverClaims
from tubemq_spark.client.master import ConsumerSession
from tubemq_spark.errors import NoTimesError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.bounds import partitions_to_read, where_time_is, where_to_begin, where_to_end
from tubemq_spark.source.driver import first_claim, new_query_id, read_status
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition import TubeMQInputPartition
from tubemq_spark.source.plan import Ranges, ranges
from tubemq_spark.source.tasks import input_partitions, knows_offsets

if TYPE_CHECKING:
    from tubemq_spark.source.pushdown import Narrowing

_log = logging.getLogger(__name__)

DISORDER = timedelta(minutes=15)
"""Conditions on `msg_time` find messages whose times are out of order by no more than this."""

_FIRST, _LAST = (moment.replace(tzinfo=timezone.utc) for moment in (datetime.min, datetime.max))


def plan_batch(options: SourceOptions, narrowing: Narrowing | None = None) -> list[TubeMQInputPartition]:
    """The tasks of a batch read, of what `narrowing` leaves. The group stands afterwards where it stood before."""
    session = ConsumerSession(options.client, options.group, options.topics, options.filters)
    session.register()
    claims = DriverClaims(session, first_claim(new_query_id()), options.claim_timeout)
    try:
        partitions = partitions_to_read(options, session)
        claims.take(dict.fromkeys(partitions), read_status(options))
        starts = where_to_begin(options, session, claims, partitions)
        to_read: Ranges = ranges(starts, where_to_end(options, session, claims, starts))
        if narrowing is not None:
            to_read = _narrowed(to_read, narrowing, options, session, claims)
        return input_partitions(
            options,
            session,
            claims.next_batch(),
            to_read,
            doubtful=[partition for partition in to_read if claims.is_doubtful(partition)],
            group_at={partition: claims.standing(partition).group for partition in partitions},
            streaming=False,
            only_types=None if narrowing is None else narrowing.msg_types,
        )
    finally:
        claims.release()
        session.close()


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
            since = where_time_is(narrowing.since - DISORDER, options, session, claims, left)
            left = {partition: (max(start, since[partition]), end) for partition, (start, end) in left.items()}
        if narrowing.until is not None and _LAST - narrowing.until > DISORDER:
            until = where_time_is(narrowing.until + DISORDER, options, session, claims, left)
            left = {partition: (start, min(end, until[partition])) for partition, (start, end) in left.items()}
    except NoTimesError as error:
        _log.warning("conditions on msg_time do not narrow what is read: %s", error)
    return {partition: (start, end) for partition, (start, end) in left.items() if start < end}
