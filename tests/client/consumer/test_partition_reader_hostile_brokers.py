# SPDX-License-Identifier: Apache-2.0
"""Readers at brokers that send byte by byte, or texts that forge lines of logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.net.connecting import HASTY, trickling
from tests.fake_broker import OURS, PARTITION, FakeBroker
from tests.peers import Peer
from tests.protocol.simulated_store import UNIT, Limits, SimulatedStore
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import PartitionOccupiedError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Broker, Partition

pytestmark = pytest.mark.timeout(60)

FORGED = "x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"  # forges a line of a log


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    POOL().close()


def test_a_broker_that_sends_byte_by_byte_blocks_no_reader() -> None:
    with Peer(trickling) as peer:
        settings = ClientSettings((), rpc_timeout=0.2, framing=Framing.STANDARD, retry_for=0.0, timings=HASTY)
        wanted = RangeToRead(Partition(1, "demo", 0), 0, 28, owns_store=True)
        snapshot = PartitionSnapshot(Broker(1, peer.address))
        reader = PartitionReader(settings, "g", ClaimId("q", run=1, batch=1, task=0), wanted, snapshot)
        with pytest.raises(TransportError, match=r"1:demo:0 at broker 1 .* gave up .*did not answer in time"):
            next(reader.batches())


def test_a_forged_name_of_a_claims_holder_is_cut_and_escaped() -> None:
    store = SimulatedStore(Limits(file_entries=20, memory_entries=30))
    for _ in range(20):
        store.append(OURS)
    broker = FakeBroker(store, holder=FORGED + "y" * 100_000)
    with broker.peer:
        snapshot = PartitionSnapshot(Broker(1, broker.peer.address))
        wanted = RangeToRead(PARTITION, 0, 5 * UNIT, owns_store=True)
        settings = ClientSettings(masters=(), framing=Framing.STANDARD, retry_for=0.0)
        reader = PartitionReader(settings, "g", ClaimId("query", run=1, batch=1), wanted, snapshot, claim_timeout=0.0)
        with pytest.raises(PartitionOccupiedError, match="another consumer of group g") as told:
            list(reader.batches())
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 1200
    assert len(told.value.holder) < 700
