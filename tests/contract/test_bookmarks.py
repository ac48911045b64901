"""Where a query's bookmarks are put, and that they are there for whoever asks next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from tests import messages, reading
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import BOTH, EACH_FRAMING, running
from tests.messages import bring_into_files
from tests.reading import UNIT
from tests.real.topics import FLUSH_NEVER
from tubemq_spark.client import clock as backoff
from tubemq_spark.client import forget_servers
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
    """A topic of one's own, and a name for bookmarks in it."""

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
        """A batch is planned."""
        return read_bookmarks(self.session, self.base, self.partitions, begin_batch=True)

    def commit(self, batch: int) -> None:
        move_bookmarks(self.session, self.base, batch, self.partitions)

    def ends(self) -> dict[Partition, int]:
        """Of the partitions' stores, as another group sees it."""
        return {p: reading.look(self.cluster, f"{self.base}_tests", p).end for p in self.partitions}

    def stand(self, batch: int) -> dict[Partition, int]:
        """Where the group of a batch stands, as another consumer of it sees it. All partitions are free therefore."""
        group = bookmark_group(self.base, batch)
        return {p: reading.look(self.cluster, group, p).group for p in self.partitions}


@pytest.fixture
def session(cluster: Cluster) -> Iterator[ProducerSession]:
    with SESSIONS.lease(messages.settings(cluster)) as session:
        yield session


