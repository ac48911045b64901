# SPDX-License-Identifier: Apache-2.0
"""Positions at past moments, as brokers have recorded them: for topics whose messages have no times.

Once a minute, a broker writes a message for each group that it knows to its own topic `__offset_history__`: the time,
and where the stores end that the group reads (wire: OffsetRecordService). Release 1.2 writes times in the zone of the
broker; 2.1 and later write other names, and milliseconds since the epoch (wire: OffsetHistoryInfo).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any, NamedTuple, cast

from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.client.consumer.search_runner import run_searches
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.errors import ProtocolError, TubeMQError
from tubemq_spark.protocol.constants import OFFSET_HISTORY, STORE_PARTITION_BASE
from tubemq_spark.protocol.fetched_batch import StoredMessage
from tubemq_spark.protocol.index_search import Payload, Search
from tubemq_spark.protocol.message import parse_msg_time, split_payload
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_PARTITIONS = 10  # of the topic on each broker, in one store
_SECOND = 1_000_000  # microseconds, as all times here
_FARTHEST = 120 * _SECOND  # from the moment that is asked for
_MAKING = 5 * _SECOND  # a broker looks at its stores at most so long before the time that it writes
_WRONG_ZONE = 600 * _SECOND  # between the last record and now


class _StoreEnd(NamedTuple):
    moment: int
    topic: str
    store_id: int
    end: int  # bytes of the index


class OffsetHistory:
    """Finds what brokers have recorded, with the visits of `visitor`. Times without a zone are in `zone`."""

    def __init__(self, visitor: Visitor, zone: tzinfo, *, is_end: bool = False) -> None:
        self._visitor = visitor
        self._zone = zone
        self._is_end = is_end
        self._found: dict[tuple[int, int], set[_StoreEnd]] = {}  # by broker and moment

    def position(self, partition: Partition, moment: int, extent: Extent) -> int | None:
        """Return the end of the store at most two minutes before `moment`, or behind it if `is_end`. Return None if the
        broker does not say it. Moments are in microseconds since the epoch.
        """
        try:
            return self._position(partition, moment, extent)
        except TubeMQError as error:
            _log.info("%s: the broker's records cannot be read: %s", partition, error)
            return None

    def _position(self, partition: Partition, moment: int, extent: Extent) -> int | None:
        now = int(self._visitor.settings.clock.time() * _SECOND)
        latest = max((one.moment for one in self._records(partition.broker_id, now)), default=None)
        if latest is None or abs(latest - now) > _WRONG_ZONE:
            if latest is not None:
                _log.warning(
                    "[records-not-of-today] broker %d has recorded where its stores ended last at %s in zone %s, which "
                    "is not now, so its records cannot be used: set option 'msgTimeZone' to the zone of the brokers",
                    partition.broker_id,
                    datetime.fromtimestamp(latest / _SECOND, self._zone).isoformat(" ", "minutes"),
                    self._zone,
                )
            return None
        if self._is_end and moment > now - _FARTHEST:
            return extent.end
        ends = self._ends_of(partition, moment)
        if self._is_end:
            near = [one for one in ends if moment + _MAKING <= one <= moment + _FARTHEST]
            return max(extent.begin, min(ends[min(near)], extent.end)) if near else None
        # A record has whole seconds, so it may be of up to a second later.
        near = [one for one in ends if moment - _FARTHEST <= one <= moment - _SECOND]
        if not near:
            return None
        found = ends[max(near)]
        known = {**ends, **self._ends_of(partition, now)}
        if any(end < found for at, end in known.items() if at > moment):
            return extent.begin  # the store is another one since, or has lost its tail
        return max(extent.begin, min(found, extent.end))

    def _ends_of(self, partition: Partition, moment: int) -> dict[int, int]:
        """Return the ends of the partition's store around a moment, by the moments of their records."""
        store = partition.topic, partition.store_id
        records = self._records(partition.broker_id, moment)
        return {one.moment: one.end for one in records if (one.topic, one.store_id) == store}

    def _records(self, broker_id: int, moment: int) -> set[_StoreEnd]:
        """Return the records around a moment, and perhaps others."""
        if (broker_id, moment) not in self._found:
            self._found[broker_id, moment] = found = set()

            def time_of(message: StoredMessage) -> int | None:
                ends = list(self._ends_in(cast(Payload, message)))
                found.update(ends)
                return ends[0].moment if ends else None

            partitions = [Partition(broker_id, OFFSET_HISTORY, number) for number in range(_PARTITIONS)]
            extents = Prober(self._visitor).extents(partitions)
            searches = {one: Search(moment, *extents[one], time_of) for one in partitions}
            run_searches(self._visitor, searches, "a record of the broker", lambda one: extents[one].end)
        return self._found[broker_id, moment]

    def _ends_in(self, message: Payload) -> Iterator[_StoreEnd]:
        try:
            _, body = split_payload(message.payLoadData, message.flag)
            record: Any = json.loads(body)
            moment = self._moment_of(record)
            for topic in record["records"]:
                for one in topic.get("offsetInfo", ()):
                    store_id = int(one["partitionKey"].rpartition(":")[2]) // STORE_PARTITION_BASE
                    yield _StoreEnd(moment, topic["topicName"], store_id, int(one["offsetMax"]))
                for one in topic.get("offsets", ()):
                    yield _StoreEnd(moment, topic["topic"], int(one["storeId"]), int(one["iMax"]))
        except (ProtocolError, ValueError, LookupError, TypeError, AttributeError):
            return  # not such a record

    def _moment_of(self, record: Any) -> int:
        """Raise as a record that is none."""
        if "dt" in record:
            return int(record["dt"]) * 1000
        text = record["recordTime"]
        minute = parse_msg_time(text[:12], self._zone)
        if minute is None:
            raise ValueError(text)
        return minute + int(text[12:14]) * _SECOND
