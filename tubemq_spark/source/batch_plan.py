"""The driver's side of a batch read."""

from __future__ import annotations

from tubemq_spark.client.claims import DriverClaims
from tubemq_spark.client.master import ConsumerSession
from tubemq_spark.source.bounds import partitions_to_read, where_to_begin, where_to_end
from tubemq_spark.source.driver import first_claim, new_query_id, read_status
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition import TubeMQInputPartition
from tubemq_spark.source.plan import ADVICE_FOR_BATCHES, ranges
from tubemq_spark.source.tasks import input_partitions


def plan_batch(options: SourceOptions) -> list[TubeMQInputPartition]:
    """The tasks of a batch read. The group stands afterwards where it stood before."""
    session = ConsumerSession(options.client, options.group, options.topics)
    session.register()
    claims = DriverClaims(session, first_claim(new_query_id()), options.claim_timeout)
    try:
        partitions = partitions_to_read(options, session)
        claims.take(dict.fromkeys(partitions), read_status(options))
        starts = where_to_begin(options, session, claims, partitions)
        ends = where_to_end(options, session, claims, starts)
        return input_partitions(
            options,
            session,
            claims.next_batch(),
            ranges(starts, ends),
            lenders={},
            leave_at={partition: claims.standing(partition).group for partition in partitions},
            advice=ADVICE_FOR_BATCHES,
        )
    finally:
        claims.release()
        session.close()
