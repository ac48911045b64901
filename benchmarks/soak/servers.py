# SPDX-License-Identifier: Apache-2.0
"""The real TubeMQ of a run: two brokers, short retention, visit tokens that are checked and rotate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.real.cluster import RealTubeMQ
from tests.real.topics import FLUSH_SOON, TopicSpec
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.metadata import Partition

INPUT = "soak_input"
OUTPUTS = {"steady": "soak_steady", "killed": "soak_killed"}  # by query

_BROKERS = 2
_STORES = 2  # of each topic on each broker, with one partition: so a read can count the index entries of its range
PARTITIONS = _BROKERS * _STORES
_SEGMENT_SECONDS = 45.0
_KEPT = "6m"
_KEPT_IN_A_TRIAL = "2m"  # a restarted query must find the messages of an unfinished batch

# The master rotates the token after 4/5 of this time, and 3 minutes are the least that it accepts.
_TOKEN_PERIOD = {"startVisitTokenCheck": "true", "visitTokenValidPeriodMs": "180000"}
_TOKEN_CHECK = {"visitTokenCheckInValidTimeMs": "60000"}  # after its start a broker checks no tokens for this time


class SoakTubeMQ(RealTubeMQ):
    """A broker keeps index segments of about 45 s, and removes those that are older than 6 minutes."""

    def __init__(self, folder: Path, rate: float, is_trial: bool) -> None:
        kept = _KEPT_IN_A_TRIAL if is_trial else _KEPT
        spec = TopicSpec(partitions=1, stores=_STORES, delete_policy=f"delete,{kept}", settings=FLUSH_SOON)
        entries = max(100, round(rate / PARTITIONS * _SEGMENT_SECONDS))
        super().__init__(
            topics=dict.fromkeys((INPUT, *OUTPUTS.values()), spec),
            brokers=_BROKERS,
            broker_options={"maxIndexSegmentSize": str(INDEX_MSG_UNIT_SIZE * entries), **_TOKEN_CHECK},
            master_options=_TOKEN_PERIOD,
            folder=folder,
        )

    def partitions(self, topic: str) -> list[Partition]:
        return [Partition(broker, topic, store * 10_000) for broker in self.broker_ids for store in range(_STORES)]

    def removed(self, topic: str) -> int:
        """Return how many index entries retention has removed from a topic."""
        return sum(self._first_segment(one) // INDEX_MSG_UNIT_SIZE for one in self.partitions(topic))

    def ports(self) -> frozenset[int]:
        """Return the ports of the master and the brokers for clients."""
        addresses = [self.master, *map(self.broker_address, self.broker_ids)]
        return frozenset(int(address.rpartition(":")[2]) for address in addresses)

    def claims(self) -> Counter[str]:
        """Return how many partitions clients hold at the brokers, by group."""
        return Counter(
            str(row["Partition"]).partition(":")[0]  # group:topic:partition
            for broker_id in self.broker_ids
            for row in self.broker_admin(broker_id, method="admin_query_consumer_regmap")["dataSet"]
        )

    def registrations(self) -> int:
        """Return how many consumers are registered at the master, all groups together."""
        answer = self.admin(method="admin_query_sub_info")
        return sum(int(row["consumerNum"]) for row in answer["data"])

    def _first_segment(self, partition: Partition) -> int:
        store = self._data(partition.broker_id) / f"{partition.topic}-{partition.store_id}" / "index"
        return min((int(file.stem) for file in store.glob("*.index")), default=0)
