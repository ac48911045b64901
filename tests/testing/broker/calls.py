# SPDX-License-Identifier: Apache-2.0
"""A broker with a clock that the test controls, and encoded calls to it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from tests.testing.master.calls import METHODS, Bench, StoppedClock
from tubemq_spark.protocol.constants import NO_CHECK_SUM, OpType, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.catalog import BrokerEntry, Catalog, TopicLayout
from tubemq_spark.testing.config import Release, ServerConfig


class BrokerBench(Bench):
    """Broker 1 with topic `demo` of 3 partitions and topic `wide` of two stores with 2 each.

    `settings` are those of `ServerConfig`.
    """

    def __init__(self, release: Release = Release.V2_5, **settings: Any) -> None:
        self.clock = StoppedClock()
        self.catalog = Catalog(
            ServerConfig(release=release, **settings),
            self.clock,
            brokers={1: BrokerEntry(1, "10.0.0.1", 8123)},
            topics={
                "demo": {1: TopicLayout(3, 1)},
                "wide": {1: TopicLayout(2, 2, max_msg_size=2000)},
                "other": {2: TopicLayout(1, 1)},
            },
        )
        self.broker = BrokerService(1, "10.0.0.1", self.catalog)

    def answer(self, message: Message, tls: bool = False) -> Response | Failure | None:
        request = Request(ServiceType.BROKER_READ, METHODS[type(message)], 1000, message.SerializePartialToString())
        return self.broker.answer(request)

    def tick(self) -> None:
        self.broker.tick()

    # -- calls with their required fields, which a test may change

    def send(self, **fields: Any) -> Any:
        base = {"clientId": "p", "topicName": "demo", "partitionId": 0, "data": b"x", "flag": 0, "sentAddr": 1}
        return self.call(pb.SendMessageRequestP2B(**{**base, "checkSum": NO_CHECK_SUM, **fields}))

    def register(self, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(registration(client_id, OpType.REGISTER, **fields))

    def unregister(self, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(registration(client_id, OpType.UNREGISTER, **fields))

    def heartbeat(self, *infos: str, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(heartbeat(*infos, client_id=client_id, **fields))

    def get(self, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(pb.GetMessageRequestC2B(**{**_base(client_id), **fields}))

    def commit(self, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(pb.CommitOffsetRequestC2B(**{**_base(client_id), **fields}))


def registration(client_id: str = "c1", op_type: int = OpType.REGISTER, **fields: Any) -> pb.RegisterRequestC2B:
    return pb.RegisterRequestC2B(**{**_base(client_id), "opType": op_type, "readStatus": 0, **fields})


def heartbeat(*infos: str, client_id: str = "c1", **fields: Any) -> pb.HeartBeatRequestC2B:
    base = {"clientId": client_id, "groupName": "g", "readStatus": 0, "partitionInfo": infos}
    return pb.HeartBeatRequestC2B(**{**base, **fields})


def _base(client_id: str) -> dict[str, Any]:
    return {"clientId": client_id, "groupName": "g", "topicName": "demo", "partitionId": 0}
