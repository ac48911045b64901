"""One door to TubeMQ for the tests, whichever server is behind it: the embedded one or a real one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple, Protocol

from tests.real.topics import FLUSH_SOON, TopicSpec
from tubemq_spark.protocol.metadata import Partition

SEGMENT = 20_000  # index entries of a segment: far fewer than the default, so that tests reach across the ends of some

Layout = Literal["one", "three", "stores"]
LAYOUTS: Mapping[Layout, TopicSpec] = {
    "one": TopicSpec(partitions=1, stores=1, settings=FLUSH_SOON),
    "three": TopicSpec(partitions=3, stores=1, settings=FLUSH_SOON),
    "stores": TopicSpec(partitions=2, stores=2, settings=FLUSH_SOON),
}


class Members(NamedTuple):
    """What the master tells of a group."""

    topics: list[str]
    balance: str
    clients: list[str]


class Cluster(Protocol):
    """A master and brokers that are numbered from 1. Positions are bytes of the index."""

    @property
    def master(self) -> str: ...

    @property
    def framing(self) -> Literal["standard", "prefixed"]: ...

    @property
    def broker_ids(self) -> tuple[int, ...]: ...

    @property
    def topics(self) -> Mapping[str, TopicSpec]: ...

    def new_topic(self, layout: Layout) -> str:
        """The name of a topic of that layout, on all brokers, which nobody else has used."""
        ...

    def broker_address(self, broker_id: int) -> str: ...

    def kill_broker(self, broker_id: int) -> None:
        """What was acknowledged and not flushed is lost."""
        ...

    def stop_broker(self, broker_id: int) -> None:
        """Nothing is lost, and what is in flight on held claims becomes confirmed."""
        ...

    def start_broker(self, broker_id: int) -> None:
        """Starts one that has ended; its topics can be read and written afterwards."""
        ...

    def kill_master(self) -> None: ...

    def start_master(self) -> None: ...

    def wait_flushed(self, topic: str) -> None:
        """All messages of the topic, whose settings are `FLUSH_SOON`, are in the brokers' files afterwards."""
        ...

    def segments(self, partition: Partition) -> tuple[int, ...]:
        """Where the index segments of the partition's store begin."""
        ...

    def wait_for_expiry(self, is_over: Callable[[], bool], beating: Collection[str]) -> None:
        """Until claims that nobody keeps alive have expired so that `is_over`; `beating` are clients that do keep
        theirs, by heartbeats."""
        ...

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """A group's confirmed position; None when the broker tells of none, as release 2.5 does for the first 7 s."""
        ...

    def move_group(self, group: str, partition: Partition, position: int) -> None:
        """An administrator sets the group's position, whoever reads there."""
        ...

    def remove_group(self, group: str, broker_id: int) -> None:
        """An administrator deletes the group's positions on a broker."""
        ...

    def members(self, group: str) -> Members: ...
