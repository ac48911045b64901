# SPDX-License-Identifier: Apache-2.0
"""Input partitions, which travel to executors."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator

import pytest

from tests.testing import raw
from tests.without_spark.query import GROUP, Query
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.group_member import GroupMembership
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

PASSWORD = "p4ssw0rd-of-nobody"

PARTITION = TubeMQInputPartition(
    settings=ClientSettings((Address("m", 8715),), Credentials("u", PASSWORD), framing=Framing.STANDARD),
    member=GroupMembership("g", ()),
    working_group="g_read",
    claim=ClaimId("5f0c9a3be1d27486", run=1, batch=2),
    ranges=(
        (
            RangeToRead(Partition(1, "t", 0), start=28, end=84, owns_store=True),
            PartitionSnapshot(Broker(1, Address("b", 8123)), look_group="g_look"),
        ),
    ),
    visit_token=5,
    claim_timeout=45.0,
)


def test_input_partition_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(PARTITION))
    assert copy == PARTITION
    assert copy.settings.credentials == Credentials("u", PASSWORD)


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


class Run:
    """A run of a query; `read` returns the partitions that a batch reads."""

    def __init__(self, tubemq: EmbeddedTubeMQ) -> None:
        self.driver = MicroBatchPlanner(Query(tubemq, "wide", rpc_timeout=10.0, retry_for=10.0)._options)
        self.start = self.driver.initial()
        self.bodies: list[bytes] = []
        self.planned: Callable[[], object] = lambda: None

    def read(self) -> set[int]:
        end = self.driver.latest(self.start)
        if end == self.start:
            return set()
        tasks: list[TubeMQInputPartition] = pickle.loads(pickle.dumps(self.driver.plan(self.start, end)))
        self.planned()
        for task in tasks:
            for batch in task.read():
                self.bodies += batch.column("value").to_pylist()
        self.start = end
        return {wanted.partition.partition_id for task in tasks for wanted, _ in task.ranges}


@pytest.fixture
def run(tubemq: EmbeddedTubeMQ) -> Iterator[Run]:
    run = Run(tubemq)
    for number in range(2):
        for partition in range(WIDE):
            tubemq.send("wide", b"%d of %d" % (number, partition), partition)
        assert run.read() == set(range(WIDE))
    yield run
    run.driver.stop()


def stored(tubemq: EmbeddedTubeMQ) -> list[bytes]:
    return sorted(message.body for message in tubemq.messages("wide"))


@pytest.mark.parametrize("flushed", [False, True])
def test_only_partitions_with_messages_are_read(tubemq: EmbeddedTubeMQ, run: Run, flushed: bool) -> None:
    """Near the end of its files, a broker returns half of the rest, so that one fetch may prove nothing."""
    dice = random.Random(3)
    for count in (1, 1, 2, 3, 9, 1, 5):
        partitions = [dice.randrange(WIDE) for _ in range(count)]
        for number, partition in enumerate(partitions):
            tubemq.send("wide", b"%d %d %d" % (count, number, dice.getrandbits(40)), partition)
        if flushed:
            tubemq.flush("wide")
        read = run.read()
        assert read == set(partitions) or (flushed and read == set(range(WIDE)))
        run.driver.latest(run.start)
        end = len(tubemq.messages("wide")) * 28
        assert {tubemq.group_offset(GROUP, "wide", 1, partition) for partition in range(WIDE)} == {end}
    assert sorted(run.bodies) == stored(tubemq)


def test_count_proves_nothing_with_an_unreadable_entry(tubemq: EmbeddedTubeMQ, run: Run) -> None:
    message = broker_pb.SendMessageRequestP2B(
        clientId="c", topicName="wide", partitionId=7, data=b"\x00", flag=1, checkSum=-1, sentAddr=1
    )
    with raw.Raw(tubemq.broker_address(1)) as connection:
        assert connection.call(message).success
    tubemq.send("wide", b"after it", 3)
    assert run.read() == set(range(WIDE))
    assert sorted(run.bodies) == stored(tubemq)


def test_a_repeated_batch_has_the_same_tasks(tubemq: EmbeddedTubeMQ, run: Run) -> None:
    """A copy with effectivelyOnce compares the rows of a task with those of the task of the same number."""
    for partition in (7, 2):
        tubemq.send("wide", b"new", partition)
    end = run.driver.latest(run.start)
    first = [[wanted.partition for wanted, _ in task.ranges] for task in run.driver.plan(run.start, end)]
    run.driver.stop()
    tubemq.send("wide", b"later", 5)  # nothing can be proven any more
    again = Run(tubemq)
    start, logged = (StreamOffset.from_json(offset.to_json()) for offset in (run.start, end))
    second = [[wanted.partition for wanted, _ in task.ranges] for task in again.driver.plan(start, logged)]
    again.driver.stop()
    assert [[one.partition_id for one in task] for task in first] == [[2], [7]]
    assert second == first
