# SPDX-License-Identifier: Apache-2.0
"""One interface to the TubeMQ of a test, which is the embedded server or a real one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple, Protocol

from tests.real.topics import FLUSH_SOON, TopicSpec
from tubemq_spark.protocol.metadata import Partition

SEGMENT = 20_000  # index entries of a segment: far fewer than the default, so that tests cross segment boundaries

Layout = Literal["one", "three", "stores"]
LAYOUTS: Mapping[Layout, TopicSpec] = {
    "one": TopicSpec(partitions=1, stores=1, settings=FLUSH_SOON),
    "three": TopicSpec(partitions=3, stores=1, settings=FLUSH_SOON),
    "stores": TopicSpec(partitions=2, stores=2, settings=FLUSH_SOON),
}


class Members(NamedTuple):
    """A group as the master reports it."""

    topics: list[str]
    balance: str
    clients: list[str]
    held: list[Partition]  # of all clients, as they reported


class Cluster(Protocol):
    """A master and brokers, which are numbered from 1. Positions are bytes of the index."""

    @property
    def master(self) -> str: ...

    @property
    def web_master(self) -> str:
        """The `host:port` of the master's HTTP API."""
        ...

    @property
    def admin_token(self) -> str:
        """The token of calls of the HTTP API that change something."""
        ...

    @property
    def framing(self) -> Literal["standard", "prefixed"]: ...

    @property
    def broker_ids(self) -> tuple[int, ...]: ...

    @property
    def topics(self) -> Mapping[str, TopicSpec]: ...

    def new_topic(self, layout: Layout) -> str:
        """Return the name of an unused topic of that layout, on all brokers."""
        ...

    def broker_address(self, broker_id: int) -> str: ...

    def kill_broker(self, broker_id: int) -> None:
        """Kill the broker: acknowledged messages that were not flushed are lost."""
        ...

    def stop_broker(self, broker_id: int) -> None:
        """Shut the broker down cleanly: nothing is lost, and what is in flight on held claims becomes confirmed."""
        ...

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker; return when its topics can be read and written."""
        ...

    def swap_addresses(self, first: int, second: int) -> None:
        """Let two brokers that are stopped start at each other's address."""
        ...

    def kill_master(self) -> None: ...

    def start_master(self) -> None: ...

    def wait_flushed(self, topic: str) -> None:
        """Return when all messages of the topic, whose settings are `FLUSH_SOON`, are in the brokers' files."""
        ...

    def segments(self, partition: Partition) -> tuple[int, ...]:
        """Return the positions at which the index segments of the partition's store begin."""
        ...

    def wait_for_expiry(self, is_over: Callable[[], bool], beating: Collection[str]) -> None:
        """Wait until claims without heartbeats have expired, so that `is_over` returns True.

        `beating` are the clients whose heartbeats keep their claims.
        """
        ...

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Return a group's confirmed position; None when the broker shows none, as release 2.5 for the first 7 s."""
        ...

    def move_group(self, group: str, partition: Partition, position: int) -> None:
        """Set the group's position as an administrator, whichever client reads there."""
        ...

    def remove_group(self, group: str, broker_id: int) -> None:
        """Delete the group's positions on a broker, as an administrator."""
        ...

    def members(self, group: str) -> Members: ...
