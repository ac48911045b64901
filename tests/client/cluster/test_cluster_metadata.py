# SPDX-License-Identifier: Apache-2.0
"""The lists of a master: when they are complete, and that impossible ones are refused before they fill the memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.message import Message

from tests.client.cluster.test_consumer_session import Master, session
from tests.clocks import ManualClock
from tests.peers import Peer, answering, message_reply
from tubemq_spark.client.cluster.cluster_metadata import Cluster, TopicRegistry
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Request
from tubemq_spark.protocol.metadata import (
    Address,
    Broker,
    Partition,
    TopicOnBroker,
    parse_consumer_topic,
    parse_producer_topic,
)
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

pytestmark = pytest.mark.timeout(60)

BROKER = "1:127.0.0.1:8123"
MASTER = Address("127.0.0.1", 8715)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    POOL().close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> TopicRegistry:
    return TopicRegistry(ClientSettings(masters=(MASTER,), clock=clock, timings=Timings(topic_lists_fill_up=5.0)))


# When lists are complete


def test_lists_may_be_short_for_5_s_after_a_failover(clock: ManualClock, registry: TopicRegistry) -> None:
    assert registry.complete_by < clock.monotonic()
    registry.expect_short_lists()
    assert registry.complete_by == clock.monotonic() + 5.0


def test_lists_that_lose_a_topic_may_be_short(clock: ManualClock, registry: TopicRegistry) -> None:
    registry.set_topics(MASTER, ["demo#1:1:1", "other#1:1:1"], parse_producer_topic)
    assert registry.complete_by < clock.monotonic()
    registry.set_topics(MASTER, ["demo#1:1:1"], parse_producer_topic)
    assert registry.complete_by > clock.monotonic()
    assert not registry.lists_any("other")
    assert len(registry.cluster.layouts) == 2


def test_lists_are_complete_when_each_broker_has_a_topic(registry: TopicRegistry) -> None:
    registry.expect_short_lists()
    registry.set_topics(MASTER, ["demo#1:1:1"], parse_producer_topic)
    assert not registry.is_complete, "the master has not listed its brokers"
    registry.add_brokers(MASTER, [BROKER, "2:127.0.0.2:8123"])
    assert not registry.is_complete, "broker 2 has not registered"
    assert (registry.excludes_broker(2), registry.excludes_broker(3)) == (False, True)
    registry.set_topics(MASTER, ["demo#1:1:1,2:1:1"], parse_producer_topic)
    assert registry.is_complete


def test_forget_unlisted_drops_what_the_last_list_lacks(registry: TopicRegistry) -> None:
    registry.add_brokers(MASTER, [BROKER])
    registry.set_topics(MASTER, ["demo#1:2:1", "other#1:1:1"], parse_producer_topic)
    registry.set_topics(MASTER, ["demo#1:2:1"], parse_producer_topic)
    assert registry.cluster.missing(["demo", "other"]) == []
    registry.forget_unlisted()
    assert registry.cluster.missing(["demo", "other"]) == ["other"]
    assert registry.lists(Partition(1, "demo", 1))


# Impossible lists


def many(one: str, count: int) -> str:
    return "demo#" + ",".join(one.format(number) for number in range(count))


REFUSED = {
    "partitions of a broker": (
        [BROKER],
        ["demo#1:10000:10000:1"],
        "'1:10000:10000:1' in 'demo#1:10000:10000:1' has 100000000 partitions of a topic on one broker; at most "
        "10000 are accepted",
    ),
    "partitions of a topic": (
        [BROKER],
        [many("{}:10:1000:1", 11)],
        "it lists 110000 partitions of topic demo; at most 100000 are accepted",
    ),
    "a topic in many texts": (
        [BROKER],
        [f"demo#{number}:10:1000:1" for number in range(11)],
        "it lists 110000 partitions of topic demo; at most 100000 are accepted",
    ),
    "partitions of all topics": (
        [BROKER],
        [many("{}:10:1000:1", 9).replace("demo", f"demo{number}") for number in range(3)],
        "it lists 270000 partitions, such as 'demo0, demo1, demo2'; at most 200000 are accepted",
    ),
    "brokers of a topic": (
        [BROKER],
        [many("{}:0:0:1", 10_001)],
        "it lists 10001 brokers, such as 'demo#0:0:0:1,",
    ),
    "layouts without partitions": (
        [BROKER],
        [many("{}:0:0:1", 10_000)] * 21,
        "it lists 210000 partitions, such as 'demo#0:0:0:1,",
    ),
    "brokers": (
        [f"{number}:127.0.0.1:8123" for number in range(10_001)],
        ["demo#1:1:1:1"],
        "it lists 10001 brokers, such as '0:127.0.0.1:8123'; at most 10000 are accepted",
    ),
    "a host that is none": (
        ["1:one\x1b[2J:8123"],
        ["demo#1:1:1:1"],
        r"'1:one\x1b[2J:8123' contains an impossible host name",
    ),
    "a very long host": (
        [f"1:{'h' * 70_000}:8123"],
        ["demo#1:1:1:1"],
        "… (70007 characters)' contains an impossible host name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_consumer_refuses_impossible_lists(case: str) -> None:
    brokers, topics, expected = REFUSED[case]
    master = Master(lists=(brokers, topics))
    with master.peer, session(master.address) as consumer:
        with pytest.raises(ProtocolError) as caught:
            consumer.register()
        told = str(caught.value)
        assert f"the master {master.address} sent lists that cannot be used: " in told
        assert expected in told
        assert told.isprintable()
        assert len(told) < 1200
        assert told.endswith("names the masters of a TubeMQ cluster, and what they list")


def test_a_large_cluster_is_accepted() -> None:
    brokers = [f"{number}:127.0.0.1:8123" for number in range(2_000)]
    master = Master(lists=(brokers, [many("{}:2:10:1", 2_000)]))
    with master.peer, session(master.address) as consumer:
        consumer.register()
        assert len(consumer.cluster.partitions("demo")) == 40_000


def test_the_union_of_all_lists_has_a_limit() -> None:
    """Each answer alone is one that a cluster might give."""
    master = Master(lists=([BROKER], ["demo#1:10:1000:1"]))
    with master.peer, session(master.address) as consumer:
        consumer.register()
        for number in range(2, 11):
            master.lists = ([f"{number}:127.0.0.1:8123"], [f"demo#{number}:10:1000:1"])
            consumer.refresh()
        assert len(consumer.cluster.partitions("demo")) == 100_000
        master.lists = (["11:127.0.0.1:8123"], ["demo#11:10:1000:1"])
        with pytest.raises(ProtocolError, match="it lists 110000 partitions of topic demo; at most 100000"):
            consumer.refresh()


@pytest.mark.parametrize(
    ("brokers", "topics", "expected"),
    [
        ([BROKER], ["demo#1:10000:10000"], "has 100000000 partitions of a topic on one broker"),
        ([BROKER], [many("{}:10:1000", 11)], "it lists 110000 partitions of topic demo"),
        ([f"{number}:127.0.0.1:8123" for number in range(10_001)], [], "it lists 10001 brokers"),
    ],
)
def test_a_producer_refuses_impossible_lists(brokers: list[str], topics: list[str], expected: str) -> None:
    def reply(request: Request) -> Message:
        if request.method == Method.PRODUCER_REGISTER:
            return pb.RegisterResponseM2P(success=True, errCode=200, errMsg="", brokerCheckSum=1, brokerInfos=brokers)
        if request.method == Method.PRODUCER_HEARTBEAT:
            return pb.HeartResponseM2P(success=True, errCode=200, errMsg="", brokerCheckSum=1, topicInfos=topics)
        return pb.CloseResponseM2P(success=True, errCode=200, errMsg="")

    with Peer(answering(lambda request: message_reply(request, reply(request)))) as peer:
        producer = ProducerSession(ClientSettings(masters=(peer.address,), framing=Framing.STANDARD, retry_for=30.0))
        with pytest.raises(
            ProtocolError, match=f"the master {peer.address} sent lists that cannot be used: .*{expected}"
        ):
            producer.add_topics(["demo"])
        producer.close()


# What newer lists of a master change


def layouts(*texts: str) -> list[TopicOnBroker]:
    return [layout for text in texts for layout in parse_consumer_topic(text)]


def broker(broker_id: int, port: int) -> dict[int, Broker]:
    return {broker_id: Broker(broker_id, Address("127.0.0.1", port))}


@pytest.mark.parametrize(
    ("brokers", "texts", "partitions"),
    [
        ({}, [], 2),
        (broker(1, 5), [], 2),
        ({}, ["demo#1:1:4:1"], 4),
        ({}, ["demo#1:3:2:1"], 6),
        ({}, ["demo#1:1:1:1"], 2),
        ({}, ["demo#2:1:1:1"], 2),  # nobody knows yet where broker 2 is
        (broker(2, 6), ["demo#2:1:1:1"], 3),
        ({}, ["other#1:1:9:1"], 2),
    ],
)
def test_newer_lists_only_add_partitions(brokers: dict[int, Broker], texts: list[str], partitions: int) -> None:
    known = Cluster().with_more(broker(1, 4), layouts("demo#1:1:2:1"))
    cluster = known.with_more(brokers, layouts(*texts))
    assert len(cluster.partitions("demo")) == partitions
    assert cluster.partitions("demo") == sorted(cluster.partitions("demo"))
    assert cluster.brokers == {**broker(1, 4), **brokers}


def test_owns_store_is_true_for_the_only_partition_of_a_store() -> None:
    cluster = Cluster().with_more(broker(1, 4), layouts("demo#1:2:1:1", "other#1:1:2:1"))
    assert [cluster.owns_store(partition) for partition in cluster.partitions("demo")] == [True, True]
    assert [cluster.owns_store(partition) for partition in cluster.partitions("other")] == [False, False]
    assert not cluster.owns_store(Partition(7, "demo", 0))
    assert cluster.missing(["demo", "third"]) == ["third"]
