# SPDX-License-Identifier: Apache-2.0
"""Claims: attempts of one query fence each other, and all other clients wait or fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from tests import messages, reading
from tests.clusters import Cluster
from tests.reading import UNIT, Row
from tubemq_spark.client.consumer import conversations
from tubemq_spark.errors import FencedError, PartitionOccupiedError, PositionMovedError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition

MESSAGES = 30_000  # so many that a reader has not asked for all of them when it gives out the first batch
STRANGER = "some_java_consumer"


@dataclass(frozen=True)
class Shelf:
    """A range that takes several batches to read, and a group for it."""

    cluster: Cluster
    partition: Partition
    start: int
    end: int
    rows: list[Row]
    group: str = ""

    @classmethod
    def filled(cls, cluster: Cluster, topic: str) -> Shelf:
        partition = messages.partitions(cluster, topic)[0]
        sent = messages.send(cluster, messages.numbered([partition], MESSAGES))[partition]
        start, end = 10 * UNIT, reading.end_of(sent) - 10 * UNIT
        rows = reading.expected(sent, start, end, sole=reading.owns_store(cluster, partition))
        return cls(cluster, partition, start, end, rows)

    def reader(
        self, claim: ClaimId | None = None, *, claim_timeout: float = 0.0
    ) -> Generator[FetchedBatch, None, None]:
        """Batches, by a newer attempt than those before if no claim is given."""
        claim = claim or reading.next_claim()
        where = self.cluster, self.group, self.partition, self.start, self.end
        return reading.reader(*where, claim=claim, claim_timeout=claim_timeout).batches()

    def read(self) -> list[Row]:
        return reading.rows_of(self.reader())

    def register(self, client_id: object, position: int | None = None) -> int:
        """The error code."""
        return reading.register(self.cluster, self.group, self.partition, str(client_id), position).errCode

    def unregister(self, client_id: object) -> int:
        return reading.unregister(self.cluster, self.group, self.partition, str(client_id)).errCode

    def group_position(self) -> int:
        """Where the group stands; the partition must be free."""
        return reading.group_position(self.cluster, self.group, self.partition).group

    def wait_until_admins_see_the_group(self) -> None:
        """At once with release 1.2.0, some seconds after the first register with 2.5."""
        broker_id, topic, number = self.partition
        while self.cluster.group_offset(self.group, topic, broker_id, number) is None:
            time.sleep(0.2)


@pytest.fixture(scope="module", params=["one", "three"])
def filled(request: pytest.FixtureRequest, cluster: Cluster) -> Shelf:
    return Shelf.filled(cluster, cluster.new_topic(request.param))


@pytest.fixture
def shelf(filled: Shelf, group: str) -> Shelf:
    return replace(filled, group=group)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Actions that replace the pauses of a reader that waits for a partition, in this order."""
    actions: list[Callable[[], object]] = []

    def pause(*_: object) -> None:
        assert actions, "the reader waits"
        actions.pop(0)()

    monkeypatch.setattr(conversations, "pause", pause)
    return actions


# Attempts of one query


@pytest.mark.parametrize("share", [0, 2 / 3], ids=["after the first batch", "late"])
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "going on"])
def test_a_reader_without_its_claim_does_not_touch_the_group(shelf: Shelf, share: float, closes: bool) -> None:
    old = shelf.reader()
    given = reading.rows_of([next(old)])
    while len(given) < share * len(shelf.rows):  # batches are not the same each time: the store is flushed meanwhile
        given += reading.rows_of([next(old)])
    assert shelf.read() == shelf.rows
    moved_on = shelf.end - UNIT
    assert shelf.register("driver", moved_on) == shelf.unregister("driver") == 200

    if closes:
        old.close()
    else:
        with pytest.raises(FencedError):
            given += reading.rows_of(old)

    assert len(given) < len(shelf.rows)
    assert shelf.group_position() == moved_on


def test_attempts_fence_each_other_in_turn(shelf: Shelf) -> None:
    """A fetch of the one before may end late, and move the cursor. Then the attempt fails, as it must, and the next one
    takes over."""
    readers: list[Generator[FetchedBatch, None, None]] = []
    begun: list[Row] = []
    while len(readers) < 4:
        reader = shelf.reader()
        with suppress(PositionMovedError):
            begun = reading.rows_of(islice(reader, 1))
            readers.append(reader)
    for reader in readers[:-1]:
        with pytest.raises(FencedError):
            reading.rows_of(reader)
    last = readers[-1]
    while True:
        try:
            assert begun + reading.rows_of(last) == shelf.rows
            return
        except PositionMovedError:  # a fetch of one that was fenced ended just now
            begun, last = [], shelf.reader()


# Others


@pytest.mark.parametrize("holder", [STRANGER, str(ClaimId("another", run=1, batch=1, task=0))])
def test_the_reader_waits_for_another_consumer_and_names_it(shelf: Shelf, holder: str) -> None:
    assert shelf.register(holder) == 200
    with pytest.raises(
        PartitionOccupiedError, match=rf"more than 0.1 s: (a task \({holder}\)|{holder})\. Stop it, or use another"
    ) as raised:
        next(shelf.reader(claim_timeout=0.1))
    assert type(raised.value) is PartitionOccupiedError
    assert raised.value.holder == holder
    assert shelf.unregister(holder) == 200


def test_reading_starts_when_the_other_consumer_leaves(shelf: Shelf, waits: list[Callable[[], object]]) -> None:
    assert shelf.register(STRANGER) == 200
    waits += [lambda: None, lambda: shelf.unregister(STRANGER)]
    assert reading.rows_of(shelf.reader(claim_timeout=45)) == shelf.rows
    assert waits == []


@pytest.mark.parametrize("where", ["earliest", "start", "middle", "end", "latest", "gone"])
def test_a_reader_detects_that_its_group_was_moved(shelf: Shelf, where: str) -> None:
    positions = {
        "earliest": 0,
        "start": shelf.start,
        "middle": (shelf.start + shelf.end) // 2 // UNIT * UNIT,
        "end": shelf.end,
        "latest": shelf.end + 10 * UNIT,
    }
    if where == "gone":
        assert shelf.group_position() == 0
        shelf.wait_until_admins_see_the_group()
    batches = shelf.reader()
    reading.rows_of(islice(batches, 1))
    if where == "gone":
        shelf.cluster.remove_group(shelf.group, shelf.partition.broker_id)
    else:
        shelf.cluster.move_group(shelf.group, shelf.partition, positions[where])

    with pytest.raises(PositionMovedError, match=str(shelf.partition)):
        reading.rows_of(batches)

    assert shelf.group_position() == shelf.start
    assert shelf.read() == shelf.rows
