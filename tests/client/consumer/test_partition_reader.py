# SPDX-License-Identifier: Apache-2.0
"""A partition reader and a fake broker, with faults at chosen moments."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.fake_broker import OURS, PARTITION, Break, FakeBroker
from tests.peers import refused_address
from tests.protocol.simulated_store import UNIT, Limits, SimulatedStore
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import DataLossError, FencedError, PositionMovedError, ServerError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Address, Broker

OLD = ClaimId("query", run=1, batch=1, task=0, attempt=0)
NEW = replace(OLD, attempt=1)


class ReaderClock(ManualClock):
    """Time passes only by the reader's pauses, which take no real time, and by what a test adds."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(0.001)  # the fake broker is a thread of this process


@dataclass
class Scene:
    """A broker, and a range that contains the end of a flushed block."""

    broker: FakeBroker
    sole: bool
    clock: ReaderClock
    start: int = 5 * UNIT
    end: int = 300 * UNIT

    def reader(
        self,
        claim: ClaimId = NEW,
        address: Address | None = None,
        *,
        previous: str | None = None,
        fail: bool = True,
        **settings: Any,
    ) -> Generator[FetchedBatch, None, None]:
        settings = {"framing": Framing.STANDARD, "retry_for": 30.0, **settings}
        where = Broker(1, address or self.broker.peer.address)
        return PartitionReader(
            ClientSettings(masters=(), clock=self.clock, **settings),
            "g",
            claim,
            RangeToRead(PARTITION, self.start, self.end, self.sole),
            PartitionSnapshot(where, previous),
            claim_timeout=0.0,
            loss_policy=LossPolicy(fail, "Do this"),
        ).batches()

    @property
    def expected(self) -> list[tuple[int | None, int]]:
        found = self.broker.store.readable(OURS, self.start, self.end)
        return [(position if self.sole else None, message.messageId) for position, message in found]


def rows_of(batches: Iterator[FetchedBatch]) -> list[tuple[int | None, int]]:
    rows: list[tuple[int | None, int]] = []
    for batch in batches:
        positions: Sequence[int | None] = batch.positions or [None] * len(batch.messages)
        rows += [(position, message.messageId) for position, message in zip(positions, batch.messages, strict=True)]
    return rows


