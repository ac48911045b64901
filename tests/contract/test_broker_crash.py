"""A broker that dies and comes back: reading goes on with exactly the rest, or an error tells what is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace

import pytest

from tests import messages, reading
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import BOTH, running
from tests.messages import Sent, bring_into_files
from tests.reading import UNIT, Row
from tests.real.topics import FLUSH_NEVER
from tubemq_spark.client import clock as backoff
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer import driver_claims as claims
from tubemq_spark.client.consumer import partition_reader as consumer
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.heartbeat import Heartbeat
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition

USES = ("kept", "lost", "reused")
FLUSHED = 12_000  # messages of each topic in the broker's files
TAIL, TAIL_SIZE = 5_000, 200  # messages sent right before a crash: several fetches, and less than a memory block holds
RIVAL = "some_java_consumer"
_LAYOUTS: tuple[Layout, ...] = ("one", "three")


@pytest.fixture(scope="module", params=BOTH)
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker for this file alone; it forgets claims as soon as TubeMQ permits, after 20 s."""
    layouts = {f"{use}_{layout}": LAYOUTS[layout] for use in USES for layout in _LAYOUTS}
    layouts["claimed"] = LAYOUTS["three"]
    topics = {name: replace(layout, settings=FLUSH_NEVER) for name, layout in layouts.items()}  # or tails are not lost
    with running(request.param, brokers=1, topics=topics, claim_timeout=20) as cluster:
        yield cluster


@dataclass(frozen=True)
class Shelf:
    cluster: Cluster
    partition: Partition
    sent: list[Sent]

    @property
    def sole(self) -> bool:
        return reading.owns_store(self.cluster, self.partition)

    def rows(self, start: int, end: int, sent: list[Sent] | None = None) -> list[Row]:
        return reading.expected(self.sent if sent is None else sent, start, end, sole=self.sole)

    def send(self, count: int) -> list[Sent]:
        return messages.send(self.cluster, messages.numbered([self.partition], count, TAIL_SIZE))[self.partition]

    def reader_in(self, tail: list[Sent], group: str, start: int, end: int) -> Iterator[FetchedBatch]:
        """One that has given out messages of `tail`."""
        ids = {sent.message_id for sent in tail}
        batches = reading.reader(self.cluster, group, self.partition, start, end).batches()
        while reading.rows_of(islice(batches, 1))[-1].message_id not in ids:
            pass
        return batches


@pytest.fixture(scope="module")
def stored(broker: Cluster) -> dict[str, list[Shelf]]:
    shelves: dict[str, list[Shelf]] = {}
    for use in USES:
        for layout in _LAYOUTS:
            partition = messages.partitions(broker, f"{use}_{layout}")[0]
            sent = messages.send(broker, messages.numbered([partition], FLUSHED))[partition]
            shelves.setdefault(use, []).append(Shelf(broker, partition, sent))
    messages.send(broker, messages.numbered(messages.partitions(broker, "claimed"), 60))
    return shelves


@pytest.fixture(scope="module")
def flushed(stored: dict[str, list[Shelf]], broker: Cluster) -> dict[str, list[Shelf]]:
    bring_into_files(broker, broker.topics)
    return stored


