# SPDX-License-Identifier: Apache-2.0
"""Where a query's bookmarks are set, and that the next client finds them there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import EACH_FRAMING, EMBEDDED, REAL_THOROUGHLY, running
from tests.messages import bring_into_files
from tests.reading import UNIT
from tests.real.topics import FLUSH_NEVER
from tubemq_spark.client import forget_servers
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.bookmarks import Bookmark, bookmark_group, move_bookmarks, read_bookmarks
from tubemq_spark.client.settings import ClientSettings
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
def shared_topic() -> Callable[[Cluster, Layout], str]:
    """Return the topic of a layout that all tests of this file share."""
    names: dict[tuple[str, Layout], str] = {}

    def give(cluster: Cluster, layout: Layout) -> str:
        if (cluster.master, layout) not in names:
            names[cluster.master, layout] = cluster.new_topic(layout)
        return names[cluster.master, layout]

    return give


@pytest.fixture(params=["one", "three", "stores"])
def scene(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    session: ProducerSession,
    group: str,
    shared_topic: Callable[[Cluster, Layout], str],
) -> Scene:
    return Scene(cluster, session, group, shared_topic(cluster, request.param))


@pytest.fixture
def small(
    cluster: Cluster, session: ProducerSession, group: str, shared_topic: Callable[[Cluster, Layout], str]
) -> Scene:
    return Scene(cluster, session, group, shared_topic(cluster, "three"))


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
    assert scene.read() == {p: Bookmark(end, end, end) for p, end in ends.items()}
    scene.send(3 * len(filled), filled)
    assert scene.read() == {p: Bookmark(end, end, end + 3 * UNIT) for p, end in ends.items()}
    assert scene.group_positions(0) == scene.group_positions(1) == ends


@pytest.mark.parametrize("layout", ["one", "three"])
def test_bookmarks_of_empty_stores_are_at_the_beginning(
    layout: Layout, cluster: Cluster, session: ProducerSession, group: str
) -> None:
    scene = Scene(cluster, session, group, cluster.new_topic(layout))
    assert scene.read() == dict.fromkeys(scene.partitions, Bookmark(0, 0, 0))
    scene.send(len(scene.partitions))
    assert scene.read() == {p: Bookmark(0, 0, end) for p, end in scene.ends().items()}


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
    assert small.read() == {p: Bookmark(end, after[p], end) for p, end in small.ends().items()}


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_the_third_group_tells_whether_a_batch_has_begun(small: Scene) -> None:
    def untried(batch: int) -> set[bool]:
        return {bookmark.is_untried(batch) for bookmark in small.begin().values()}

    small.send(9)
    assert untried(0) == {False}  # a new group proves nothing
    for batch in range(4):
        small.send(9)
        small.commit(batch)
        assert not any(bookmark.is_untried(batch + 1) for bookmark in small.read().values())  # without the third group
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


def test_each_query_and_topic_has_its_own_bookmarks(
    small: Scene, shared_topic: Callable[[Cluster, Layout], str]
) -> None:
    other = Scene(small.cluster, small.session, small.base, shared_topic(small.cluster, "one"))
    both = read_bookmarks(small.session, small.base, [*small.partitions, *other.partitions, *small.partitions])
    assert sorted(both) == sorted(small.partitions + other.partitions)
    begins = small.ends() | other.ends()
    small.read("another")
    small.send(9)
    other.send(9)
    small.commit(1)
    assert {p: bookmark.before(2) for p, bookmark in other.read().items()} == {p: begins[p] for p in other.partitions}
    assert {p: bookmark.before(2) for p, bookmark in small.read("another").items()} == {
        p: begins[p] for p in small.partitions
    }
    assert {p: bookmark.before(2) for p, bookmark in small.read().items()} == small.ends()


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


def test_another_consumer_is_waited_for(small: Scene, pauses: list[Callable[[], object]]) -> None:
    group, partition = bookmark_group(small.base, 0), small.partitions[1]
    assert reading.register(small.cluster, group, partition, STRANGER, 0).errCode == 200
    pauses += [lambda: None, lambda: reading.unregister(small.cluster, group, partition, STRANGER)]
    small.commit(0)
    assert small.group_positions(0) == small.ends()
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


def read_in_turn(settings: ClientSettings, base: str, topic: str, times: int) -> list[dict[Partition, Bookmark]]:
    """Read the bookmarks in a process of its own."""
    try:
        with SESSIONS().lease(settings) as session:
            session.add_topics([topic])
            return [read_bookmarks(session, base, session.cluster.partitions(topic)) for _ in range(times)]
    finally:
        forget_servers()


def test_threads_and_processes_may_read_bookmarks_at_once(small: Scene) -> None:
    """They read while another client commits. Each of them sees a position that was committed."""
    small.send(9)
    first = small.read()
    ends = [small.ends()]
    settings = small.session.settings
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        processes = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        asked = [
            pool.submit(read_in_turn, settings, small.base, small.topic, 10) for pool in (threads, threads, processes)
        ]
        while not all(one.done() for one in asked):
            small.send(3)
            ends.append(small.ends())
            small.commit(0)
    for one in asked:
        for partition in small.partitions:
            positions = [bookmarks[partition].even for bookmarks in one.result()]
            assert positions == sorted(positions)
            assert set(positions) <= {end[partition] for end in ends}
            assert {bookmarks[partition].odd for bookmarks in one.result()} == {first[partition].odd}
    assert small.group_positions(0) == small.ends()


# Brokers that are away or crash: a cluster of this module alone, because the tests stop it


@pytest.fixture(scope="module", params=[EMBEDDED, REAL_THOROUGHLY])
def brokers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    spec = replace(LAYOUTS["three"], settings=FLUSH_NEVER)  # else no tail is lost
    with running(request.param, topics=dict.fromkeys(("away", "back", "crashed"), spec)) as cluster:
        yield cluster


def opened(
    stack: ExitStack,
    cluster: Cluster,
    topic: str,
    base: str,
    retry_for: float = 300.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Scene:
    settings = replace(messages.settings(cluster), retry_for=retry_for, clock=clock)
    return Scene(cluster, stack.enter_context(SESSIONS().lease(settings)), base, topic)


def test_the_error_names_a_broker_that_is_away_after_the_others_were_moved(brokers: Cluster, group: str) -> None:
    with ExitStack() as stack:
        scene = opened(stack, brokers, "away", group, retry_for=0.3)
        first = scene.read()
        scene.send(12)
        ends = scene.ends()
        brokers.stop_broker(2)
        away = {p for p in scene.partitions if p.broker_id == 2}
        for what in (scene.read, lambda: scene.commit(0)):
            with pytest.raises(
                TransportError, match=r"at broker 2 at .* gave up after 0\.3 s, with 3 of 6 partitions"
            ) as raised:
                what()
            assert raised.value.unserved == away
        brokers.start_broker(2)
        settled = opened(stack, brokers, "away", group)
        bookmarks = settled.read()
        assert {p: bookmark.even for p, bookmark in bookmarks.items()} == {p: 0 if p in away else ends[p] for p in ends}
        assert {p: bookmark.odd for p, bookmark in bookmarks.items()} == {
            p: bookmark.odd for p, bookmark in first.items()
        }


def test_a_broker_that_comes_back_is_asked_again(brokers: Cluster, group: str) -> None:
    with ExitStack() as stack:
        started: list[int] = []

        def start(seconds: float) -> None:
            if not started:
                started.append(2)
                brokers.start_broker(2)
            else:
                time.sleep(seconds)  # a real broker needs some time

        scene = opened(stack, brokers, "back", group, clock=SkippingClock(start))
        scene.read()
        scene.send(12)
        brokers.stop_broker(2)
        scene.commit(1)
        assert started == [2]
        assert scene.group_positions(1) == scene.ends()


def test_a_crash_leaves_bookmarks_at_their_last_or_an_earlier_position(brokers: Cluster, group: str) -> None:
    """They may be behind the end, because the messages that were not flushed are lost."""
    with ExitStack() as stack:
        scene = opened(stack, brokers, "crashed", group)
        crashed = [p for p in scene.partitions if p.broker_id == 1]
        scene.send(30, crashed)
        scene.read()
        scene.commit(0)
        bring_into_files(brokers, ["crashed"])  # groups' positions too
        scene.send(60, crashed)
        scene.commit(0)
        brokers.kill_broker(1)
        brokers.start_broker(1)
        for partition, bookmark in scene.read().items():
            flushed, moved = (30 * UNIT, 90 * UNIT) if partition in crashed else (0, 0)
            assert bookmark.even in (flushed, moved)
            assert bookmark.odd == flushed
            assert bookmark.end == flushed, "the tail was not lost, so this proves nothing"
        scene.commit(0)
        assert scene.group_positions(0) == scene.ends()
