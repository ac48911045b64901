# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.testing.master.calls import MasterBench
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.catalog import BrokerEntry, FlowRule, TopicLayout
from tubemq_spark.testing.config import Release

BROKERS = ["1:10.0.0.1: ", "2:10.0.0.2:8200"]


def test_heartbeats_return_the_brokers_only_when_they_changed() -> None:
    bench = MasterBench()
    known = bench.register_producer().brokerCheckSum
    assert not bench.producer_heartbeat(brokerCheckSum=known).brokerInfos
    assert list(bench.producer_heartbeat(brokerCheckSum=-1).brokerInfos) == BROKERS
    bench.catalog.topics["c"] = {1: TopicLayout(1, 1)}
    assert bench.producer_heartbeat(brokerCheckSum=known).brokerCheckSum == known
    bench.catalog.brokers[3] = BrokerEntry(3, "10.0.0.3", 8123)
    reply = bench.producer_heartbeat(brokerCheckSum=known)
    assert list(reply.brokerInfos) == [*BROKERS, "3:10.0.0.3: "]
    assert reply.brokerCheckSum != known
    assert not bench.producer_heartbeat(brokerCheckSum=reply.brokerCheckSum).brokerInfos


@pytest.mark.parametrize(
    ("release", "default_port", "expected"),
    [
        (Release.V2_5, 8124, ["1:10.0.0.1: ", "2:10.0.0.2:8201"]),
        (Release.V1_2, 8124, ["1:10.0.0.1:8124", "2:10.0.0.2:8201"]),
        (Release.V2_5, 8123, ["1:10.0.0.1:8123", "2:10.0.0.2:8201"]),
        (Release.V1_2, 8123, ["1:10.0.0.1: ", "2:10.0.0.2:8201"]),
    ],
)
def test_over_tls_the_list_has_the_tls_ports(release: Release, default_port: int, expected: list[str]) -> None:
    bench = MasterBench(release)
    bench.catalog.brokers[1].tls_port = default_port
    assert list(bench.register_producer(tls=True).brokerInfos) == expected
    assert list(bench.producer_heartbeat(tls=True).brokerInfos) == expected
    assert list(bench.producer_heartbeat().brokerInfos) == BROKERS


def test_a_broker_without_tls_is_listed_with_the_default_port() -> None:
    bench = MasterBench(Release.V1_2)
    assert bench.register_producer(tls=True).brokerInfos[0] == "1:10.0.0.1:8124"


@pytest.mark.parametrize(
    ("release", "size", "expected"),
    [
        (Release.V1_2, None, ["a#1:3:1,2:2:2"]),
        (Release.V1_2, 3000, ["a#1:3:1,2:2:2"]),
        (Release.V2_5, None, ["a#1:3:1,2:2:2#"]),
        (Release.V2_5, 3000, ["a#1:3:1,2:2:2#3000"]),
        (Release.V2_5, 1024 * 1024, ["a#1:3:1,2:2:2#"]),
    ],
)
def test_every_heartbeat_returns_the_topics(release: Release, size: int | None, expected: list[str]) -> None:
    bench = MasterBench(release)
    bench.catalog.topics["a"][2].max_msg_size = size
    bench.register_producer()
    for _ in range(2):
        assert list(bench.producer_heartbeat(topicList=["a"]).topicInfos) == expected


def test_topics_are_those_that_the_last_heartbeat_named() -> None:
    bench = MasterBench()
    bench.register_producer(topicList=["a"])
    assert set(bench.producer_heartbeat(topicList=[" b ", "a", "b", " "]).topicInfos) == {"a#1:3:1,2:2:2#", "b#1:1:1#"}
    assert list(bench.producer_heartbeat(topicList=[]).topicInfos) == []
    assert list(bench.producer_heartbeat(topicList=["unknown"]).topicInfos) == []


