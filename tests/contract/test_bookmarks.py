# SPDX-License-Identifier: Apache-2.0
"""Where a query's bookmarks are set, and that the next client finds them there."""

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
from tubemq_spark.client.consumer.bookmarks import Bookmark, move_bookmarks, read_bookmarks
from tubemq_spark.client.consumer.working_group import bookmark_group
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.protocol.metadata import Partition

STRANGER = "some_java_consumer"


@dataclass
class Scene:
    """A topic, and a name for the bookmarks of a query in it."""

    cluster: Cluster
    session: ProducerSession
    base: str
    topic: str

    def __post_init__(self) -> None:
        self.partitions = messages.partitions(self.cluster, self.topic)
        self.session.add_topics([self.topic])

    def send(self, count: int, partitions: list[Partition] | None = None) -> None:
        messages.send(self.cluster, messages.numbered(partitions or self.partitions, count))

    def read(self, base: str | None = None) -> dict[Partition, Bookmark]:
        return read_bookmarks(self.session, base or self.base, self.partitions)

    def begin(self) -> dict[Partition, Bookmark]:
        """Read the bookmarks as a new batch does."""
        return read_bookmarks(self.session, self.base, self.partitions, begin_batch=True)

    def commit(self, batch: int) -> None:
        move_bookmarks(self.session, self.base, batch, self.partitions)

    def ends(self) -> dict[Partition, int]:
        """Return the ends of the partitions' stores, as another group sees them."""
        return {p: reading.group_position(self.cluster, f"{self.base}_tests", p).end for p in self.partitions}

    def group_positions(self, batch: int) -> dict[Partition, int]:
        """Return the positions of the batch's group, as another consumer sees them, which needs free partitions."""
        group = bookmark_group(self.base, batch)
        return {p: reading.group_position(self.cluster, group, p).group for p in self.partitions}


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
def test_new_bookmarks_are_at_the_end_and_stay_there(scene: Scene) -> None:
    """Where partitions share a store, the first one gets all messages."""
    filled = [p for p in scene.partitions if p.partition_id % STORE_PARTITION_BASE == 0]
    scene.send(7 * len(filled), filled)
    ends = scene.ends()
    assert scene.read() == {p: Bookmark(end, end, end, end) for p, end in ends.items()}
    scene.send(3 * len(filled), filled)
    assert scene.read() == {p: Bookmark(end, end, end + 3 * UNIT, end) for p, end in ends.items()}
    assert scene.group_positions(0) == scene.group_positions(1) == ends


@pytest.mark.parametrize("layout", ["one", "three"])
def test_bookmarks_of_empty_stores_are_at_the_beginning(
    layout: Layout, cluster: Cluster, session: ProducerSession, group: str
) -> None:
    scene = Scene(cluster, session, group, cluster.new_topic(layout))
    assert scene.read() == dict.fromkeys(scene.partitions, Bookmark(0, 0, 0, 0))
    scene.send(len(scene.partitions))
    assert scene.read() == {p: Bookmark(0, 0, end, 0) for p, end in scene.ends().items()}


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_a_commit_moves_the_group_of_its_batch(scene: Scene) -> None:
    """All messages of a batch are behind its bookmark, however often it is repeated and committed."""
    bookmarks, before = scene.read(), scene.ends()
    for batch in range(4):
        assert {p: bookmark.before(batch) for p, bookmark in bookmarks.items()} == before
        for _ in range(2):
            scene.send(2 * len(scene.partitions))
            scene.commit(batch)
            again = scene.read()
            assert {p: bookmark.before(batch) for p, bookmark in again.items()} == before
            assert (
                {p: bookmark.before(batch + 1) for p, bookmark in again.items()}
                == scene.ends()
                == scene.group_positions(batch)
            )
        bookmarks, before = scene.read(), scene.ends()


def test_a_commit_sets_bookmarks_that_nobody_has_read(small: Scene) -> None:
    small.send(9)
    small.commit(5)
    after = small.ends()
    small.send(9)
    assert small.read() == {p: Bookmark(end, after[p], end, 0) for p, end in small.ends().items()}


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_the_third_group_tells_whether_a_batch_has_begun(small: Scene) -> None:
    def untried(batch: int) -> set[bool]:
        return {bookmark.is_untried(batch) for bookmark in small.begin().values()}

    small.send(9)
    assert untried(0) == {False}  # a new group proves nothing
    for batch in range(4):
        small.send(9)
        small.commit(batch)
        small.send(9)  # by other producers
        assert untried(batch + 1) == {True}
        assert untried(batch + 1) == {False}
        small.commit(batch)  # then Spark repeats the batch
        assert untried(batch) == {False}
        small.commit(batch)
        assert untried(batch + 1) == {True}
        assert small.begin().keys() == set(small.partitions)


def test_a_batch_without_messages_counts_as_untried(small: Scene) -> None:
    """Neither the committed batch nor the next one has messages that a repetition could find."""
    small.send(9)
    small.begin()
    for batch in range(3):
        small.commit(batch)
    for batch in (2, 3):
        assert {bookmark.is_untried(batch) for bookmark in small.begin().values()} == {True}
        small.commit(2)


# Other clients


@pytest.mark.parametrize("number", [0, 1])
def test_the_claim_of_another_process_is_taken_over(
    small: Scene, number: int, pauses: list[Callable[[], object]]
) -> None:
    """That process may be dead. Its claim is ended after one pause."""
    other = "spark_bookmarks_1_1000_1_abcdef"
    partition = small.partitions[number]
    assert reading.register(small.cluster, bookmark_group(small.base, number), partition, other, 0).errCode == 200
    small.send(9)
    pauses.append(lambda: None)
    small.commit(number)
    assert small.group_positions(number) == small.ends()
    assert pauses == []


def test_the_error_names_a_consumer_that_keeps_the_group(small: Scene) -> None:
    group, partition = bookmark_group(small.base, 0), small.partitions[1]
    assert reading.register(small.cluster, group, partition, STRANGER, 0).errCode == 200
    session = ProducerSession(replace(small.session.settings, retry_for=0.1))
    session.add_topics([small.topic])
    small.send(9)
    with pytest.raises(TransportError, match=f"claiming {partition} for group {group} at broker .*{STRANGER}.*Check"
                       " that the brokers run.* no other client uses the group") as raised:  # fmt: skip
        move_bookmarks(session, small.base, 2, small.partitions)
    assert raised.value.unserved == {partition}
    assert reading.unregister(small.cluster, group, partition, STRANGER).errCode == 200
    # All the others were moved.
    assert small.group_positions(0) == {p: 0 if p == partition else end for p, end in small.ends().items()}
    session.close()