@pytest.fixture(params=[True, False], ids=["sole", "shared"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    store = SimulatedStore(Limits(file_entries=20, memory_entries=30))
    for number in range(320):
        store.append(OURS if request.param or number % 3 else OURS + 1)
        if number == 150:
            store.swap_blocks()
            store.flush()
    broker = FakeBroker(store)
    with broker.peer:
        yield Scene(broker, request.param, ReaderClock(1000.0))
        POOL().close()


def test_a_reader_leaves_the_group_at_the_start_and_releases_the_claim(scene: Scene) -> None:
    assert rows_of(scene.reader()) == scene.expected
    broker = scene.broker
    assert (broker.holder, broker.store.confirmed, broker.log[-1]) == (None, scene.start // UNIT, "release")


def test_the_drivers_claim_is_released_right_before_ours(scene: Scene) -> None:
    scene.broker.holder = "driver"
    assert rows_of(scene.reader(previous="driver")) == scene.expected
    assert scene.broker.log[:3] == ["release", "seek", "fetch"]


# Fetches that nobody waited for


class Landing:
    """A fetch of an earlier holder ends before the n-th fetch, and so moves the cursor by what it read."""

    def __init__(self, scene: Scene, fetch: int, entries: int) -> None:
        self.scene, self.left, self.entries = scene, fetch, entries
        self.landed = False

    def __call__(self, step: str) -> None:
        if step == "fetch":
            self.left -= 1
            if self.left == -1:
                self.scene.broker.store.in_flight += self.entries
                self.landed = True


@pytest.mark.parametrize("entries", [1, 20, 30])
def test_a_fetch_of_a_fenced_reader_loses_nothing(scene: Scene, entries: int) -> None:
    moved = 0
    for fetch in range(60):
        scene.broker.holder = str(OLD)
        landing = Landing(scene, fetch, entries)
        scene.broker.script = landing
        try:
            rows = rows_of(scene.reader())
        except PositionMovedError:
            moved += 1
        else:
            assert rows == scene.expected, fetch
        assert not scene.broker.holder
        if not landing.landed:
            break
    assert moved > 0
    assert fetch > 20  # so many fetches are made by a reader that takes over


def test_a_readers_own_late_fetch_of_a_broken_connection_loses_nothing(scene: Scene) -> None:
    moved = 0
    for fetch in range(4, 60):
        landing, broken = Landing(scene, fetch, 20), Break("fetch", 3)

        def both(step: str, landing: Landing = landing, broken: Break = broken) -> None:
            landing(step)
            broken(step)

        scene.broker.script = both
        try:
            rows = rows_of(scene.reader())
        except PositionMovedError:
            moved += 1
        else:
            assert rows == scene.expected, fetch
        scene.broker.holder = None
        if not landing.landed:
            break
    assert moved > 0
    assert fetch > 20


@pytest.mark.parametrize("batches", [1, 3])
def test_the_claim_is_released_after_all_fetches_were_answered(scene: Scene, batches: int) -> None:
    under_way = 0

    def slow(step: str) -> None:
        nonlocal under_way
        under_way += step == "fetch"
        time.sleep(0.02 if step == "fetch" else 0)
        under_way -= step == "fetch"
        assert step != "release" or under_way == 0

    reader = scene.reader()
    rows_of(islice(reader, batches))
    scene.broker.script = slow
    reader.close()
    assert scene.broker.holder is None
    assert "fetch" not in scene.broker.log[scene.broker.log.index("release") :]


def test_a_claim_with_unanswered_fetches_is_not_released(scene: Scene) -> None:
    given = threading.Event()

    def break_fifth_fetch(step: str) -> None:
        if step == "fetch" and scene.broker.log.count("fetch") == 4:
            given.wait(30)
            raise ConnectionError

    scene.broker.script = break_fifth_fetch
    reader = scene.reader()
    rows_of(islice(reader, 2))
    given.set()
    reader.close()
    assert "release" not in scene.broker.log
    assert scene.broker.holder == str(NEW)


# Claims that are gone


@pytest.mark.parametrize("holder", [None, str(replace(NEW, attempt=2))], ids=["free", "taken"])
@pytest.mark.parametrize("step", ["fetch", "roll back"])
def test_a_reader_that_lost_its_claim_claims_nothing(scene: Scene, holder: str | None, step: str) -> None:
    def take(happens: str) -> None:
        if happens == step and len(scene.broker.log) > 4:
            scene.broker.holder = holder

    scene.broker.script = take
    with pytest.raises(FencedError):
        rows_of(scene.reader())
    assert scene.broker.holder == holder
    assert scene.broker.log.count("seek") == 1


def test_after_a_long_pause_the_claim_is_proven_before_a_delivery(scene: Scene) -> None:
    reader = scene.reader()
    rows_of(islice(reader, 2))  # some fetches are under way then
    assert "beat" not in scene.broker.log
    scene.clock.advance(3600)
    rows_of(islice(reader, 1))
    assert scene.broker.log.count("beat") == 1
    scene.clock.advance(3600)
    scene.broker.holder = str(replace(NEW, attempt=2))
    with pytest.raises(FencedError, match="does not hold the partition any more"):
        next(reader)


# Connections that break


@pytest.mark.parametrize("step", ["seek", "fetch", "roll back", "release"])
@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_broken_connection_loses_and_repeats_no_message(scene: Scene, step: str, number: int) -> None:
    scene.broker.script = Break(step, number)
    assert rows_of(scene.reader()) == scene.expected
    assert scene.broker.store.confirmed == scene.start // UNIT


def test_many_broken_connections_lose_and_repeat_no_message(scene: Scene) -> None:
    for seed in range(20):
        dice = random.Random(seed)

        def tear(step: str, dice: random.Random = dice) -> None:
            if dice.random() < 0.03:
                raise ConnectionError

        scene.broker.script = tear
        assert rows_of(scene.reader()) == scene.expected, seed


def test_a_ready_batch_is_delivered_although_the_proof_fails_once(scene: Scene) -> None:
    """The consumer is slow, so the reader proves its claim before the next batch. Just then the connection breaks."""
    for number in range(4):
        scene.broker.script = Break("beat", number)
        rows: list[tuple[int | None, int]] = []
        reader = scene.reader()
        for batch in reader:
            rows += rows_of(iter([batch]))
            scene.clock.advance(3600)
        assert rows == scene.expected, number
        assert scene.broker.log.count("beat") > number


def test_the_time_of_a_slow_consumer_does_not_count_as_retry_time(scene: Scene) -> None:
    reader = scene.reader()
    rows = rows_of(islice(reader, 1))
    scene.clock.advance(3600)  # far more than it tries on without progress
    scene.broker.script = Break("fetch", 2)
    assert rows + rows_of(reader) == scene.expected


@pytest.mark.parametrize("code", [500, 503, 419, 403, 452])
def test_the_reader_retries_after_temporary_error_codes(scene: Scene, code: int) -> None:
    refusals = 2

    def refuse(step: str) -> int | None:
        nonlocal refusals
        if step != "fetch" or refusals == 0:
            return None
        refusals -= 1
        return code

    scene.broker.script = refuse
    assert rows_of(scene.reader()) == scene.expected
    assert refusals == 0


def test_the_reader_fails_after_too_long_without_messages(scene: Scene) -> None:
    scene.broker.script = lambda step: 503 if step == "fetch" else None
    with pytest.raises(ServerError, match=r"1:demo:7 at broker 1 at .*: nothing came for 0\.3 s"):
        rows_of(scene.reader(retry_for=0.3))
    assert scene.broker.holder is None


def test_a_broker_that_stays_away(scene: Scene) -> None:
    address = refused_address()
    said = rf"1:demo:7 at broker 1 at {address}: gave up after 0\.3 s without progress: .*cannot connect.*Check that"
    with pytest.raises(TransportError, match=said):
        rows_of(scene.reader(address=address, retry_for=0.3))


def test_fetches_of_a_second_reading_count_as_progress(scene: Scene) -> None:
    """The connection breaks again before the second reading comes to anything new, which takes longer than a reader
    tries without progress."""
    for first, second in [(12, 10), (12, 3), (6, 6)]:
        fetches = 0

        def take_time(step: str, breaks: tuple[int, ...] = (first, first + second)) -> None:
            nonlocal fetches
            fetches += step == "fetch"
            scene.clock.advance(0.2 if step == "fetch" else 0)
            if step == "fetch" and fetches in breaks:
                raise ConnectionError

        scene.broker.script = take_time
        assert rows_of(scene.reader(retry_for=0.5)) == scene.expected
        assert fetches > first + second


def test_the_reader_fails_if_the_connection_always_breaks_at_the_same_place(scene: Scene) -> None:
    since = 0

    def tear(step: str) -> None:
        nonlocal since
        since = 0 if step == "seek" and scene.broker.log[-1:] != ["roll back"] else since + (step == "fetch")
        if since == 5:
            raise ConnectionError
        assert len(scene.broker.log) < 1000

    scene.broker.script = tear
    with pytest.raises(
        TransportError, match=r"gave up after 2 s .* the connection broke \d+ times before .* Check that"
    ):
        rows_of(scene.reader(retry_for=2.0))


# Brokers that give nothing


@pytest.mark.parametrize("stale", [1, 2, 5])
def test_a_few_empty_replies_do_no_harm(scene: Scene, stale: int) -> None:
    scene.broker.store.stale = stale
    assert rows_of(scene.reader()) == scene.expected


def test_the_reader_fails_if_replies_stay_empty_at_one_position(scene: Scene) -> None:
    scene.broker.store.stale = 1_000_000
    with pytest.raises(ServerError, match=r"nothing came for 5 s, .* no messages, and the position stays at 140\."):
        rows_of(scene.reader(retry_for=5.0))
    assert scene.broker.log.count("fetch") < 30
    assert scene.broker.holder is None


# Losses that are borne


def test_a_store_that_ends_before_the_range_gives_no_rows(scene: Scene) -> None:
    scene.broker.store.crash(keep=3, confirmed=None)
    scene.broker.script = lambda step: None if len(scene.broker.log) < 100 else pytest.fail("it asks for ever")
    assert rows_of(scene.reader(fail=False)) == []
    assert scene.broker.log.count("seek") <= 3


def test_messages_that_replaced_lost_ones_are_not_delivered(scene: Scene) -> None:
    """The store loses delivered messages, and has others at their positions when the range is read again."""
    reader = scene.reader(fail=False)
    rows = rows_of(islice(reader, 2))

    def lose(step: str) -> None:
        scene.broker.script = lambda step: None
        scene.broker.store.crash(keep=scene.start // UNIT, confirmed=None)
        scene.broker.store.append(*[OURS] * 400)
        raise ConnectionError

    before = scene.expected
    scene.broker.script = lose
    rows += rows_of(reader)
    assert rows == before[: len(rows)]


def test_the_reader_fails_after_many_losses_in_a_row(scene: Scene) -> None:
    def expire(step: str) -> None:
        if step == "seek":
            scene.broker.store.expire(scene.broker.store.minimum + 6)
        assert len(scene.broker.log) < 1000

    scene.broker.script = expire
    with pytest.raises(DataLossError, match=r"retention removed .* Do this"):
        rows_of(scene.reader(fail=False))
    assert scene.broker.log.count("seek") < 30


def test_the_reader_asks_for_the_address_of_a_broker_that_has_moved(scene: Scene) -> None:
    """It does not ask after each broken connection."""
    asked: list[Broker] = []
    here, there = Broker(1, refused_address()), Broker(1, scene.broker.peer.address)

    def find(broker: Broker) -> Broker:
        asked.append(broker)
        return broker if len(asked) == 1 else there

    wanted = RangeToRead(PARTITION, scene.start, scene.end, scene.sole)
    settings = ClientSettings(masters=(), framing=Framing.STANDARD, retry_for=30.0, clock=scene.clock)
    reader = PartitionReader(settings, "g", NEW, wanted, PartitionSnapshot(here), claim_timeout=0.0, find_broker=find)
    assert rows_of(reader.batches()) == scene.expected
    assert asked == [here, here]
    assert scene.clock.now - 1000.0 > 3.0
