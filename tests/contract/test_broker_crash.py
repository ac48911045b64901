# SPDX-License-Identifier: Apache-2.0
"""A broker dies and comes back: readers go on with exactly the rest, or an error says what is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock, UseTimings
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import BOTH, running
from tests.messages import Sent, bring_into_files
from tests.reading import UNIT, Row
from tests.real.topics import FLUSH_NEVER
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition

USES = ("kept", "lost", "reused")
KEPT = 9_000  # messages of a topic in the broker's files: several fetches
FLUSHED = 2_500  # the same, of topics that get a tail
TAIL, TAIL_SIZE = 5_000, 200  # messages sent right before a crash: several fetches, and they fit in a memory block
RIVAL = "some_java_consumer"
_LAYOUTS: tuple[Layout, ...] = ("one", "three")


@pytest.fixture(scope="module", params=BOTH)
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker that only this file uses. It drops claims as early as TubeMQ permits, after 20 s."""
    layouts = {f"{use}_{layout}": LAYOUTS[layout] for use in USES for layout in _LAYOUTS}
    layouts["claimed"] = LAYOUTS["three"]
    topics = {name: replace(layout, settings=FLUSH_NEVER) for name, layout in layouts.items()}  # else no tail is lost
    with running(request.param, brokers=1, topics=topics, claim_timeout=20) as cluster:
        yield cluster


@dataclass(frozen=True)
class StoredPartition:
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


@pytest.fixture(scope="module")
def stored(broker: Cluster) -> dict[str, list[StoredPartition]]:
    found: dict[str, list[StoredPartition]] = {}
    for use in USES:
        for layout in _LAYOUTS:
            partition = messages.partitions(broker, f"{use}_{layout}")[0]
            sent = messages.send(broker, messages.numbered([partition], KEPT if use == "kept" else FLUSHED))[partition]
            found.setdefault(use, []).append(StoredPartition(broker, partition, sent))
    messages.send(broker, messages.numbered(messages.partitions(broker, "claimed"), 60))
    return found


@pytest.fixture(scope="module")
def flushed(stored: dict[str, list[StoredPartition]], broker: Cluster) -> dict[str, list[StoredPartition]]:
    bring_into_files(broker, broker.topics)
    return stored


def restart(broker: Cluster) -> None:
    broker.kill_broker(1)
    broker.start_broker(1)


def test_heartbeats_keep_claims(
    broker: Cluster, stored: dict[str, list[StoredPartition]], group: str, use_timings: UseTimings
) -> None:
    use_timings(heartbeat_period=0.1)
    held, lent, silent = messages.partitions(broker, "claimed")
    session = ConsumerSession(messages.settings(broker), group, ["claimed"])
    session.register()
    driver = DriverClaims(session, ClaimId(reading.new_query(), run=1, batch=1), claim_timeout=0.0)
    driver.take({held: None, lent: None})
    target = stored["kept"][0]
    claim = reading.next_claim()
    reader = reading.reader(broker, group, target.partition, 0, KEPT * UNIT, claim=claim).batches()
    rows = reading.rows_of(islice(reader, 1))
    driver.lend([lent])
    assert reading.register(broker, group, silent, "dead").errCode == 200

    def are_forgotten() -> bool:
        return reading.register(broker, group, silent, RIVAL).errCode != 410

    broker.wait_for_expiry(are_forgotten, beating=[str(driver.claim), str(claim)])

    for kept in (held, lent, target.partition):
        assert reading.register(broker, group, kept, RIVAL).errCode == 410
    assert rows + reading.rows_of(reader) == target.rows(0, KEPT * UNIT)
    driver.release()
    session.close()


def test_readers_go_on_when_their_broker_comes_back(
    broker: Cluster, flushed: dict[str, list[StoredPartition]], group: str
) -> None:
    is_killed = False

    def start(seconds: float) -> None:
        nonlocal is_killed
        if is_killed:
            is_killed = False
            broker.start_broker(1)
        else:
            time.sleep(seconds)  # a real broker needs some time

    begin, end = 100 * UNIT, KEPT * UNIT - 100 * UNIT
    readers = [
        reading.reader(broker, group, target.partition, begin, end, clock=SkippingClock(start)).batches()
        for target in flushed["kept"]
    ]
    begun = [reading.rows_of(islice(reader, 1)) for reader in readers]
    broker.kill_broker(1)
    is_killed = True

    for target, reader, rows in zip(flushed["kept"], readers, begun, strict=True):
        assert 0 < len(rows) < len(target.rows(begin, end))
        assert rows + reading.rows_of(reader) == target.rows(begin, end)
        assert reading.group_position(broker, group, target.partition).group == begin
    assert not is_killed


def test_a_driver_restores_the_positions_that_a_crash_lost(
    broker: Cluster, flushed: dict[str, list[StoredPartition]], group: str
) -> None:
    partitions = messages.partitions(broker, "claimed")
    with_position = dict.fromkeys(partitions, 20 * UNIT)
    session = ConsumerSession(messages.settings(broker), group, ["claimed"])
    session.register()
    driver = DriverClaims(session, ClaimId(reading.new_query(), run=1, batch=1), claim_timeout=0.0)
    driver.take(with_position)
    restart(broker)  # before the broker has written the positions down

    driver.refresh(time.monotonic())

    assert all(driver.holds(partition) for partition in partitions)
    assert {partition: driver.position(partition).group for partition in partitions} == with_position
    driver.release()
    session.close()
    assert {
        partition: reading.group_position(broker, group, partition).group for partition in partitions
    } == with_position
