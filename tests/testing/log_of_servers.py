# SPDX-License-Identifier: Apache-2.0
"""A random schedule of requests and events, the same in each process, and the log of what the servers do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from tests.testing.raw import send
from tests.testing.virtual_host import Client, VirtualTubeMQ
from tubemq_spark.protocol.constants import OpType
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

TOPICS = ["demo", "orders", "readings", "alarms"]
GROUPS = ["g1", "a-group", "others", "h"]
TYPES = ["red", "green", "blue", "x", "y"]


class Play:
    def __init__(self, tubemq: VirtualTubeMQ, steps: int) -> None:
        self._tubemq = tubemq
        self._random = random.Random(7)
        self._clients: dict[str, Client] = {}
        self._web = {n: tubemq.web_master.split(",")[n - 1] for n in (1, 2)}
        acts = [*[self._master_call] * 20, *[self._broker_call] * 20, *[self._query] * 3, self._event, self._restart]
        for _ in range(steps):
            tubemq.virtual.pass_time(self._random.random())
            self._random.choice(acts)()

    def _ask(self, address: str, message: Message) -> None:
        name = f"{self._random.randrange(4)}@{address}"
        client = self._clients.get(name)
        if client is None or client.is_closing():
            try:
                client = self._clients[name] = self._tubemq.connect(address, name)
            except ConnectionRefusedError:
                self._tubemq.log.append(f"{name} refused")
                return
        client.server.data_received(client.request(message))

    def _master_call(self) -> None:
        pick = self._random.choice
        group = pick(GROUPS)
        member = f"{group}-{pick('ab')}"
        topics = TOPICS if group == "others" else TOPICS[:2]
        filters = [f"demo#{','.join(TYPES)}"] if group == "h" else []
        by_client = group in ("g1", "h")
        messages: list[Message] = [
            master_pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="h", topicList=TOPICS),
            master_pb.HeartRequestP2M(clientId="p", brokerCheckSum=-1, hostName="h", topicList=TOPICS),
            master_pb.CloseRequestC2M(clientId=member, groupName=group),
        ]
        if by_client:
            ids: dict[str, Any] = {"clientId": member, "groupName": group}
            messages += [
                master_pb.RegisterRequestC2MV2(
                    **ids, hostName="h", sourceCount=-1, nodeId=0, topicList=topics, topicCondition=filters
                ),
                master_pb.HeartRequestC2MV2(**ids),
                master_pb.GetPartMetaRequestC2M(**ids, brokerConfigId=-2, topicMetaInfoId=-2),
            ] * 2
        else:
            messages += [
                master_pb.RegisterRequestC2M(
                    clientId=member, groupName=group, hostName="h", topicList=topics, topicCondition=filters
                ),
                master_pb.HeartRequestC2M(clientId=member, groupName=group, reportSubscribeInfo=True),
            ] * 3
        masters = self._tubemq.master.split(",")
        self._ask(masters[self._random.random() < 0.1], pick(messages))

    def _broker_call(self) -> None:
        pick = self._random.choice
        topic = pick(TOPICS)
        ids: dict[str, Any] = {"clientId": pick(["c1", "c1", "c2"]), "groupName": "g1", "topicName": topic}
        ids["partitionId"] = self._random.randrange(3)
        register = broker_pb.RegisterRequestC2B(
            **ids, opType=OpType.REGISTER, readStatus=0, filterCondStr=self._random.sample(TYPES, 3)
        )
        get = broker_pb.GetMessageRequestC2B(**ids, manualCommitOffset=True, lastPackConsumed=False, escFlowCtrl=False)
        message = send(b"body", topic, ids["partitionId"])
        message.msgType = pick(TYPES)
        commit = broker_pb.CommitOffsetRequestC2B(**ids, lastPackConsumed=True)
        self._ask(self._tubemq.broker_address(pick([1, 2])), pick([register, message, message, get, get, commit]))

    def _query(self) -> None:
        brokers = {n: server.web.port for n, server in self._tubemq._servers.brokers.items()}
        path, address = self._random.choice(
            [
                ("admin_query_topic_info", self._web[1]),
                ("admin_query_broker_run_status", self._web[2]),
                ("admin_query_offset", f"h:{brokers[1]}"),
                ("admin_query_broker_all_consumer_info", f"h:{brokers[1]}"),
            ]
        )
        try:
            client = self._tubemq.connect(address, path)
        except ConnectionRefusedError:
            return
        client.server.data_received(f"GET /api?method={path} HTTP/1.1\r\n\r\n".encode())

    def _restart(self) -> None:
        for broker_id in (1, 2):
            self._tubemq.start_broker(broker_id)

    def _event(self) -> None:
        tubemq = self._tubemq
        events: list[Callable[[], object]] = [
            lambda: tubemq.crash_broker(1),
            lambda: tubemq.lose_disk(2),
            lambda: [switch() for switch in [tubemq.switch_master] * 2],
            tubemq.rotate_visit_token,
            lambda: tubemq.create_topic("demo", self._random.randrange(1, 9)),
            lambda: tubemq.expire("orders", keep=1),
            lambda: tubemq.clock.advance(self._random.random() * 30),
            lambda: tubemq.authorize("demo", *GROUPS),
        ]
        self._random.choice(events)()


def play(steps: int = 1500) -> None:
    """Print the log of the schedule."""
    with VirtualTubeMQ(dict.fromkeys(TOPICS, 3), brokers=2, masters=2) as tubemq:
        Play(tubemq, steps)
        activity = tubemq.activity()
        tubemq.log += [repr(activity), repr(tubemq.claims())]
    print("\n".join(tubemq.log))
