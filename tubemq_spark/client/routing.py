"""Where messages may go at the moment.

They are dealt to the partitions of their topic in turn. What failed is left alone for a while: a broker or a partition.
When nothing else is left it is tried all the same, with longer and longer pauses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tubemq_spark.client.backoff import delays
from tubemq_spark.client.master import ProducerSession
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.produce import RoundRobin

# How long to leave alone what failed, in seconds.
REFUSING_BROKER = 50.0
UNREACHABLE_BROKER = 15.0
FAILING_PARTITION = 3.0


class Avoidance:
    """Remembers until when what is to be avoided; the caller has the clock, in seconds."""

    def __init__(self) -> None:
        self._brokers: dict[int, float] = {}
        self._partitions: dict[Partition, float] = {}

    def __repr__(self) -> str:
        return f"<Avoidance of brokers {sorted(self._brokers)}, partitions {sorted(map(str, self._partitions))}>"

    def broker(self, broker_id: int, until: float) -> None:
        """Avoid all partitions of the broker."""
        self._brokers[broker_id] = max(until, self._brokers.get(broker_id, until))

    def partition(self, partition: Partition, until: float) -> None:
        self._partitions[partition] = max(until, self._partitions.get(partition, until))

    def left_by(self, partitions: Sequence[Partition], now: float) -> Sequence[Partition]:
        """Those that need not be avoided at `now`, in their order."""
        if not self._brokers and not self._partitions:
            return partitions
        self._brokers = {broker_id: until for broker_id, until in self._brokers.items() if until > now}
        self._partitions = {partition: until for partition, until in self._partitions.items() if until > now}
        return [p for p in partitions if p.broker_id not in self._brokers and p not in self._partitions]


class Router:
    """Chooses a partition for each message, as far as connections have room.

    `paused_until` is the moment of the next try when messages must wait although there is room, else None.
    """

    def __init__(self, session: ProducerSession) -> None:
        self.paused_until: float | None = None
        self._session = session
        self._cluster = session.cluster
        self._dealer = RoundRobin()
        self._avoidance = Avoidance()
        self._delays = delays()
        self._resume_at = 0.0
        self._full: set[int] = set()
        self._partitions: dict[str, list[Partition]] = {}  # by topic
        self._open: dict[str, Sequence[Partition]] = {}  # those of them that take messages now

    def __repr__(self) -> str:
        return f"<Router with {self._avoidance!r}>"

    def begin(self, full: Iterable[int]) -> None:
        """Looks anew at the time, at the cluster, and at which brokers' connections are full."""
        self.paused_until = None
        self._full = set(full)
        self._open.clear()
        if self._cluster is not self._session.cluster:
            self._cluster = self._session.cluster
            self._partitions.clear()

    def choose(self, topic: str) -> Partition | None:
        """The partition for a message of `topic`, None when it must wait."""
        partitions = self._open.get(topic)
        if partitions is None:
            partitions = self._open[topic] = self._find_open(topic)
        return self._dealer.choose(partitions) if partitions else None

    def filled(self, broker_id: int) -> None:
        """The connection to the broker has no more room."""
        self._full.add(broker_id)
        self._open.clear()

    def avoid_broker(self, broker_id: int, seconds: float) -> None:
        self._avoidance.broker(broker_id, time.monotonic() + seconds)
        self._open.clear()

    def avoid_partition(self, partition: Partition, seconds: float) -> None:
        self._avoidance.partition(partition, time.monotonic() + seconds)
        self._open.clear()

    def back_off(self) -> None:
        """Something failed: a pause before what should be avoided is tried all the same."""
        now = time.monotonic()
        if now >= self._resume_at:
            self._resume_at = now + next(self._delays)

    def progress(self) -> None:
        """Something worked: pauses begin small again."""
        self._delays = delays()

    def _find_open(self, topic: str) -> Sequence[Partition]:
        if topic not in self._partitions:
            self._partitions[topic] = self._cluster.partitions(topic)
        now = time.monotonic()
        usable = self._avoidance.left_by(self._partitions[topic], now)
        if not usable:
            if now < self._resume_at:
                self.paused_until = self._resume_at
                return ()
            usable = self._partitions[topic]
        return [p for p in usable if p.broker_id not in self._full] if self._full else usable