def restart(broker: Cluster) -> None:
    broker.kill_broker(1)
    broker.start_broker(1)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens instead of the next pauses between two tries; later pauses are real."""
    actions: list[Callable[[], object]] = []

    def sleep(seconds: float) -> None:
        if actions:
            actions.pop(0)()
        else:
            time.sleep(seconds)

    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return actions


def test_heartbeats_keep_claims(
    broker: Cluster, stored: dict[str, list[Shelf]], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = Heartbeat(period=0.1)
    monkeypatch.setattr(claims, "HEARTBEAT", often)
    monkeypatch.setattr(consumer, "HEARTBEAT", often)
    held, lent, silent = messages.partitions(broker, "claimed")
    session = ConsumerSession(messages.settings(broker), group, ["claimed"])
    session.register()
    driver = DriverClaims(session, ClaimId(reading.new_query(), run=1, batch=1), claim_timeout=0.0)
    driver.take({held: None, lent: None})
    shelf = stored["kept"][0]
    claim = reading.next_claim()
    reader = reading.reader(broker, group, shelf.partition, 0, FLUSHED * UNIT, claim=claim).batches()
    rows = reading.rows_of(islice(reader, 1))
    driver.lend([lent])
    assert reading.register(broker, group, silent, "dead").errCode == 200

    def are_forgotten() -> bool:
        return reading.register(broker, group, silent, RIVAL).errCode != 410

    broker.wait_for_expiry(are_forgotten, beating=[str(driver.claim), str(claim)])

    for kept in (held, lent, shelf.partition):
        assert reading.register(broker, group, kept, RIVAL).errCode == 410
    assert rows + reading.rows_of(reader) == shelf.rows(0, FLUSHED * UNIT)
    driver.release()
    session.close()


def test_readers_go_on_when_their_broker_comes_back(
    broker: Cluster, flushed: dict[str, list[Shelf]], group: str, pauses: list[Callable[[], object]]
) -> None:
    start, end = 100 * UNIT, FLUSHED * UNIT - 100 * UNIT
    readers = [reading.reader(broker, group, shelf.partition, start, end).batches() for shelf in flushed["kept"]]
    begun = [reading.rows_of(islice(reader, 1)) for reader in readers]
    broker.kill_broker(1)
    pauses.append(lambda: broker.start_broker(1))

    for shelf, reader, rows in zip(flushed["kept"], readers, begun, strict=True):
        assert 0 < len(rows) < len(shelf.rows(start, end))
        assert rows + reading.rows_of(reader) == shelf.rows(start, end)
        assert reading.look(broker, group, shelf.partition).group == start
    assert pauses == []


def test_a_lost_tail_ends_the_reading(broker: Cluster, flushed: dict[str, list[Shelf]], group: str) -> None:
    start, end = (FLUSHED - 100) * UNIT, (FLUSHED + TAIL) * UNIT
    tails = [shelf.send(TAIL) for shelf in flushed["lost"]]
    readers = [shelf.reader_in(tail, group, start, end) for shelf, tail in zip(flushed["lost"], tails, strict=True)]
    restart(broker)

    for shelf, reader in zip(flushed["lost"], readers, strict=True):
        left = reading.look(broker, group, shelf.partition).end
        assert left == FLUSHED * UNIT, "the tail was not lost, so this proves nothing"
        with pytest.raises(DataLossError, match=f"{shelf.partition}: .* the store lost its tail") as raised:
            reading.rows_of(reader)
        assert (raised.value.asked, raised.value.offered) == (end, left)
        assert reading.look(broker, group, shelf.partition).group == start
        assert reading.read(broker, group, shelf.partition, start, left) == shelf.rows(start, left)


def test_messages_at_positions_of_lost_ones_do_not_pass_for_them(
    broker: Cluster, flushed: dict[str, list[Shelf]], group: str
) -> None:
    start, end = (FLUSHED - 2000) * UNIT, (FLUSHED + TAIL) * UNIT
    tails = [shelf.send(TAIL) for shelf in flushed["reused"]]
    in_tail = [shelf.reader_in(tail, group, start, end) for shelf, tail in zip(flushed["reused"], tails, strict=True)]
    before = [
        reading.reader(broker, f"{group}_before", shelf.partition, start, end).batches() for shelf in flushed["reused"]
    ]
    begun = [reading.rows_of(islice(reader, 1)) for reader in before]
    restart(broker)

    for shelf, reader, other, rows in zip(flushed["reused"], in_tail, before, begun, strict=True):
        left = reading.look(broker, group, shelf.partition).end
        assert left == FLUSHED * UNIT, "the tail was not lost, so this proves nothing"
        now = shelf.sent + shelf.send(TAIL + 100)
        with pytest.raises(DataLossError, match=f"{shelf.partition}: .* uses the positions for other messages"):
            reading.rows_of(reader)
        assert reading.look(broker, group, shelf.partition).group == start
        # Who had given out nothing of the tail reads what there is.
        assert rows == shelf.rows(start, left)[: len(rows)]
        assert rows + reading.rows_of(other) == shelf.rows(start, end, now)


def test_a_driver_says_its_positions_again(broker: Cluster, flushed: dict[str, list[Shelf]], group: str) -> None:
    partitions = messages.partitions(broker, "claimed")
    with_position = dict.fromkeys(partitions, 20 * UNIT)
    session = ConsumerSession(messages.settings(broker), group, ["claimed"])
    session.register()
    driver = DriverClaims(session, ClaimId(reading.new_query(), run=1, batch=1), claim_timeout=0.0)
    driver.take(with_position)
    restart(broker)  # before the broker has written the positions down

    driver.ask(time.monotonic())

    assert all(driver.holds(partition) for partition in partitions)
    assert {partition: driver.standing(partition).group for partition in partitions} == with_position
    driver.release()
    session.close()
    assert {partition: reading.look(broker, group, partition).group for partition in partitions} == with_position