@pytest.fixture(scope="module")
def shared_topic() -> Callable[[Cluster, Layout], str]:
    """One of each layout for all tests of this file."""
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
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens instead of the next pauses between two tries; a pause without anything to happen is an error."""
    actions: list[Callable[[], object]] = []

    def sleep(_: float) -> None:
        assert actions, "there was nothing to wait for"
        actions.pop(0)()

    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return actions


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_new_bookmarks_are_at_the_end_and_stay_there(scene: Scene) -> None:
    """Where stores have several partitions, one gets all."""
    filled = [p for p in scene.partitions if p.partition_id % STORE_PARTITION_BASE == 0]
    scene.send(7 * len(filled), filled)
    ends = scene.ends()
    assert scene.read() == {p: Bookmark(end, end, end) for p, end in ends.items()}
    scene.send(3 * len(filled), filled)
    assert scene.read() == {p: Bookmark(end, end, end + 3 * UNIT) for p, end in ends.items()}
    assert scene.stand(0) == scene.stand(1) == ends


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
    """What a batch sends stands behind its bookmark, however often it is tried and committed."""
    marks, before = scene.read(), scene.ends()
    for batch in range(4):
        assert {p: mark.before(batch) for p, mark in marks.items()} == before
        for _ in range(2):
            scene.send(2 * len(scene.partitions))
            scene.commit(batch)
            again = scene.read()
            assert {p: mark.before(batch) for p, mark in again.items()} == before
            assert {p: mark.before(batch + 1) for p, mark in again.items()} == scene.ends() == scene.stand(batch)
        marks, before = scene.read(), scene.ends()


def test_a_commit_may_come_first(small: Scene) -> None:
    small.send(9)
    small.commit(5)
    after = small.ends()
    small.send(9)
    assert small.read() == {p: Bookmark(end, after[p], end) for p, end in small.ends().items()}


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_the_third_group_tells_whether_a_batch_has_begun(small: Scene) -> None:
    def untried(batch: int) -> set[bool]:
        return {mark.is_untried(batch) for mark in small.begin().values()}

    small.send(9)
    assert untried(0) == {False}  # the group is new, and proves nothing
    for batch in range(4):
        small.send(9)
        small.commit(batch)
        assert not any(mark.is_untried(batch + 1) for mark in small.read().values())  # which does not ask for it
        small.send(9)  # others write meanwhile
        assert untried(batch + 1) == {True}
        assert untried(batch + 1) == {False}
        small.commit(batch)  # of a try that counts; then Spark tries the batch again
        assert untried(batch) == {False}
        small.commit(batch)
        assert untried(batch + 1) == {True}
        assert small.begin().keys() == set(small.partitions)


def test_a_commit_after_which_nothing_came_proves_as_much(small: Scene) -> None:
    """There is nothing of the batch that might be tried again, nor of the next one."""
    small.send(9)
    small.begin()
    for batch in range(3):
        small.commit(batch)
    for batch in (2, 3):
        assert {mark.is_untried(batch) for mark in small.begin().values()} == {True}
        small.commit(2)


def test_queries_and_topics_have_bookmarks_of_their_own(
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
    assert {p: mark.before(2) for p, mark in other.read().items()} == {p: begins[p] for p in other.partitions}
    assert {p: mark.before(2) for p, mark in small.read("another").items()} == {p: begins[p] for p in small.partitions}
    assert {p: mark.before(2) for p, mark in small.read().items()} == small.ends()


# Others


@pytest.mark.parametrize("number", [0, 1])
def test_the_claim_of_another_process_is_no_obstacle(
    small: Scene, number: int, pauses: list[Callable[[], object]]
) -> None:
    """It may have died with it: it is taken away after one pause."""
    other = "spark_bookmarks_1_1000_1_abcdef"
    partition = small.partitions[number]
    assert reading.register(small.cluster, bookmark_group(small.base, number), partition, other, 0).errCode == 200
    small.send(9)
    pauses.append(lambda: None)
    small.commit(number)
    assert small.stand(number) == small.ends()
    assert pauses == []


def test_somebody_else_is_waited_for(small: Scene, pauses: list[Callable[[], object]]) -> None:
    group, partition = bookmark_group(small.base, 0), small.partitions[1]
    assert reading.register(small.cluster, group, partition, STRANGER, 0).errCode == 200
    pauses += [lambda: None, lambda: reading.unregister(small.cluster, group, partition, STRANGER)]
    small.commit(0)
    assert small.stand(0) == small.ends()
    assert pauses == []


def test_somebody_else_who_stays_is_named(small: Scene) -> None:
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
    assert small.stand(0) == {p: 0 if p == partition else end for p, end in small.ends().items()}
    session.close()


def read_in_turn(settings: ClientSettings, base: str, topic: str, times: int) -> list[dict[Partition, Bookmark]]:
    """As a process of its own does."""
    try:
        with SESSIONS.lease(settings) as session:
            session.add_topics([topic])
            return [read_bookmarks(session, base, session.cluster.partitions(topic)) for _ in range(times)]
    finally:
        forget_servers()


def test_many_may_ask_at_once(small: Scene) -> None:
    """Processes, each with threads, read while one commits; they all see one of the places where it was."""
    small.send(9)
    first = small.read()
    ends = [small.ends()]
    count = max(2, min(3, os.cpu_count() or 2))
    settings = small.session.settings
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(count))
        processes = stack.enter_context(ProcessPoolExecutor(count, mp_context=get_context("spawn")))
        asked = [
            pool.submit(read_in_turn, settings, small.base, small.topic, 20)
            for pool in (threads, processes)
            for _ in range(count)
        ]
        while not all(one.done() for one in asked):
            small.send(3)
            ends.append(small.ends())
            small.commit(0)
    for one in asked:
        for partition in small.partitions:
            places = [marks[partition].even for marks in one.result()]
            assert places == sorted(places)
            assert set(places) <= {end[partition] for end in ends}
            assert {marks[partition].odd for marks in one.result()} == {first[partition].odd}
    assert small.stand(0) == small.ends()


# Brokers that are away, and those that crash. Module's own, for they are stopped.


@pytest.fixture(scope="module", params=BOTH)
def brokers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    spec = replace(LAYOUTS["three"], settings=FLUSH_NEVER)  # or the tail is not lost
    with running(request.param, topics=dict.fromkeys(("away", "back", "crashed"), spec)) as cluster:
        yield cluster


def opened(stack: ExitStack, cluster: Cluster, topic: str, base: str, retry_for: float = 300.0) -> Scene:
    settings = replace(messages.settings(cluster), retry_for=retry_for)
    return Scene(cluster, stack.enter_context(SESSIONS.lease(settings)), base, topic)


def test_a_broker_that_is_away_is_named_when_the_others_were_moved(brokers: Cluster, group: str) -> None:
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
        marks = settled.read()
        assert {p: mark.even for p, mark in marks.items()} == {p: 0 if p in away else ends[p] for p in ends}
        assert {p: mark.odd for p, mark in marks.items()} == {p: mark.odd for p, mark in first.items()}


def test_a_broker_that_comes_back_is_asked_again(brokers: Cluster, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        scene = opened(stack, brokers, "back", group)
        scene.read()
        scene.send(12)
        brokers.stop_broker(2)
        started: list[int] = []

        def sleep(seconds: float) -> None:
            if not started:
                started.append(2)
                brokers.start_broker(2)
            else:
                time.sleep(seconds)

        monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        scene.commit(1)
        assert started == [2]
        assert scene.stand(1) == scene.ends()


def test_a_crash_leaves_bookmarks_where_they_are_or_were(brokers: Cluster, group: str) -> None:
    """Never further on; they may stand behind the end, for what was not flushed is gone."""
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
        for partition, mark in scene.read().items():
            flushed, moved = (30 * UNIT, 90 * UNIT) if partition in crashed else (0, 0)
            assert mark.even in (flushed, moved)
            assert mark.odd == flushed
            assert mark.end == flushed, "the tail was not lost, so this proves nothing"
        scene.commit(0)
        assert scene.stand(0) == scene.ends()
