# SPDX-License-Identifier: Apache-2.0
"""The requests of a producer session, and what it does with the replies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.message import Message

from tests.clocks import UseTimings
from tests.peers import Peer, answering, message_reply
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

pytestmark = pytest.mark.timeout(60)

PATIENCE = 30.0  # seconds


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    POOL().close()


class Master:
    """Answers each method with the next of its `codes`, or with success when they are used up."""

    def __init__(self, **codes: list[int | Failure]) -> None:
        self.calls: list[str] = []
        self._codes = codes
        self.failure: Failure | None = None
        self.peer = Peer(answering(self._answer))

    def _answer(self, request: Request) -> Response | Failure:
        name = Method(request.method).name
        self.calls.append(name)
        codes = self._codes.get(name)
        code = self.failure or (codes.pop(0) if codes else 200)
        return code if isinstance(code, Failure) else message_reply(request, self._reply(name, code))

    def _reply(self, name: str, code: int) -> Message:
        brokers = ["1:one.example:8123"]
        match name:
            case "CONSUMER_REGISTER_V2":
                return master_pb.RegisterResponseM2CV2(errCode=code, errMsg="", brokerConfigList=brokers)
            case "GET_PARTITION_META":
                topics = ["demo#1:1:2:1"]
                return master_pb.GetPartMetaResponseM2C(errCode=code, errMsg="", topicMetaInfoList=topics)
            case "PRODUCER_REGISTER":
                return master_pb.RegisterResponseM2P(
                    success=code == 200,
                    errCode=code,
                    errMsg="",
                    brokerCheckSum=1,
                    brokerInfos=brokers,
                    appdConfig=master_pb.ApprovedClientConfig(configId=1, maxMsgSize=5000),
                )
            case "PRODUCER_HEARTBEAT":
                topics = ["demo#1:2:1"]
                return master_pb.HeartResponseM2P(
                    success=code == 200, errCode=code, errMsg="", brokerCheckSum=1, topicInfos=topics
                )
        return master_pb.CloseResponseM2P(success=True, errCode=200, errMsg="")


STANDBY = Failure("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "I am a standby")
PARTITIONS = [Partition(1, "demo", 0), Partition(1, "demo", 1)]


def settings_for(*masters: Master, retry_for: float = PATIENCE) -> ClientSettings:
    return ClientSettings(tuple(m.peer.address for m in masters), framing=Framing.STANDARD, retry_for=retry_for)


def test_a_next_master_that_knows_the_client_needs_no_registration() -> None:
    one, other = Master(), Master()
    with one.peer, other.peer:
        session = ConsumerSession(settings_for(one, other), "readers", ["demo"])
        session.register()
        one.failure = STANDBY
        assert session.refresh().partitions("demo") == PARTITIONS
        session.close()
    assert other.calls == ["GET_PARTITION_META", "CONSUMER_CLOSE"]


@pytest.mark.parametrize(
    ("codes", "calls"),
    [
        ({}, ["PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_HEARTBEAT": [411]}, 2 * ["PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_REGISTER": [201]}, ["PRODUCER_REGISTER", "PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_REGISTER": [STANDBY]}, ["PRODUCER_REGISTER", "PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
    ],
    ids=["at once", "forgotten", "not ready", "standing by"],
)
def test_a_producer_registers_and_lists_its_topics(
    codes: dict[str, list[int | Failure]], calls: list[str], use_timings: UseTimings
) -> None:
    use_timings(first_contact_timeout=PATIENCE)
    master = Master(**{name: list(each) for name, each in codes.items()})
    with master.peer:
        session = ProducerSession(settings_for(master))
        session.add_topics(["demo"])
        assert session.cluster.partitions("demo") == PARTITIONS
        assert session.message_limit("demo") == 5000
        session.close()
    assert master.calls == [*calls, "PRODUCER_CLOSE"]
