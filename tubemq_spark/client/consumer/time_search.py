# SPDX-License-Identifier: Apache-2.0
"""Finds positions by time (offsets for times, as Kafka clients call it): by the times of messages, which
`protocol.index_search` explains, or without any by what brokers have recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import tzinfo
from typing import cast

from tubemq_spark.client.consumer.offset_history import OffsetHistory
from tubemq_spark.client.consumer.probe import Extent
from tubemq_spark.client.consumer.search_runner import run_searches
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.errors import TimestampMissingError
from tubemq_spark.protocol.index_search import Payload, Search, time_in, whole_minute
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)


def find_positions(
    visitor: Visitor,
    moments: Mapping[Partition, int],
    extents: Mapping[Partition, Extent],
    zone: tzinfo,
    *,
    is_end: bool = False,
    skips_untimed: bool = False,
) -> dict[Partition, int]:
    """Return for each partition of `moments` the position of its first message whose `$msgTime$`, a text in `zone`, is
    not earlier; without such a message the end of its store in `extents`. Where messages have no times, return what the
    broker has recorded, see `OffsetHistory`; `is_end`: a read ends there.

    Moments are in microseconds since the epoch and are rounded down to their minutes. Positions are bytes of the index.
    Raises as `run_searches`, and `TimestampMissingError` if a read would begin behind messages without times, unless it
    `skips_untimed` ones.
    """
    searches = {
        partition: Search(
            whole_minute(moment),
            *extents[partition],
            lambda message: time_in(cast(Payload, message), zone),
        )
        for partition, moment in moments.items()
    }
    history = OffsetHistory(visitor, zone, is_end=is_end)

    def recorded(partition: Partition) -> int | None:
        return history.position(partition, moments[partition], extents[partition])

    def without_times(partition: Partition) -> int | None:
        position = recorded(partition)
        return extents[partition].end if position is None and skips_untimed else position

    found = run_searches(visitor, searches, "a time", without_times)
    untimed = [one for one, search in searches.items() if search.times.untimed and not search.times.are_found]
    known = {partition: position for partition in untimed if (position := recorded(partition)) is not None}
    if known:
        _log.warning(
            "[times-from-history] no message of %s has a $msgTime$: the position is what the broker has recorded, up "
            "to two minutes %s",
            ", ".join(map(str, known)),
            "later" if is_end else "earlier",
        )
    unknown = [partition for partition in untimed if partition not in known]
    if unknown and not is_end and not skips_untimed:
        raise TimestampMissingError(
            f"no message of {', '.join(map(str, unknown))} has a $msgTime$, so it is unknown which of them are late "
            "enough. Let the producers set it, or give positions instead, with 'startingOffsets'; to begin at the end, "
            "set option 'startingOffsetsByTimestampStrategy' to latest"
        )
    if unknown:
        _log.warning(
            "[no-message-times] no message of %s has a $msgTime$: the end of the store is used as its position",
            ", ".join(map(str, unknown)),
        )
    return {**found, **known}
