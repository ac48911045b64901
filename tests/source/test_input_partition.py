# SPDX-License-Identifier: Apache-2.0
"""Input partitions, which travel to executors."""

from __future__ import annotations

import pickle

from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition

PASSWORD = "p4ssw0rd-of-nobody"

PARTITION = TubeMQInputPartition(
    settings=ClientSettings((Address("m", 8715),), Credentials("u", PASSWORD), framing=Framing.STANDARD),
    group="g",
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
