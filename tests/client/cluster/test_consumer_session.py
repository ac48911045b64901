# SPDX-License-Identifier: Apache-2.0
"""The requests of a consumer session and its replies. For masters that fail see test_master_client."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message

from tests.clocks import SkippingClock, UseTimings
from tests.peers import Peer, answering, message_reply
from tests.waiting import wait_until
from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Request
from tubemq_spark.protocol.flow_rules import FlowRules, Limits
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

REGISTER = Method.CONSUMER_REGISTER_V2
HEARTBEAT = Method.CONSUMER_HEARTBEAT_V2
NO_NODE = 411
FORGED = "x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e"  # forges a line of a log


@dataclass
class Master:
    """A scripted master. It lists `lists` (brokers, topics) and sends the flow rules `tasks`."""

    lists: tuple[list[str], list[str]] = field(default_factory=lambda: (["1:127.0.0.1:8123"], ["demo#1:2:3:1"]))
    tasks: pb.OpsTaskInfo | None = None
    requests: list[Request] = field(default_factory=list)
    members: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.peer = Peer(answering(lambda request: message_reply(request, self._reply(request))))

    @property
    def address(self) -> Address:
        return self.peer.address

    def _reply(self, request: Request) -> Message:
        self.requests.append(request)
        brokers, topics = self.lists
        if request.method == REGISTER:
            self.members.add(pb.RegisterRequestC2MV2.FromString(request.data).clientId)
            return pb.RegisterResponseM2CV2(
                errCode=200, errMsg="", brokerConfigId=1, brokerConfigList=brokers, opsTaskInfo=self.tasks
            )
        if request.method == HEARTBEAT:
            return pb.HeartResponseM2CV2(errCode=200, errMsg="", opsTaskInfo=self.tasks)
        known = pb.GetPartMetaRequestC2M.FromString(request.data).clientId in self.members
        if request.method != Method.GET_PARTITION_META:
            return pb.CloseResponseM2C(success=True, errCode=200 if known else NO_NODE, errMsg="")
        return pb.GetPartMetaResponseM2C(
            errCode=200 if known else NO_NODE,
            errMsg="",
            brokerConfigId=1,
            brokerConfigList=brokers if known else [],
            topicMetaInfoId=1,
            topicMetaInfoList=topics if known else [],
        )


@pytest.fixture(autouse=True)
def in_a_hurry(use_timings: UseTimings, skipping_clock: SkippingClock) -> Iterator[None]:
    use_timings(slow_peer_grace=0.05, topic_lists_fill_up=0.2)
    yield
    POOL().close()


@contextmanager
def session(*masters: Address, credentials: Credentials | None = None) -> Iterator[ConsumerSession]:
    """Yield a session that is not registered yet. Close it at the end."""
    settings = ClientSettings(masters=masters, credentials=credentials, framing=Framing.STANDARD, retry_for=30.0)
    made = ConsumerSession(settings, "g", ["demo"])
    try:
        yield made
    finally:
        made.close()


DEMO = [Partition(1, "demo", store * 10_000 + number) for store in (0, 1) for number in (0, 1, 2)]


def test_client_ids_and_host_names_have_the_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master()
    monkeypatch.setattr(system, "host_address", lambda: "10.1.2.3")
    with master.peer, session(master.address) as consumer:
        consumer.register()
        request = pb.RegisterRequestC2MV2.FromString(master.requests[0].data)
        assert request.hostName == "10.1.2.3"
        assert request.clientId.startswith("spark_consumer_10.1.2.3_")


def test_the_address_of_this_machine_is_one_of_its_own() -> None:
    with socket.socket() as server:
        server.bind((system.host_address(), 0))


def test_credentials_are_signed_in_each_request() -> None:
    master = Master()
    with master.peer, session(master.address, credentials=Credentials("ann", "secret")) as consumer:
        consumer.register()
        request = pb.RegisterRequestC2MV2.FromString(master.requests[0].data)
        assert (request.groupName, list(request.topicList), request.sourceCount) == ("g", ["demo"], -1)
        certificate = request.authInfo.authInfo
        assert (certificate.userName, bool(certificate.signature)) == ("ann", True)
        for sent in master.requests:
            assert b"ann" in sent.data
            assert b"secret" not in sent.data


@pytest.mark.parametrize(
    "short",
    [([], []), (["1:127.0.0.1:8123"], []), ([], ["demo#1:2:3:0"]), (["1:127.0.0.1:8123"], ["demo#1:1:1:0"])],
    ids=["nothing", "no topics", "no brokers", "fewer partitions"],
)
def test_short_lists_of_a_new_master_remove_nothing(short: tuple[list[str], list[str]]) -> None:
    old, new = Master(), Master(lists=short)
    with new.peer, old.peer, session(old.address, new.address) as consumer:
        consumer.register()
        old.peer.hang_up()
        assert consumer.refresh().partitions("demo") == DEMO
        assert consumer.broker(DEMO[0]) == Broker(1, Address("127.0.0.1", 8123))

        new.lists = (["1:127.0.0.1:9999", "2:127.0.0.2:8123"], ["demo#1:2:3:1,2:1:1:1"])
        assert consumer.refresh().partitions("demo") == [*DEMO, Partition(2, "demo", 0)]
        assert consumer.broker(DEMO[0]).address.port == 9999


# Flow rules

SLOWLY = '[{"type":3,"rule":[{"normFreqInMs":500}]}]'


def beats(master: Master) -> list[pb.OpsTaskInfo]:
    """Return the flow rules that each heartbeat named as known."""
    return [
        pb.HeartRequestC2MV2.FromString(request.data).opsTaskInfo
        for request in list(master.requests)
        if request.method == HEARTBEAT
    ]


def test_heartbeats_keep_the_flow_rules_up_to_date(use_timings: UseTimings, caplog: pytest.LogCaptureFixture) -> None:
    use_timings(heartbeat_period=0.01)
    master = Master()
    with caplog.at_level("INFO", "tubemq_spark.client.cluster"), master.peer, session(master.address) as consumer:
        consumer.register()
        assert consumer.flow_rules == FlowRules()

        master.tasks = pb.OpsTaskInfo(groupFlowCheckId=1, groupFlowControlInfo=SLOWLY)
        wait_until(lambda: consumer.flow_rules.group.rule_id == 1)
        wait_until(lambda: pb.OpsTaskInfo(defFlowCheckId=-2, groupFlowCheckId=1) in beats(master))

        master.tasks = pb.OpsTaskInfo(groupFlowCheckId=1, defFlowCheckId=2, defFlowControlInfo='[{"type":0}]')
        wait_until(lambda: pb.OpsTaskInfo(defFlowCheckId=2, groupFlowCheckId=1) in beats(master))
        assert consumer.flow_rules.group.text == SLOWLY
        assert consumer.flow_rules.default.limits == Limits()

        master.tasks = pb.OpsTaskInfo()
        wait_until(lambda: consumer.flow_rules == FlowRules())
    assert [(record.levelname, record.message) for record in caplog.records if "rule" in record.message] == [
        ("INFO", f"group g: the group flow control rule 1 {SLOWLY} holds"),
        (
            "WARNING",
            "[flow-rule-ignored] group g: the default rule is not obeyed: '[{\"type\":0}]' is not a flow rule: "
            "KeyError('rule')",
        ),
        ("INFO", f"group g: the group flow control rule 1 {SLOWLY} ended"),
        ("INFO", 'group g: the default flow control rule 2 [{"type":0}] ended'),
    ]


def test_a_flow_rule_that_cannot_be_parsed_is_logged_short_and_escaped(caplog: pytest.LogCaptureFixture) -> None:
    for text in (FORGED * 100_000, "[" * 50_000, f'[{{"type":"{FORGED.encode("unicode_escape").decode()}"}}]'):
        master = Master(tasks=pb.OpsTaskInfo(defFlowCheckId=11, defFlowControlInfo=text))
        with master.peer, session(master.address) as consumer:
            consumer.register()
        (record,) = (record for record in caplog.records if record.message.startswith("[flow-rule-ignored]"))
        assert record.levelno == logging.WARNING
        assert "the default rule is not obeyed" in record.message
        assert record.message.isprintable()
        assert len(record.message) < 1000
        caplog.clear()
