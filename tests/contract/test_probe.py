# SPDX-License-Identifier: Apache-2.0
"""Probes tell which partition of a shared store has the entry at a position."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests import messages, reading
from tests.clusters import Cluster
from tests.reading import UNIT
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.protocol.metadata import Partition


@dataclass
class Store:
    """Three partitions with their messages mixed at random, and the owner of each entry."""

    cluster: Cluster
    topic: str
    prober: Prober
    partitions: list[Partition]
    owners: dict[int, tuple[Partition, int]]

    def check(self, positions: list[int]) -> None:
        places = [(partition, position) for partition in self.partitions for position in positions]
        results = self.prober.probe(places, frozenset(places))
        for partition, position in places:
            found = results[partition, position]
            owner, message_id = self.owners[position]
            if partition == owner:
                assert (found.begin, found.first_id) == (position, message_id)
            else:
                assert found.first_id != message_id


@pytest.fixture
def store(cluster: Cluster, group: str) -> Iterator[Store]:
    topic = cluster.new_topic("three")
    partitions = [one for one in messages.partitions(cluster, topic) if one.broker_id == cluster.broker_ids[0]]
    choose = random.Random(7)
    numbered = messages.numbered([choose.choice(partitions) for _ in range(300)], 300)
    owners = {
        sent.position: (partition, sent.message_id)
        for partition, stored in messages.send(cluster, numbered).items()
        for sent in stored
    }
    with closing(reading.visitor(cluster, group)) as visitor:
        yield Store(cluster, topic, Prober(visitor), partitions, owners)


def test_only_the_owner_of_an_entry_has_a_message_there(store: Store) -> None:
    """In memory, in files, and in both."""
    last = [number * UNIT for number in range(280, 300)]
    store.check(last)
    store.cluster.wait_flushed(store.topic)
    store.check(last)
    more = messages.send(store.cluster, messages.numbered(store.partitions, 9))
    store.owners |= {sent.position: (one, sent.message_id) for one, stored in more.items() for sent in stored}
    store.check(sorted(store.owners)[-20:])


def test_an_owner_is_proven_however_many_entries_of_others_follow(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("three")
    here, other = [one for one in messages.partitions(cluster, topic) if one.broker_id == cluster.broker_ids[0]][:2]
    position = messages.send(cluster, messages.numbered([other, other, here], 3))[here][0].position
    messages.send(cluster, messages.numbered([other], 20_000))
    places = [(here, position), (here, position - UNIT), (other, position), (other, position - UNIT)]
    with closing(reading.visitor(cluster, group)) as visitor:
        for is_flushed in (False, True):
            if is_flushed:
                cluster.wait_flushed(topic)
            proven = set(Prober(visitor).proven(places))
            assert (here, position) in proven
            assert proven <= {(here, position), (other, position - UNIT)}
