# SPDX-License-Identifier: Apache-2.0
"""Claims for one request: where partitions end, and positions that groups exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import EACH_FRAMING
from tests.reading import UNIT
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.short_claims import exchange_position, read_ends
from tubemq_spark.client.consumer.working_group import ends_group
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.protocol.metadata import Partition

STRANGER = "some_java_consumer"


@dataclass
class Scene:
    """A topic, and what the names of a query's groups begin with."""

    cluster: Cluster
    session: ProducerSession
    base: str
    topic: str

    def __post_init__(self) -> None:
        self.partitions = messages.partitions(self.cluster, self.topic)
        self.session.add_topics([self.topic])

    def send(self, count: int, partitions: list[Partition] | None = None) -> None:
        messages.send(self.cluster, messages.numbered(partitions or self.partitions, count))

    def read(self) -> dict[Partition, int]:
        return read_ends(self.session, self.base, self.partitions)

    def exchange(self, partition: Partition, position: int | None) -> tuple[int, int] | None:
        return exchange_position(self.session, f"{self.base}_task_0", partition, position, within=30.0)

    def ends(self) -> dict[Partition, int]:
        """Return the ends of the partitions' stores, as another group sees them."""
        return {p: reading.group_position(self.cluster, f"{self.base}_tests", p).end for p in self.partitions}


@pytest.fixture
def session(cluster: Cluster) -> Iterator[ProducerSession]:
    with SESSIONS().lease(messages.settings(cluster)) as session:
        yield session


@pytest.fixture(scope="module")
def shared_topic(cluster: Cluster) -> Callable[[Layout], str]:
    """Return the topic of a layout that all tests of this file share."""
    return cache(cluster.new_topic)


@pytest.fixture
def new_scene(
    cluster: Cluster, session: ProducerSession, group: str, shared_topic: Callable[[Layout], str]
) -> Callable[[Layout], Scene]:
    return lambda layout: Scene(cluster, session, group, shared_topic(layout))


@pytest.fixture(params=LAYOUTS)
def scene(request: pytest.FixtureRequest, new_scene: Callable[[Layout], Scene]) -> Scene:
    return new_scene(request.param)


@pytest.fixture
def small(new_scene: Callable[[Layout], Scene]) -> Scene:
    return new_scene("three")


@pytest.fixture
def pauses(session: ProducerSession, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens in the next pauses between two attempts. More pauses are an error."""
    actions: list[Callable[[], object]] = []

    def sleep(_: float) -> None:
        assert actions, "there was nothing to wait for"
        actions.pop(0)()

    monkeypatch.setattr(session, "settings", replace(session.settings, clock=SkippingClock(sleep)))
    return actions


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_ends_are_those_of_the_stores(scene: Scene) -> None:
    """Where partitions share a store, the first one gets all messages."""
    filled = [p for p in scene.partitions if p.partition_id % STORE_PARTITION_BASE == 0]
    before = scene.read()
    assert before == scene.ends()
    scene.send(7 * len(filled), filled)
    assert scene.read() == scene.ends() == {p: end + 7 * UNIT for p, end in before.items()}


@pytest.mark.parametrize("layout", ["one", "three"])
def test_an_empty_store_ends_at_its_beginning(
    layout: Layout, cluster: Cluster, session: ProducerSession, group: str
) -> None:
    scene = Scene(cluster, session, group, cluster.new_topic(layout))
    assert scene.read() == dict.fromkeys(scene.partitions, 0)


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_a_position_is_exchanged(small: Scene) -> None:
    """A broker moves a group only within the store, and knows a new group at its beginning."""
    small.send(9)
    partition = small.partitions[1]
    end = small.ends()[partition]
    assert small.exchange(partition, None) == (0, 0)
    assert small.exchange(partition, UNIT) == (0, UNIT)
    assert small.exchange(partition, end + UNIT) == (UNIT, end)
    assert small.exchange(partition, None) == (end, end)


# Other clients


def test_the_claim_of_another_process_is_taken_over(small: Scene, pauses: list[Callable[[], object]]) -> None:
    """That process may be dead. Its claim is ended after one pause."""
    other, partition = "spark_ends_1_1000_1_abcdef", small.partitions[0]
    assert reading.register(small.cluster, ends_group(small.base), partition, other).errCode == 200
    pauses.append(lambda: None)
    assert small.read() == small.ends()
    assert pauses == []


def test_the_error_names_a_consumer_that_keeps_the_group(small: Scene) -> None:
    group, partition = ends_group(small.base), small.partitions[1]
    assert reading.register(small.cluster, group, partition, STRANGER).errCode == 200
    session = ProducerSession(replace(small.session.settings, retry_for=0.1))
    session.add_topics([small.topic])
    with pytest.raises(TransportError, match=f"claiming {partition} for group {group} at broker .*{STRANGER}.*Check"
                       " that the brokers run.* no other client uses the group") as raised:  # fmt: skip
        read_ends(session, small.base, small.partitions)
    assert raised.value.unserved == {partition}
    assert reading.unregister(small.cluster, group, partition, STRANGER).errCode == 200
    session.close()
