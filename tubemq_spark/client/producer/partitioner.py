"""Where messages may go at the moment.

Those that may go anywhere are dealt to the partitions of their topic in turn, but not to brokers that are shielded, and
not to ones that have far more unanswered than others. Those with a key go to the partition of the key, those with an
explicit partition to that; they wait for it, whatever state it is in, as long as it needs its rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from tubemq_spark.client.cluster.broker_health import BrokerHealth
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.producer.broker_channel import BrokerChannel
from tubemq_spark.client.producer.pending_record import PendingRecord
from tubemq_spark.protocol.circuit_breaker import BreakerState, FailureStats, judge, judge_partition
from tubemq_spark.protocol.key_partitioner import KeyMap, key_map
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import RoundRobin, SendState

_MORE = 256  # unanswered sends that a broker may have beyond twice those of the idlest one
_LOOK_CLOSER = 0.5  # seconds that an answer is owed before it is asked whether the broker is slow


class Usable(Protocol):
    """`RecordLookup.available`."""

    def __call__(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]: ...


class Partitioner:
    """Chooses a partition for each message, as far as connections have room; has trouble and success counted."""

    def __init__(self, session: ProducerSession, troubles: BrokerHealth, usable: Usable | None = None) -> None:
        """`usable` says to which partitions messages may go; all without it."""
        self._session = session
        self._cluster = session.cluster
        self._usable = usable
        self._dealer = RoundRobin()
        self._troubles = troubles
        self._brokers: Mapping[int, FailureStats] = {}  # those of the troubles that what is below was made for
        self._troubled: Mapping[Partition, FailureStats] = {}
        self._links: Mapping[int, BrokerChannel] = {}
        self._partitions: dict[str, list[Partition]] = {}  # by topic
        self._keys: dict[str, KeyMap] = {}
        self._now = 0.0
        self._verdicts: dict[int, BreakerState] = {}
        self._trials: dict[Partition, PendingRecord] = {}  # the last message that was sent to what had trouble then
        self._open: dict[str, Sequence[Partition]] = {}  # those that take messages for anywhere now

    def __repr__(self) -> str:
        return f"<Router, trouble with brokers {self._brokers}, partitions {self._troubled}>"

    def begin(self, links: Mapping[int, BrokerChannel]) -> bool:
        """Looks anew at the time, the cluster and the connections that there are; whether the cluster has changed."""
        self._now = time.monotonic()
        self._links = links
        self._open.clear()
        self._hear_of_trouble()
        self._judge()
        if self._cluster is self._session.cluster:
            return False
        self._cluster = self._session.cluster
        self._partitions.clear()
        self._keys.clear()
        return True

    def partitions(self, topic: str) -> list[Partition]:
        found = self._partitions.get(topic)
        if found is None:
            found = self._cluster.partitions(topic)
            if self._usable is not None:
                found = list(self._usable(found, needed=False) or self._usable(found, needed=True))
            self._partitions[topic] = found
        return found

    def need(self, partition: Partition) -> None:
        """A message must go to this one. Raises as `RecordLookup.available`."""
        if self._usable is not None:
            self._usable([partition], needed=True)

    def choose(self, topic: str) -> Partition | None:
        """The partition for a message of `topic` that may go anywhere, None when it must wait."""
        partitions = self._find_open(topic)
        return self._dealer.choose(partitions) if partitions else None

    def is_stuck(self, topic: str) -> bool:
        """Whether messages of `topic` that may go anywhere can go nowhere, and not because connections are full."""
        if self._find_open(topic):
            return False
        links = [self._links[broker_id] for broker_id in self.brokers(topic) if broker_id in self._links]
        return not any(link.full for link in links)

    def of_key(self, topic: str, key: bytes) -> Partition:
        """Where messages with `key` go."""
        keys = self._keys.get(topic)
        if keys is None:
            keys = self._keys[topic] = key_map(tuple(self._present(topic)))
        return keys.partition(key)

    def takes(self, partition: Partition) -> bool:
        """Whether a message that must go to `partition` may go now."""
        return self._has_room(partition) and self._now >= self._rest_until(partition)

    def may_dial(self, broker_id: int, *, needed: bool) -> bool:
        """Whether to try to connect; `needed` when messages wait that can go nowhere else."""
        self._hear_of_trouble()
        verdict = self._verdicts.get(broker_id)
        return verdict is None or self._now >= (verdict.rest_until if needed else verdict.shielded_until)

    def brokers(self, topic: str) -> set[int]:
        """Those that have partitions of `topic`, and are there."""
        has_trouble = self._brokers or self._troubled
        return {one.broker_id for one in (self._present(topic) if has_trouble else self.partitions(topic))}

    @property
    def has_trouble(self) -> bool:
        """Whether something is left alone, for a time that no message will tell the end of."""
        return bool(self._verdicts or self._troubled)

    def sent(self, message: PendingRecord) -> None:
        """The message is on its way to its `partition`, and may be what that is tried with."""
        partition = message.partition
        if partition in self._troubled:
            self._trials[partition] = message
        elif not (self._links[partition.broker_id].full or self.is_on_trial(partition.broker_id)):
            return
        self._open.clear()  # it may be the last one there is room for

    def is_on_trial(self, broker_id: int) -> bool:
        verdict = self._verdicts.get(broker_id)
        return verdict is not None and verdict.on_trial

    # Outcomes

    def broker_trouble(self, broker_id: int, kind: str) -> None:
        """As `BrokerHealth.of_broker`."""
        self._troubles.of_broker(broker_id, kind)
        self._hear_of_trouble()

    def partition_trouble(self, partition: Partition) -> None:
        self._troubles.of_partition(partition)
        self._hear_of_trouble()

    def success(self, partition: Partition) -> None:
        self._troubles.success(partition)
        self._hear_of_trouble()

    def _hear_of_trouble(self) -> None:
        """Of what this producer had, and others."""
        if self._brokers is not self._troubles.brokers or self._troubled is not self._troubles.partitions:
            self._brokers, self._troubled = self._troubles.brokers, self._troubles.partitions
            self._keys.clear()  # what has trouble may not be there
            self._open.clear()
            self._judge()

    def _judge(self) -> None:
        counted = dict(self._brokers)
        for broker_id, link in self._links.items():
            owing = link.owing
            if owing is not None and (broker_id in counted or self._now - owing > _LOOK_CLOSER):
                counted[broker_id] = counted.get(broker_id, FailureStats())._replace(owing=owing)
        self._verdicts = judge(counted, len(self._cluster.brokers), self._now) if counted else {}

    # Which are open

    def _present(self, topic: str) -> Sequence[Partition]:
        """Those that are there: what had trouble and is listed no more is gone, unless the master lists none at all."""
        partitions = self.partitions(topic)
        had_trouble = [one for one in partitions if one in self._troubled or one.broker_id in self._brokers]
        gone = {one for one in had_trouble if not self._session.lists(one)}
        present = [one for one in partitions if one not in gone]
        return present if any(map(self._session.lists, present)) else partitions

    def _find_open(self, topic: str) -> Sequence[Partition]:
        found = self._open.get(topic)
        if not found:
            found = self._open[topic] = self._look_for_open(topic)
        return found

    def _look_for_open(self, topic: str) -> Sequence[Partition]:
        partitions: Sequence[Partition] = self.partitions(topic)
        if self._verdicts or self._troubled:
            present = self._present(topic)
            partitions = [one for one in present if self._now >= self._shielded_until(one)] or [
                one for one in present if self._now >= self._rest_until(one)
            ]
        with_room = [one for one in partitions if self._has_room(one)]
        unanswered = {broker_id: self._links[broker_id].unanswered for broker_id in {p.broker_id for p in with_room}}
        if len(unanswered) < 2:
            return with_room
        most = 2 * min(unanswered.values()) + _MORE
        return [one for one in with_room if unanswered[one.broker_id] <= most]

    def _has_room(self, partition: Partition) -> bool:
        link = self._links.get(partition.broker_id)
        if link is None or link.full or (self.is_on_trial(partition.broker_id) and link.unanswered):
            return False
        if partition not in self._troubled or (trial := self._trials.get(partition)) is None:
            return True
        if trial.state is SendState.SENT and trial.partition == partition:
            return False
        del self._trials[partition]
        return True

    def _rest_until(self, partition: Partition) -> float:
        verdict = self._verdicts.get(partition.broker_id)
        until = verdict.rest_until if verdict else 0.0
        counts = self._troubled.get(partition)
        return max(until, judge_partition(counts).rest_until) if counts else until

    def _shielded_until(self, partition: Partition) -> float:
        verdict = self._verdicts.get(partition.broker_id)
        until = verdict.shielded_until if verdict else 0.0
        counts = self._troubled.get(partition)
        return max(until, judge_partition(counts).shielded_until) if counts else until
