"""Texts of servers that are long, or that forge lines of logs: what is told stays short and prints."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.client.cluster.test_master_client import Master, session
from tests.fake_broker import OURS, PARTITION, FakeBroker
from tests.protocol.simulated_store import UNIT, Limits, SimulatedStore
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import PartitionOccupiedError
from tubemq_spark.protocol.claim_id import ClaimId, holder_in
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.metadata import Broker
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

pytestmark = pytest.mark.timeout(60)

FORGED = "x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"
ESCAPED = r"x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    POOL.close()


def heard(text: str) -> str:
    """The text of an answer as the client sees it."""
    message = broker_pb.RegisterResponseB2C(success=False, errCode=410, errMsg=text)
    reply = unwrap_reply(
        Response(Method.PARTITION_REGISTER, message.SerializeToString()), broker_pb.RegisterResponseB2C, "asking"
    )
    return reply.errMsg


def test_usual_texts_stay_as_they_are() -> None:
    holder = "spark_0123456789abcdef_r1_b2_p3_a4_" + "name" * 40
    text = f"[Duplicated Register] Partition 1:{'topic' * 12}:10001 has been registered by {holder}"
    assert heard(text) == text
    assert holder_in(heard(text)) == holder


def test_other_texts_are_cut_and_escaped() -> None:
    assert heard(FORGED) == ESCAPED
    told = heard(FORGED * 100_000)
    assert told.startswith(ESCAPED * 2)
    assert told.isprintable()
    assert len(told) < 650


def test_a_holder_that_a_broker_made_up() -> None:
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


def test_a_flow_rule_that_is_none(caplog: pytest.LogCaptureFixture) -> None:
    for text in (FORGED * 100_000, "[" * 50_000, f'[{{"type":"{FORGED.encode("unicode_escape").decode()}"}}]'):
        master = Master(tasks=master_pb.OpsTaskInfo(defFlowCheckId=11, defFlowControlInfo=text))
        with master.peer, session(master.address) as consumer:
            consumer.register()
        (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
        assert "the default rule is not obeyed" in record.message
        assert record.message.isprintable()
        assert len(record.message) < 1000
        caplog.clear()
