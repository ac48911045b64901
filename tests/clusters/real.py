# SPDX-License-Identifier: Apache-2.0
"""A real TubeMQ with the interface that all tests use."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from tests.clusters import LAYOUTS, SEGMENT, Layout, Members
from tests.real.cluster import RealTubeMQ, TopicSpec
from tests.real.jars import Framing, Release
from tubemq_spark.protocol.metadata import Partition

_TOPICS_OF_A_LAYOUT = defaultdict(lambda: 30, {"one": 340, "three": 170})
_EXPIRY_TIMEOUT = 180.0


class RealCluster(RealTubeMQ):
    """The default `topics` are those of `new_topic`. `claim_timeout` is in seconds, by default TubeMQ's own."""

    def __init__(
        self,
        *,
        topics: Mapping[str, TopicSpec] | None = None,
        brokers: int = 2,
        masters: int = 1,
        release: Release = "1.2.0",
        framing: Framing = "standard",
        claim_timeout: int | None = None,
        broker_options: Mapping[str, str] = MappingProxyType({}),
        folder: Path | None = None,
    ) -> None:
        if topics is None:
            topics = {f"{name}_{n}": spec for name, spec in LAYOUTS.items() for n in range(_TOPICS_OF_A_LAYOUT[name])}
        options = {"maxIndexSegmentSize": str(28 * SEGMENT), **broker_options}
        if claim_timeout is not None:
            options["consumerRegTimeoutMs"] = str(1000 * claim_timeout)
        super().__init__(
            topics=topics,
            brokers=brokers,
            masters=masters,
            release=release,
            framing=framing,
            broker_options=options,
            folder=folder,
        )

    def new_topic(self, layout: Layout) -> str:
        for name in (name for name in self.topics if name.startswith(f"{layout}_")):
            with suppress(FileExistsError):  # another test has it, perhaps in another process
                (self._folder / f"{name}.used").touch(exist_ok=False)
                return name
        raise AssertionError(f"declare more topics of layout {layout} in {__name__}")

    def segments(self, partition: Partition) -> tuple[int, ...]:
        store = self._data(partition.broker_id) / f"{partition.topic}-{partition.store_id}"
        return tuple(sorted(int(file.stem) for file in (store / "index").glob("*.index")))

    def wait_for_expiry(self, is_over: Callable[[], bool], beating: Collection[str]) -> None:
        deadline = time.monotonic() + _EXPIRY_TIMEOUT
        while not is_over():
            assert time.monotonic() < deadline, f"not within {_EXPIRY_TIMEOUT:g} s"
            time.sleep(0.2)

    def move_group(self, group: str, partition: Partition, position: int) -> None:
        self.broker_admin(
            partition.broker_id,
            method="admin_set_offset",
            groupName=group,
            manualSet=True,
            offsetJsonInfo=json.dumps({str(partition): position}),
        )

    def remove_group(self, group: str, broker_id: int) -> None:
        self.broker_admin(broker_id, method="admin_rmv_offset", groupName=group)

    def members(self, group: str) -> Members:
        answer = self.admin(method="admin_query_consume_group_detail", groupName=group)
        held = [
            Partition(int(part["brokerAddr"].partition(":")[0]), part["topicName"], part["partId"])
            for member in answer["data"]
            for part in member["parInfo"]
        ]
        clients = [member["consumerId"] for member in answer["data"]]
        return Members(answer["topicSet"], answer["isBandConsume"], clients, sorted(held))
