"""Where messages may go at the moment.

Those that may go anywhere are dealt to the partitions of their topic in turn, but not to brokers that are shielded, and
not to ones that have far more unanswered than others. Those with a key go to the partition of the key, those with an
explicit partition to that; they wait for it, whatever state it is in, as long as it needs its rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from tubemq_spark.client.link import Link
from tubemq_spark.client.master import ProducerSession
from tubemq_spark.protocol.keys import KeyMap, key_map
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.produce import RoundRobin
from tubemq_spark.protocol.shield import Counts, Verdict, judge, judge_partition

_MORE = 256  # unanswered sends that a broker may have beyond twice those of the idlest one
_LOOK_CLOSER = 0.5  # seconds that an answer is owed before it is asked whether the broker is slow


class Usable(Protocol):
    """`Ledger.usable`."""

    def __call__(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]: ...


class Router:
    """Chooses a partition for each message, as far as connections have room; counts trouble and success."""

    def __init__(self, session: ProducerSession, usable: Usable | None = None) -> None:
        """`usable` says to which partitions messages may go; all without it."""
        self._session = session
        self._cluster = session.cluster
        self._usable = usable
        self._dealer = RoundRobin()
        self._brokers: dict[int, Counts] = {}
        self._troubled: dict[Partition, Counts] = {}
        self._links: Mapping[int, Link] = {}
        self._partitions: dict[str, list[Partition]] = {}  # by topic
        self._keys: dict[str, KeyMap] = {}
        self._now = 0.0
        self._verdicts: dict[int, Verdict] = {}
        self._open: dict[str, Sequence[Partition]] = {}  # those that take messages for anywhere now

    def __repr__(self) -> str:
        return f"<Router, trouble with brokers {self._brokers}, partitions {self._troubled}>"

    def begin(self, links: Mapping[int, Link]) -> bool:
        """Looks anew at the time, the cluster and the connections that there are; whether the cluster has changed."""
        self._now = time.monotonic()
        self._links = links
        self._open.clear()
        counted = dict(self._brokers)
        for broker_id, link in links.items():
            owing = link.owing
            if owing is not None and (broker_id in counted or self._now - owing > _LOOK_CLOSER):
                counted[broker_id] = counted.get(broker_id, Counts())._replace(owing=owing)
        self._verdicts = judge(counted, len(self._cluster.brokers), self._now) if counted else {}
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
        """A message must go to this one. Raises as `Ledger.usable`."""
        if self._usable is not None:
            self._usable([partition], needed=True)

    def choose(self, topic: str) -> Partition | None:
        """The partition for a message of `topic` that may go anywhere, None when it must wait."""
        partitions = self._open.get(topic)
        if partitions is None:
            partitions = self._open[topic] = self._find_open(topic)
        return self._dealer.choose(partitions) if partitions else None

    def of_key(self, topic: str, key: bytes) -> Partition:
        """Where messages with `key` go."""
        keys = self._keys.get(topic)
        if keys is None:
            keys = self._keys[topic] = key_map(tuple(self._present(topic)))
        return keys.partition(key)

    def takes(self, partition: Partition) -> bool:
        """Whether a message that must go to `partition` may go now."""
        return self._has_room(partition.broker_id) and self._now >= self._rest_until(partition)

    def may_dial(self, broker_id: int, *, needed: bool) -> bool:
        """Whether to try to connect; `needed` when messages wait that can go nowhere else."""
        verdict = self._verdicts.get(broker_id)
        return verdict is None or self._now >= (verdict.rest_until if needed else verdict.shielded_until)

    def brokers(self, topic: str) -> set[int]:
        return {partition.broker_id for partition in self.partitions(topic)}

    @property
    def has_trouble(self) -> bool:
        """Whether something is left alone, for a time that no message will tell the end of."""
        return bool(self._verdicts or self._troubled)

    def filled(self, broker_id: int) -> None:
        """The connection to the broker has no more room, or got the message that it is tried with."""
        self._open.clear()

    def is_on_trial(self, broker_id: int) -> bool:
        verdict = self._verdicts.get(broker_id)
        return verdict is not None and verdict.on_trial

    # Outcomes

    def broker_trouble(self, broker_id: int, kind: str) -> None:
        """`kind` is `lost`, `refused` or `full`; what comes while the broker rests is the same trouble still."""
        now = time.monotonic()
        counts = self._brokers.get(broker_id, Counts())
        if not counts.total or now >= judge({broker_id: counts}, 1, now)[broker_id].rest_until:
            self._brokers[broker_id] = counts._replace(**{kind: getattr(counts, kind) + 1, "last": now})
            self._keys.clear()
            self._open.clear()

    def partition_trouble(self, partition: Partition) -> None:
        now = time.monotonic()
        counts = self._troubled.get(partition, Counts())
        if not counts.total or now >= judge_partition(counts).rest_until:
            self._troubled[partition] = counts._replace(failed=counts.failed + 1, last=now)
            self._keys.clear()
            self._open.clear()

    def success(self, partition: Partition) -> None:
        if self._brokers or self._troubled:
            had_trouble = (self._brokers.pop(partition.broker_id, None), self._troubled.pop(partition, None))
            if any(had_trouble):
                self._keys.clear()  # it may not have been there

    # Which are open

    def _present(self, topic: str) -> Sequence[Partition]:
        """Those that are there: what had trouble and is listed no more is gone, unless the master lists none at all."""
        partitions = self.partitions(topic)
        had_trouble = [one for one in partitions if one in self._troubled or one.broker_id in self._brokers]
        gone = {one for one in had_trouble if not self._session.lists(one)}
        present = [one for one in partitions if one not in gone]
        return present if any(map(self._session.lists, present)) else partitions

    def _find_open(self, topic: str) -> Sequence[Partition]:
        partitions: Sequence[Partition] = self.partitions(topic)
        if self._verdicts or self._troubled:
            present = self._present(topic)
            partitions = [one for one in present if self._now >= self._shielded_until(one)] or [
                one for one in present if self._now >= self._rest_until(one)
            ]
        with_room = [one for one in partitions if self._has_room(one.broker_id)]
        unanswered = {broker_id: self._links[broker_id].unanswered for broker_id in {p.broker_id for p in with_room}}
        if len(unanswered) < 2:
            return with_room
        most = 2 * min(unanswered.values()) + _MORE
        return [one for one in with_room if unanswered[one.broker_id] <= most]

    def _has_room(self, broker_id: int) -> bool:
        link = self._links.get(broker_id)
        if link is None or link.full:
            return False
        verdict = self._verdicts.get(broker_id)
        return verdict is None or not verdict.on_trial or not link.unanswered

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
