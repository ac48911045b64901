# SPDX-License-Identifier: Apache-2.0
"""What a broker records of its groups in its own topic `__offset_history__`: where the stores end that they read.

wire: OffsetRecordService, OffsetHistoryInfo; BrokerServiceServer.appendGroupOffsetInfo. Times are in UTC here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.protocol.message import encode_attributes, encode_payload
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.topic_stores import TopicStores
from tubemq_spark.testing.catalog import HISTORY_PARTITIONS
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.java import filter_code


class HistoryMessage(NamedTuple):
    partition_id: int
    code: int  # of its type
    payload: bytes


def history_messages(
    broker_id: int, release: Release, wall_ms: int, offsets: GroupOffsets, stores: TopicStores
) -> Iterator[HistoryMessage]:
    """Yield a message for each group."""
    minute = datetime.fromtimestamp(wall_ms / 1000, timezone.utc).strftime("%Y%m%d%H%M")
    for group, of_group in groupby(sorted(offsets.recorded()), attrgetter("group")):
        topics = [
            (topic, [(key, *stores.extent(key.topic, key.partition_id), offsets.confirmed(key) or 0) for key in keys])
            for topic, keys in groupby(of_group, attrgetter("topic"))
        ]
        make = _record_of_1_2 if release is Release.V1_2 else _record_of_2_1
        body = json.dumps(make(broker_id, group, wall_ms, topics), separators=(",", ":")).encode()
        code = filter_code(group)
        attributes = encode_attributes(None, str(code), minute) + f",$groupName$={group}".encode()
        payload, _ = encode_payload(body, attributes)
        yield HistoryMessage(abs(code) % HISTORY_PARTITIONS, filter_code(str(code)), payload)


_Topics = list[tuple[str, list[tuple[Key, int, int, int]]]]
"""Topics with the beginning and the end of each partition's store, and the group's position."""


def _record_of_1_2(broker_id: int, group: str, wall_ms: int, topics: _Topics) -> dict[str, Any]:
    time = datetime.fromtimestamp(wall_ms / 1000, timezone.utc).strftime("%Y%m%d%H%M%S")
    records = [
        {
            "topicName": topic,
            "offsetInfo": [
                {
                    "partitionKey": f"{broker_id}:{topic}:{key.partition_id}",
                    "offsetCfm": position,
                    "offsetMin": low,
                    "offsetMax": high,
                    "offsetLag": high - position,
                }
                for key, low, high, position in partitions
            ],
        }
        for topic, partitions in topics
    ]
    return {"groupName": group, "recordTime": time, "brokerId": broker_id, "records": records}


def _record_of_2_1(broker_id: int, _: str, wall_ms: int, topics: _Topics) -> dict[str, Any]:
    records = []
    for topic, partitions in topics:
        ends = {key.partition_id // STORE_PARTITION_BASE: (low, high) for key, low, high, _ in partitions}
        parts = [(key.partition_id, position) for key, *_, position in partitions]
        offsets = [
            {
                "storeId": store_id,
                "iMin": low,
                "iMax": high,
                "parts": [{"partId": one, "iCfm": at} for one, at in parts if one // STORE_PARTITION_BASE == store_id],
            }
            for store_id, (low, high) in ends.items()
        ]
        records.append({"topic": topic, "offsets": offsets})
    return {"dt": wall_ms, "bId": broker_id, "ver": 3, "records": records}
