# SPDX-License-Identifier: Apache-2.0
"""The embedded TubeMQ with the interface that all tests use. Tests advance its clock instead of waiting."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

from tests.clusters import LAYOUTS, SEGMENT, Layout, Members
from tests.real.topics import TopicSpec
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.config import Release, ServerConfig

_FLUSH_INTERVAL = 4.0  # that of FLUSH_SOON
_FLUSHED_AFTER = 14.0  # the broker checks every 10 s
_HEARTBEAT_TIMEOUT = 30.0


class EmbeddedCluster:
    """`tubemq` is the server itself, for fault injection and its clock."""

    def __init__(self, tubemq: EmbeddedTubeMQ, config: ServerConfig) -> None:
        self.tubemq = tubemq
        self.topics: dict[str, TopicSpec] = {}
        self._config = config
        self._numbers = itertools.count()

    @property
    def master(self) -> str:
        return self.tubemq.master

    @property
    def web_master(self) -> str:
        return self.tubemq.web_master

    @property
    def admin_token(self) -> str:
        return self.tubemq.admin_token

    @property
    def framing(self) -> Literal["standard", "prefixed"]:
        return "standard" if self.tubemq.framing is Framing.STANDARD else "prefixed"

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(self.tubemq.broker_ids)

    def create(self, name: str, spec: TopicSpec) -> None:
        self.topics[name] = spec
        self.tubemq.create_topic(name, spec.partitions, spec.stores, brokers=spec.brokers)

    def new_topic(self, layout: Layout) -> str:
        name = f"{layout}_{next(self._numbers)}"
        self.create(name, LAYOUTS[layout])
        return name

    def broker_address(self, broker_id: int) -> str:
        return self.tubemq.broker_address(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        self.tubemq.crash_broker(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        self.tubemq.stop_broker(broker_id)

    def start_broker(self, broker_id: int) -> None:
        self.tubemq.start_broker(broker_id)

    def swap_addresses(self, first: int, second: int) -> None:
        self.tubemq.swap_addresses(first, second)

    def kill_master(self) -> None:
        self.tubemq.stop_master()

    def start_master(self) -> None:
        self.tubemq.start_master()

    def wait_flushed(self, topic: str) -> None:
        self.tubemq.clock.advance(_FLUSHED_AFTER)

    def segments(self, partition: Partition) -> tuple[int, ...]:
        broker = self.tubemq._servers.broker(partition.broker_id).service
        store = broker.stores.get(partition.topic, partition.store_id)
        return tuple(self.tubemq._on_thread(lambda: store.segments if store else []))

    def wait_for_expiry(self, is_over: Callable[[], bool], beating: Collection[str]) -> None:
        """Advance the clock by parts of the timeout, each time until all `beating` clients have sent a heartbeat."""
        while not is_over():
            with ExitStack() as stack:
                heartbeats = [stack.enter_context(self._heartbeat(client)) for client in beating]
                self.tubemq.clock.advance(self._config.consumer_reg_timeout / 3)
                assert all(event.wait(_HEARTBEAT_TIMEOUT) for event in heartbeats), (
                    f"not all of {beating} send heartbeats"
                )

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        return self.tubemq.group_offset(group, topic, broker_id, partition)

    def move_group(self, group: str, partition: Partition, position: int) -> None:
        broker_id, topic, number = partition
        self.tubemq.move_group(group, topic, broker_id, number, position)

    def remove_group(self, group: str, broker_id: int) -> None:
        self.tubemq.remove_group(group, broker_id)

    def members(self, group: str) -> Members:
        def collect() -> Members:
            master = next(
                server.service for server in self.tubemq._servers.masters if not server.service.access.standby
            )
            found = master._groups._groups.get(group)
            if found is None:
                return Members([], "", [], [])
            held = [
                one for client in found.client_ids for of in master._groups.held.get(client, {}).values() for one in of
            ]
            return Members(sorted(found.topics), found.consume_type.value, found.client_ids, sorted(held))

        return self.tubemq._on_thread(collect)

    @contextmanager
    def _heartbeat(self, client: str) -> Iterator[threading.Event]:
        """Yield an event that the client's next heartbeat to a broker sets."""
        event = threading.Event()
        with self.tubemq.on("partition_heartbeat", client=client).run(event.set):
            yield event


def _flush_interval(topics: Mapping[str, TopicSpec] | None) -> float:
    """Return the shortest interval of the topics' settings in seconds; the embedded brokers have one for all topics."""
    given = [spec.settings.get("memCacheFlushIntvl") for spec in (topics or {}).values()]
    return min((float(interval) / 1000 for interval in given if interval is not None), default=_FLUSH_INTERVAL)


@contextmanager
def embedded_cluster(
    *,
    topics: Mapping[str, TopicSpec] | None = None,
    brokers: int = 2,
    masters: int = 1,
    framing: Literal["standard", "prefixed"] = "standard",
    config: ServerConfig | None = None,
) -> Iterator[EmbeddedCluster]:
    """Yield a cluster of the release with this framing, with the segment size and flush interval of the tests."""
    config = replace(
        config or ServerConfig(), max_index_segment_entries=SEGMENT, mem_cache_flush_interval=_flush_interval(topics)
    )
    release = Release.V2_5 if framing == "standard" else Release.V1_2
    with EmbeddedTubeMQ(brokers=brokers, masters=masters, release=release, config=config) as tubemq:
        cluster = EmbeddedCluster(tubemq, config)
        for name, spec in (topics or {}).items():
            cluster.create(name, spec)
        yield cluster
        tubemq.clear_faults()
        forget_servers()
