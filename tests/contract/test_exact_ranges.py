# SPDX-License-Identifier: Apache-2.0
"""Random ranges of partitions return exactly their messages, wherever these are stored, whatever else happens at the
same time, and however often they are read.

What a range must give is known from the answers that the producers got. After each read the group stands at the range's
start and the partition is free.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from tests import messages, reading
from tests.clusters import LAYOUTS, SEGMENT, Cluster, Layout
from tests.clusters.servers import ALL, EACH_FRAMING
from tests.messages import Sent
from tests.reading import UNIT, Row
from tubemq_spark.protocol.constants import ENTRIES_PER_READ, MESSAGE_SIZE_SLACK
from tubemq_spark.protocol.metadata import Partition

each_framing = pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)

IN_MEMORY, FLUSHED, MIXED, SEGMENTS, HOLES = 40, 40, 40, 40, 30  # random cuts of one test
LONG = 45_000  # messages of a topic whose index has several segments


@dataclass
class Scene:
    """A topic, what was sent to it, and a group that reads it."""

    cluster: Cluster
    topic: str
    group: str
    rng: random.Random
    sent: dict[Partition, list[Sent]] = field(default_factory=lambda: defaultdict(list))

    @property
    def partitions(self) -> list[Partition]:
        return messages.partitions(self.cluster, self.topic)

    def send(self, count: int, targets: list[Partition] | None = None, *, holes: bool = False) -> None:
        """Sends to `targets` in an order without a pattern."""
        chosen = self.rng.choices(targets or self.partitions, k=count)
        sizes = self.rng.choices([20, 100, 1000], [20, 10, 1], k=count)
        pending = [messages.numbered([target], 1, size)[0] for target, size in zip(chosen, sizes, strict=True)]
        stored = messages.send(self.cluster, pending, flag=1 if holes else None)
        if not holes:
            for partition in stored:
                self.sent[partition] += stored[partition]

    def cuts(self, count: int, edges: tuple[int, ...] = ()) -> Iterator[tuple[Partition, int, int]]:
        """Ranges of partitions with data: long and short ones, many with a border near one of `edges`."""
        for _ in range(count):
            partition = self.rng.choice(list(self.sent))
            last = reading.group_position(self.cluster, self.group, partition).end // UNIT
            edge = self.rng.choice([0, last, *(position // UNIT for position in edges)])
            one = edge + self.rng.randint(-5, 5) if self.rng.random() < 0.5 else self.rng.randint(0, last)
            one = min(max(one, 0), last)
            length = self.rng.randint(1, self.rng.choice([1, 50, ENTRIES_PER_READ, last]))
            other = one + length if one + length <= last and self.rng.random() < 0.5 else max(one - length, 0)
            start, end = sorted((one, other if other != one else one + 1))
            yield partition, start * UNIT, end * UNIT

    def read(self, partition: Partition, start: int, end: int) -> list[Row]:
        return reading.read(self.cluster, self.group, partition, start, end)

    def expected(self, partition: Partition, start: int, end: int) -> list[Row]:
        return reading.expected(self.sent[partition], start, end, sole=reading.owns_store(self.cluster, partition))

    def check(self, count: int, edges: tuple[int, ...] = ()) -> None:
        """Reads `count` random cuts, every fourth of them twice and every third in two parts too."""
        for number, (partition, start, end) in enumerate(self.cuts(count, edges)):
            rows = self.read(partition, start, end)
            assert rows == self.expected(partition, start, end), (partition, start, end)
            if number % 4 == 0:
                assert self.read(partition, start, end) == rows
            if number % 3 == 0 and end - start > UNIT:
                middle = self.rng.randrange(start + UNIT, end, UNIT)
                for part in ((start, middle), (middle, end)):
                    assert self.read(partition, *part) == self.expected(partition, *part), part


@dataclass(frozen=True)
class Early:
    """Topics that get their messages before the first test, so that these reach the files while other tests run."""

    scenes: dict[Layout, Scene]
    long: Scene  # on broker 1 alone

    def flushed(self, scene: Scene, group: str, rng: random.Random) -> Scene:
        scene.cluster.wait_flushed(scene.topic)
        return replace(scene, group=group, rng=rng)


@pytest.fixture(scope="module")
def early(cluster: Cluster) -> Early:
    rng = random.Random(0)
    scenes = {layout: Scene(cluster, cluster.new_topic(layout), "", rng) for layout in LAYOUTS}
    for scene in scenes.values():
        scene.send(6000)
    return Early(scenes, long_topic(cluster, "one"))


def long_topic(cluster: Cluster, layout: Layout) -> Scene:
    scene = Scene(cluster, cluster.new_topic(layout), "", random.Random(0))
    scene.send(LONG, [partition for partition in scene.partitions if partition.broker_id == 1])
    return scene


@pytest.mark.parametrize("layout", LAYOUTS)
@each_framing
def test_in_memory(cluster: Cluster, group: str, rng: random.Random, layout: Layout) -> None:
    scene = Scene(cluster, cluster.new_topic(layout), group, rng)
    scene.send(3000)
    scene.check(IN_MEMORY)


@pytest.mark.parametrize("layout", ["one", "three"])
@pytest.mark.parametrize("cluster", ALL, indirect=True)
def test_entries_without_a_message_shift_no_positions(
    cluster: Cluster, group: str, rng: random.Random, layout: Layout
) -> None:
    scene = Scene(cluster, cluster.new_topic(layout), group, rng)
    for partition in scene.partitions:  # holes at the begin of a store look like messages that retention has removed
        scene.send(1, [partition])
    for _ in range(40):
        scene.send(rng.randint(1, 60), holes=rng.random() < 0.4)
    if layout == "one":  # else a reader waits for that: a hole may be a message that only files give out
        cluster.wait_flushed(scene.partitions[0].topic)
    scene.check(HOLES)


@each_framing
def test_large_messages(cluster: Cluster, group: str, rng: random.Random) -> None:
    scene = Scene(cluster, cluster.new_topic("one"), group, rng)
    target = scene.partitions[0]
    sizes = [1 << 20, *(rng.randint(1, 1 << 16) for _ in range(20)), 1]  # as much as a store takes at once
    scene.sent.update(messages.send(cluster, [(target, rng.randbytes(size)) for size in rng.sample(sizes, len(sizes))]))
    scene.check(10)


def test_a_message_of_the_greatest_length(cluster: Cluster, group: str, rng: random.Random) -> None:
    """Brokers do not return it before it is in files."""
    scene = Scene(cluster, cluster.new_topic("one"), group, rng)
    target = scene.partitions[0]
    sizes = [10, (1 << 20) + MESSAGE_SIZE_SLACK, 10]
    scene.sent.update(messages.send(cluster, [(target, rng.randbytes(size)) for size in sizes]))
    with ThreadPoolExecutor(1) as pool:
        reading_on = pool.submit(scene.read, target, 0, 3 * UNIT)
        cluster.wait_flushed(scene.topic)
        assert reading_on.result() == scene.expected(target, 0, 3 * UNIT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_files(early: Early, group: str, rng: random.Random, layout: Layout) -> None:
    early.flushed(early.scenes[layout], group, rng).check(FLUSHED)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_files_and_memory(early: Early, group: str, rng: random.Random, layout: Layout) -> None:
    scene = early.flushed(early.scenes[layout], group, rng)
    edge = min(reading.group_position(scene.cluster, group, partition).end for partition in scene.partitions)
    scene.send(2000)
    scene.check(MIXED, (edge,))


@pytest.mark.parametrize("layout", ["one", pytest.param("three", marks=pytest.mark.thorough)])
def test_across_the_ends_of_index_segments(
    early: Early, cluster: Cluster, group: str, rng: random.Random, layout: Layout
) -> None:
    scene = early.flushed(early.long if layout == "one" else long_topic(cluster, layout), group, rng)
    edges = scene.cluster.segments(next(iter(scene.sent)))
    assert len(edges) >= LONG // SEGMENT, "the index has fewer segments than the test is about"
    scene.check(SEGMENTS, edges)