def test_topics_are_listed_on_brokers_that_accept_messages_now() -> None:
    bench = MasterBench()
    bench.register_producer()
    bench.catalog.topics["a"][1].accept_publish = False
    assert list(bench.producer_heartbeat().topicInfos) == ["a#2:2:2#"]
    bench.catalog.brokers[2].accept_publish = False
    assert list(bench.producer_heartbeat().topicInfos) == []
    bench.catalog.topics["a"][1].accept_publish = True
    assert list(bench.producer_heartbeat().topicInfos) == ["a#1:3:1#"]
    bench.catalog.brokers[1].online = False
    reply = bench.producer_heartbeat()
    assert list(reply.topicInfos) == []
    assert list(reply.brokerInfos) == BROKERS


@pytest.mark.parametrize(
    ("size", "rule", "config_id"),
    [(1024 * 1024, None, -2), (5000, None, 1), (5000, FlowRule(77), 77), (1024 * 1024, FlowRule(77), 77)],
)
def test_the_settings_id_is_always_sent_and_the_size_only_if_unknown(
    size: int, rule: FlowRule | None, config_id: int
) -> None:
    bench = MasterBench(max_msg_size=size)
    bench.catalog.default_flow = rule
    first = bench.register_producer()
    assert first.appdConfig == pb.ApprovedClientConfig(configId=config_id, maxMsgSize=size)
    assert bench.producer_heartbeat().appdConfig == first.appdConfig
    known = pb.ApprovedClientConfig(configId=config_id)
    assert bench.producer_heartbeat(appdConfig=known).appdConfig == known


@pytest.mark.parametrize("release", list(Release))
def test_texts_that_are_too_long(release: Release) -> None:
    word = "required" if release is Release.V1_2 else "allowed"
    reply = MasterBench(release).register_producer(hostName="x" * 257)
    assert (reply.errCode, reply.errMsg) == (400, f"hostName's length over max value, {word} max length is 256")


def test_producers_without_heartbeats_are_removed_at_the_next_scan() -> None:
    bench = MasterBench(producer_heartbeat_timeout=30.0)
    bench.register_producer()
    bench.wait(29)
    assert bench.producer_heartbeat().errCode == 200
    bench.wait(29)
    assert bench.producer_heartbeat().errCode == 200
    bench.clock.advance(31)
    assert bench.producer_heartbeat().errCode == 200  # overdue, but before the scan
    bench.wait(31)
    assert bench.producer_heartbeat().errCode == 411
    bench.register_producer()
    assert bench.producer_heartbeat().errCode == 200


def test_a_master_that_takes_over_knows_no_producer_and_at_first_no_broker() -> None:
    bench = MasterBench()
    known = bench.register_producer().brokerCheckSum
    bench.master.forget(lists_fill_after=3.0)
    assert bench.producer_heartbeat(brokerCheckSum=known).errCode == 411
    reply = bench.register_producer()
    assert not reply.brokerInfos
    assert reply.brokerCheckSum != known
    empty = bench.producer_heartbeat(brokerCheckSum=reply.brokerCheckSum)
    assert not empty.brokerInfos
    assert not empty.topicInfos
    bench.clock.advance(3)
    full = bench.producer_heartbeat(brokerCheckSum=reply.brokerCheckSum)
    assert list(full.brokerInfos) == BROKERS
    assert list(full.topicInfos) == ["a#1:3:1,2:2:2#"]


def test_a_standby_refuses_after_it_has_checked_the_parameters() -> None:
    bench = MasterBench()
    bench.master.access.address = "10.0.0.5:8715"
    bench.master.access.standby = True
    assert bench.register_producer(clientId="").errCode == 400
    assert bench.producer_heartbeat(topicList=["__offset_history__"]).errCode == 400
    failure = bench.failure(pb.CloseRequestP2M(clientId="p"))
    assert failure.exception_name == "org.apache.inlong.tubemq.corerpc.exception.StandbyException"
    assert failure.text == "10.0.0.5:8715 is not master now. the connecting client id is p"
    assert not failure.fatal
    bench.master.access.standby = False
    assert bench.register_producer().errCode == 200
