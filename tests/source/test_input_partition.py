# SPDX-License-Identifier: Apache-2.0
"""Input partitions, which travel to executors."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import pytest

from tests import messages
from tests.clusters.embedded import EmbeddedCluster
from tests.without_spark.source import GROUP, UNIT, Stream, StreamRun, bodies, fill, ranges_of, stored
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.group_member import GroupMembership
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

PASSWORD = "p4ssw0rd-of-nobody"

PARTITION = TubeMQInputPartition(
    settings=ClientSettings((Address("m", 8715),), Credentials("u", PASSWORD), framing=Framing.STANDARD),
    member=GroupMembership("g", ()),
    working_group="g_spark_read",
    claim=ClaimId("5f0c9a3be1d27486", run=1, batch=2),
    ranges=(
        (
            RangeToRead(Partition(1, "t", 0), start=28, end=84, owns_store=True),
            PartitionSnapshot(Broker(1, Address("b", 8123)), look_group="g_spark_look"),
        ),
    ),
    visit_token=5,
    claim_timeout=45.0,
)


def test_reads_without_a_task_are_readers_of_their_own() -> None:
    """A join of rows with themselves may read a range twice at once."""
    claims = [PARTITION._claim_of_this_attempt() for _ in range(2)]
    assert len({claim.reader for claim in claims}) == 2
    assert all(claim.reader and claim.task == 0 for claim in claims)


def test_text_shows_the_ranges_and_no_password() -> None:
    for shown in (repr(PARTITION), str(PARTITION), repr(pickle.loads(pickle.dumps(PARTITION)))):
        assert all(part in shown for part in ("'g'", "topic='t'", "start=28", "end=84", "5f0c9a3be1d27486", "user='u'"))
        assert PASSWORD not in shown


# Batches with few messages of a shared store: only partitions with messages are read, and no message is missed


WIDE = 12  # partitions of the store


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(config=ServerConfig(mem_cache_flush_interval=3600.0)) as cluster:
        cluster.create_topic("wide", WIDE)
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture
def stream(tubemq: EmbeddedTubeMQ) -> Stream:
    """A query that has read two batches with messages of all partitions."""
    stream = Stream(tubemq, "wide")
    with stream.running() as run:
        for _ in range(2):
            fill(tubemq, "wide", WIDE)
            assert read_next(run) == set(range(WIDE))
    return stream


def read_next(run: StreamRun) -> set[int]:
    """Return the partitions that the tasks of the next batch read."""
    run.next()
    return {partition.partition_id for wanted in ranges_of(run.tasks) for partition in wanted}


@pytest.mark.parametrize("flushed", [False, True])
def test_only_partitions_with_messages_are_read(tubemq: EmbeddedTubeMQ, stream: Stream, flushed: bool) -> None:
    """Near the end of its files, a broker returns half of the rest, so that one fetch may prove nothing."""
    dice = random.Random(3)
    with stream.running() as run:
        for count in (1, 1, 2, 3, 9, 1, 5):
            partitions = [dice.randrange(WIDE) for _ in range(count)]
            for partition in partitions:
                fill(tubemq, "wide", 1, partition)
            if flushed:
                tubemq.flush("wide")
            found = read_next(run)
            assert found == set(partitions) or (flushed and found == set(range(WIDE)))
            run.latest()
            end = len(tubemq.messages("wide")) * UNIT
            assert {tubemq.group_offset(GROUP, "wide", 1, partition) for partition in range(WIDE)} == {end}
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "wide"))


def test_count_proves_nothing_with_an_unreadable_entry(tubemq: EmbeddedTubeMQ, stream: Stream) -> None:
    unreadable = [(Partition(1, "wide", 7), b"no attributes, but the flag")]
    messages.send(EmbeddedCluster(tubemq, ServerConfig()), unreadable, flag=1)
    fill(tubemq, "wide", 1, 3)
    with stream.running() as run:
        assert read_next(run) == set(range(WIDE))
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "wide"))


def test_a_repeated_batch_has_the_same_tasks(tubemq: EmbeddedTubeMQ, stream: Stream) -> None:
    """A copy with effectivelyOnce compares the rows of a task with those of the task of the same number."""
    for partition in (7, 2):
        fill(tubemq, "wide", 1, partition)
    with stream.running() as run:
        assert run.find_next()
        [first] = run.plan()
    fill(tubemq, "wide", 1, 5)  # nothing can be proven any more
    with stream.running() as run:
        [second] = run.plan()
    assert [[one.partition_id for one in task] for task in ranges_of(first)] == [[2], [7]]
    assert ranges_of(second) == ranges_of(first)
