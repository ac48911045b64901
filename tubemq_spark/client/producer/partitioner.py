# SPDX-License-Identifier: Apache-2.0
"""Partitioner: the partition that each record is sent to.

Records without a key go to the partitions of their topic in turn (round robin). They avoid brokers whose circuit
breaker says so, and brokers with far more sends in flight than others. Records with a key go to the partition of the
key, records with an explicit partition to that partition. Both wait until the backoff of
that broker or partition is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tubemq_spark.client import system
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import BrokerHealth
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.client.producer.unresolved_sends import RecordLookup
from tubemq_spark.protocol.circuit_breaker import (
    SLOW_AFTER,
    BreakerState,
    Endpoint,
    FailureStats,
    breaker_states,
)
from tubemq_spark.protocol.key_partitioner import KeyMap, key_map
from tubemq_spark.protocol.metadata import Partition

_MIN_SHARE, _MIN_PARTITIONS = 16, 8  # records for each partition, if records for more than so many are sent at a time
_MAX_AHEAD = 256  # sends in flight that a broker may have beyond twice those of the broker with the fewest


class Partitioner:
    """Chooses partitions for one producer, as far as its connections take more records.

    The circuit breakers of brokers and partitions count the failures of all producers of the session, and sends of this
    producer that are in flight for long."""

    def __init__(self, session: ProducerSession, health: BrokerHealth, lookup: RecordLookup | None = None) -> None:
        """With a `lookup`, only the partitions that it calls available are used."""
        self.health = health
        self._clock = session.settings.clock
        self._now = 0.0
        self._failures = health.failures  # those that the states were made from
        self._states: dict[Endpoint, BreakerState] = {}
        self._session = session
        self._cluster = session.cluster
        self._lookup = lookup
        # Else all tasks, which may be short, begin at the same partition.
        self._turn = system.randomizer.randrange(1 << 30)
        self._channels: Mapping[int, BrokerChannel] = {}
        self._partitions: dict[str, list[Partition]] = {}  # by topic
        self._keys: dict[str, KeyMap] = {}
        self._judged: Mapping[Endpoint, FailureStats] = {}  # the failures that the keys' partitions follow
        self._usable: dict[str, Sequence[Partition]] = {}  # those that take records without key now
        self._probes: dict[Partition, RecordBatch] = {}  # the last batch that was sent to one that had failed

    def update(self, channels: Mapping[int, BrokerChannel]) -> bool:
        """Look at the time, the cluster and the `channels` again. Return True if keys may have other partitions now.
        They change only here, so that the caller can move the records that wait, and none overtakes another."""
        self._channels = channels
        self._usable.clear()
        self._update_breakers()
        before, self._judged = self._judged, self._failures
        if self._cluster is not self._session.cluster:
            self._cluster = self._session.cluster
            self._partitions.clear()
        elif not (before or self._judged):
            return False
        keys = self._keys
        # A partition that failed may be removed.
        self._keys = {topic: key_map(tuple(self._present(topic))) for topic in keys}
        return self._keys != keys

    def _update_breakers(self) -> None:
        self._now, self._failures = self._clock.monotonic(), self.health.failures
        counted = dict(self._failures)
        for broker_id, channel in self._channels.items():
            since = channel.oldest_in_flight_since
            if since is not None and (broker_id in counted or self._now - since > SLOW_AFTER):
                counted[broker_id] = counted.get(broker_id, FailureStats())._replace(in_flight_since=since)
        self._states = breaker_states(counted, len(self._session.cluster.brokers), self._now) if counted else {}

    @property
    def any_open(self) -> bool:
        """Whether any broker or partition gets fewer records; no socket event ends this."""
        return bool(self._states)

    def is_half_open(self, broker_id: int) -> bool:
        state = self._states.get(broker_id)
        return state is not None and state.half_open

    def may_connect(self, broker_id: int, *, needed: bool) -> bool:
        """Whether to connect to the broker now; `needed` if records wait that can go to no other broker."""
        if self._failures is not self.health.failures:  # an attempt has failed meanwhile
            self._update_breakers()
        state = self._states.get(broker_id)
        return state is None or self._now >= (state.backoff_until if needed else state.avoid_until)

    def _is_in_backoff(self, partition: Partition) -> bool:
        return any(self._now < state.backoff_until for state in self._states_of(partition))

    def _is_avoided(self, partition: Partition) -> bool:
        """Whether records that may go to any partition avoid this one; true during its backoff, too."""
        return any(self._now < state.avoid_until for state in self._states_of(partition))

    def _states_of(self, partition: Partition) -> list[BreakerState]:
        return [self._states[one] for one in (partition.broker_id, partition) if one in self._states]

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
        if self.any_open or count > min(self._channels[one].room for one in {p.broker_id for p in partitions}):
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

    def most(self, partition: Partition) -> int:
        """Return how many records that must go to `partition` may be sent now."""
        return 0 if self.any_open and self._is_in_backoff(partition) else self.room(partition)

    def sent(self, batch: RecordBatch) -> None:
        """Note a send that may have filled its channel, or that probes a broker or partition that failed."""
        if batch.partition in self._failures:
            self._probes[batch.partition] = batch
        self._usable.clear()  # there may be room for no further record

    def is_gone(self, partition: Partition) -> bool:
        """Whether the partition failed, and the master does not list it any more."""
        return partition not in self._present(partition.topic)

    def _present(self, topic: str) -> Sequence[Partition]:
        """Return the partitions without those that are gone: they failed, and the master does not list them. If the
        master lists none at all, it has just taken over or the topic is closed; then none is gone."""
        partitions, failures = self.partitions(topic), self._failures
        if not failures:
            return partitions
        failed = [one for one in partitions if one in failures or one.broker_id in failures]
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
        if self.any_open:
            present = self._present(topic)
            partitions = [one for one in present if not self._is_avoided(one)] or [
                one for one in present if not self._is_in_backoff(one)
            ]
            with_room = [one for one in partitions if self.room(one)]
        else:
            brokers = {broker_id for broker_id, channel in self._channels.items() if channel.room}
            with_room = [one for one in partitions if one.broker_id in brokers]
        in_flight = {broker_id: self._channels[broker_id].in_flight for broker_id in {p.broker_id for p in with_room}}
        if len(in_flight) < 2:
            return with_room
        most = 2 * min(in_flight.values()) + _MAX_AHEAD
        return [one for one in with_room if in_flight[one.broker_id] <= most]

    def room(self, partition: Partition) -> int:
        """Return how many records the connection to the partition's broker takes; one, where one at a time is tried."""
        channel = self._channels.get(partition.broker_id)
        if channel is None:
            return 0
        if not self.any_open:
            return channel.room
        is_half_open = self.is_half_open(partition.broker_id)
        has_failed = partition in self._failures
        if is_half_open and channel.in_flight:
            return 0
        if has_failed and (probe := self._probes.get(partition)) is not None and probe.unanswered:
            return 0
        return min(1, channel.room) if is_half_open or has_failed else channel.room
