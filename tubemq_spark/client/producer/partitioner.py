# SPDX-License-Identifier: Apache-2.0
"""Partitioner: the partition that each record is sent to.

Records without a key go to the partitions of their topic in turn (round robin). They leave out brokers and partitions
that failed (`protocol.broker_backoff`), and brokers that are busy: slow ones, and those with far more sends in flight
than others. Records with a key go to
the partition of the key, records with an explicit partition to that partition. Both wait until the backoff of that
broker or partition is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tubemq_spark.client import system
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import BrokerHealth
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.client.producer.unresolved_sends import RecordLookup
from tubemq_spark.protocol.broker_backoff import Backoff, Circuit, Endpoint
from tubemq_spark.protocol.key_partitioner import KeyMap, key_map
from tubemq_spark.protocol.metadata import Partition

_MIN_SHARE, _MIN_PARTITIONS = 16, 8  # records for each partition, if records for more than so many are sent at a time
_SLOW_AFTER = 1.0  # seconds that a send is in flight before its broker gets no records that may go elsewhere
_MAX_AHEAD = 256  # sends in flight that a broker may have beyond twice those of the broker with the fewest


class Partitioner:
    """Chooses partitions for one producer, as far as its connections take more records. Failures are those that all
    producers of the session met."""

    def __init__(self, session: ProducerSession, health: BrokerHealth, lookup: RecordLookup | None = None) -> None:
        """With a `lookup`, only the partitions that it calls available are used."""
        self.health = health
        self._clock = session.settings.clock
        self._now = 0.0
        self._failing: Mapping[Endpoint, Backoff] = {}  # as of `_now`
        self._session = session
        self._cluster = session.cluster
        self._lookup = lookup
        # Else all tasks, which may be short, begin at the same partition.
        self._turn = system.randomizer.randrange(1 << 30)
        self._channels: Mapping[int, BrokerChannel] = {}
        self._partitions: dict[str, list[Partition]] = {}  # by topic
        self._keys: dict[str, KeyMap] = {}
        self._usable: dict[str, Sequence[Partition]] = {}  # those that take records without key now
        self._probes: dict[Partition, RecordBatch] = {}  # the last batch that was sent to one that had failed

    def update(self, channels: Mapping[int, BrokerChannel]) -> bool:
        """Look at the time, the cluster and the `channels` again. Return True if keys may have other partitions now.
        They change only here, so that the caller can move the records that wait, and none overtakes another."""
        self._channels = channels
        self._usable.clear()
        before, self._failing, self._now = self._failing, self.health.failing, self._clock.monotonic()
        if self._cluster is not self._session.cluster:
            self._cluster = self._session.cluster
            self._partitions.clear()
        elif not (before or self._failing):
            return False
        keys = self._keys
        # A partition that failed may be removed.
        self._keys = {topic: key_map(tuple(self._present(topic))) for topic in keys}
        return self._keys != keys

    @property
    def any_failing(self) -> bool:
        """Whether any broker or partition gets fewer records; no socket event ends this."""
        return bool(self._failing)

    def has_failed(self, broker_id: int) -> bool:
        return broker_id in self._failing

    def may_connect(self, broker_id: int, *, has_choice: bool) -> bool:
        """Whether to connect to the broker now. The records that wait have a choice if they can go to another one."""
        backoff = self.health.failing.get(broker_id, Backoff())  # an attempt may have failed since `update`
        return backoff.circuit(self._clock.monotonic(), has_choice=has_choice) is not Circuit.OPEN

    def _is_open(self, partition: Partition, *, has_choice: bool) -> bool:
        """Whether the circuit of the partition or its broker is open."""
        backoffs = (self._failing[one] for one in (partition.broker_id, partition) if one in self._failing)
        return any(one.circuit(self._now, has_choice=has_choice) is Circuit.OPEN for one in backoffs)

    def partitions(self, topic: str) -> list[Partition]:
        found = self._partitions.get(topic)
        if found is None:
            found = self._cluster.partitions(topic)
            if self._lookup is not None:
                found = list(self._lookup.available(found, needed=False) or self._lookup.available(found, needed=True))
            self._partitions[topic] = found
        return found

    def require(self, partition: Partition) -> None:
        """Check that records can be looked up in `partition`. Raise as `RecordLookup.available`."""
        if self._lookup is not None:
            self._lookup.available([partition], needed=True)

    def brokers(self, topic: str) -> set[int]:
        """Return the brokers that have partitions of `topic`, without those that are gone."""
        return {one.broker_id for one in self._present(topic)}

    def spread(self, topic: str, count: int) -> list[tuple[Partition, slice]]:
        """Return the partitions for at most `count` records of `topic` without a key, and which of the records go to
        each; none if they must wait."""
        partitions = self._find_usable(topic)
        if not partitions:
            return []
        start, n = self._turn + 1, len(partitions)
        some = min(n, max(count // _MIN_SHARE, min(count, _MIN_PARTITIONS)))
        if self.any_failing or count > min(self._channels[one].room for one in {p.broker_id for p in partitions}):
            count, some = min(count, self.room(partitions[start % n])), 1
        self._turn += count if some == n else some
        return [(partitions[(start + at) % n], slice(at, count, some)) for at in range(some)]

    def is_blocked(self, topic: str) -> bool:
        """Whether records without a key can go nowhere, and not because connections are full."""
        if self._find_usable(topic):
            return False
        channels = [self._channels[broker_id] for broker_id in self.brokers(topic) if broker_id in self._channels]
        return all(channel.room for channel in channels)

    def for_key(self, topic: str, key: bytes) -> Partition:
        """Return the partition for records with `key`."""
        keys = self._keys.get(topic)
        if keys is None:
            keys = self._keys[topic] = key_map(tuple(self._present(topic)))
        return keys.partition(key)

    def room_for_bound(self, partition: Partition) -> int:
        """Return how many records that must go to `partition` may be sent now."""
        return 0 if self.any_failing and self._is_open(partition, has_choice=False) else self.room(partition)

    def sent(self, batch: RecordBatch) -> None:
        """Note a send that may have filled its channel, or that probes a broker or partition that failed."""
        if batch.partition in self._failing:
            self._probes[batch.partition] = batch
        self._usable.clear()  # there may be room for no further record

    def is_gone(self, partition: Partition) -> bool:
        """Whether the partition failed, and the master does not list it any more."""
        return partition not in self._present(partition.topic)

    def _present(self, topic: str) -> Sequence[Partition]:
        """Return the partitions without those that are gone: they failed, and the master does not list them. If the
        master lists none at all, it has just taken over or the topic is closed; then none is gone."""
        partitions, failing = self.partitions(topic), self._failing
        if not failing:
            return partitions
        failed = [one for one in partitions if one in failing or one.broker_id in failing]
        gone = {one for one in failed if not self._session.lists(one)}
        present = [one for one in partitions if one not in gone]
        return present if any(map(self._session.lists, present)) else partitions

    def _find_usable(self, topic: str) -> Sequence[Partition]:
        found = self._usable.get(topic)
        if not found:
            found = self._usable[topic] = self._compute_usable(topic)
        return found

    def _compute_usable(self, topic: str) -> Sequence[Partition]:
        partitions: Sequence[Partition] = self.partitions(topic)
        if self.any_failing:
            present = self._present(topic)
            partitions = [one for one in present if not self._is_open(one, has_choice=True)] or [
                one for one in present if not self._is_open(one, has_choice=False)
            ]
            with_room = [one for one in partitions if self.room(one)]
        else:
            brokers = {broker_id for broker_id, channel in self._channels.items() if channel.room}
            with_room = [one for one in partitions if one.broker_id in brokers]
        busy = self._busy({one.broker_id for one in with_room})
        return [one for one in with_room if one.broker_id not in busy] or with_room

    def _busy(self, broker_ids: Iterable[int]) -> set[int]:
        """Return those of the brokers that have far more sends in flight than another one, or leave one unanswered for
        long."""
        channels = {broker_id: self._channels[broker_id] for broker_id in broker_ids}
        if len(channels) < 2:
            return set()
        limit = 2 * min(channel.in_flight for channel in channels.values()) + _MAX_AHEAD
        since = {broker_id: channel.oldest_in_flight_since for broker_id, channel in channels.items()}
        slow = {broker_id for broker_id, at in since.items() if at is not None and self._now - at > _SLOW_AFTER}
        return slow | {broker_id for broker_id, channel in channels.items() if channel.in_flight > limit}

    def room(self, partition: Partition) -> int:
        """Return how many records the connection to the partition's broker takes; one, where one at a time is tried."""
        channel = self._channels.get(partition.broker_id)
        if channel is None:
            return 0
        if not self.any_failing:
            return channel.room
        is_half_open, has_failed = partition.broker_id in self._failing, partition in self._failing
        if is_half_open and channel.in_flight:
            return 0
        if has_failed and (probe := self._probes.get(partition)) is not None and probe.unanswered:
            return 0
        return min(1, channel.room) if is_half_open or has_failed else channel.room
