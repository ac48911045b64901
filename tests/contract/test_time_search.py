# SPDX-License-Identifier: Apache-2.0
"""A time search finds the first message that is not earlier than a moment, in memory and in files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pytest

from tests import messages, reading
from tests.clusters import Cluster, Layout
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.protocol.message import encode_attributes, format_msg_time
from tubemq_spark.protocol.metadata import Partition

FIRST_MINUTE = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc)
MINUTES = 16


@dataclass
class Scene:
    """A topic in which most messages have times and some entries hold no message."""

    cluster: Cluster
    topic: str
    group: str
    rng: random.Random
    timed: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)  # minutes and positions, in order

    @property
    def partitions(self) -> list[Partition]:
        return messages.partitions(self.cluster, self.topic)

    def send(self, minute: int, count: int) -> None:
        text = format_msg_time(FIRST_MINUTE + timedelta(minutes=minute))
        stored = messages.send(self.cluster, self._some(count), attributes=encode_attributes(None, None, text))
        for partition, sent in stored.items():
            self.timed.setdefault(partition, []).extend((minute, message.position) for message in sent)

    def send_others(self, count: int) -> None:
        messages.send(self.cluster, self._some(count), attributes=encode_attributes({"a": "b"}, "type", None))
        messages.send(self.cluster, self._some(count // 4), flag=1)

    def _some(self, count: int) -> list[tuple[Partition, bytes]]:
        return [messages.numbered([target], 1)[0] for target in self.rng.choices(self.partitions, k=count)]

    def expected(self, partition: Partition, minute: int, end: int) -> int:
        return next((position for at, position in self.timed.get(partition, []) if at >= minute), end)

    def check(self, minutes: Iterable[int]) -> None:
        with closing(reading.visitor(self.cluster, self.group)) as visitor:
            extents = Prober(visitor).extents(self.partitions)
            for minute in minutes:
                moment = int((FIRST_MINUTE + timedelta(minutes=minute, seconds=30)).timestamp()) * 1_000_000
                found = find_positions(visitor, dict.fromkeys(self.partitions, moment), extents, timezone.utc)
                for partition, position in found.items():
                    assert position == self.expected(partition, minute, extents[partition].end), minute


@pytest.mark.parametrize("layout", ["one", pytest.param("three", marks=pytest.mark.thorough)])
def test_a_search_finds_times_in_memory_in_files_and_in_both(
    cluster: Cluster, group: str, rng: random.Random, layout: Layout
) -> None:
    scene = Scene(cluster, cluster.new_topic(layout), group, rng)
    for minute in range(MINUTES):
        scene.send(minute, rng.randint(1, 400))
        scene.send_others(rng.choice([0, 10, 200]))
    asked = [-1, *rng.sample(range(MINUTES), 3), MINUTES]
    scene.check(asked)
    cluster.wait_flushed(scene.topic)
    scene.check(asked)
    for minute in range(MINUTES, 2 * MINUTES, 8):
        scene.send(minute, 500)
    scene.check([*asked, MINUTES + 1, 2 * MINUTES])


def test_a_search_finds_times_that_are_a_little_out_of_order(cluster: Cluster, group: str, rng: random.Random) -> None:
    """The first message that is not earlier is never far before the last earlier one."""
    scene = Scene(cluster, cluster.new_topic("three"), group, rng)
    for minute in range(MINUTES):
        scene.send(minute + rng.randint(-2, 2), 150)
    scene.check([-3, *rng.sample(range(MINUTES), 4), MINUTES + 3])
