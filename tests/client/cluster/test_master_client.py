# SPDX-License-Identifier: Apache-2.0
"""Failover and retries: masters that fail, stand by, forget their clients, or send replies slowly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from tests import messages
from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted
from tests.waiting import wait_until
from tubemq_spark.client.cluster.cluster_metadata import KnownTopics
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.master_client import SessionExpiredError
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.unknown_topics import UnknownTopicError
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.metadata import Partition, parse_addresses

REGISTER, META, BEAT, CLOSE = "consumer_register_v2", "get_partition_meta", "consumer_heartbeat_v2", "consumer_close"
GROUP = "g"
TOPICS = {"demo": TopicSpec(partitions=3, stores=2)}
DEMO = [Partition(1, "demo", store * 10_000 + number) for store in (0, 1) for number in (0, 1, 2)]
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def in_a_hurry(use_timings: UseTimings, skipping_clock: SkippingClock) -> None:
    use_timings(slow_peer_grace=0.05, first_contact_timeout=PATIENCE, topic_lists_fill_up=0.2)


@pytest.fixture
def beating(use_timings: UseTimings) -> None:
    """Sessions send a heartbeat every 10 ms."""
    use_timings(heartbeat_period=0.01)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One master."""
    with embedded_cluster(topics=TOPICS, brokers=1) as running:
        yield running


@pytest.fixture
def pair() -> Iterator[EmbeddedCluster]:
    """Two masters, the first of which is the active one."""
    with embedded_cluster(topics=TOPICS, brokers=1, masters=2) as running:
        yield running


@contextmanager
def session(
    cluster: EmbeddedCluster,
    *,
    topics: tuple[str, ...] = ("demo",),
    filters: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **others: Any,
) -> Iterator[ConsumerSession]:
    """Yield a session that is not registered yet. Close it at the end."""
    made = ConsumerSession(replace(messages.settings(cluster), retry_for=PATIENCE, **others), GROUP, topics, filters)
    try:
        yield made
    finally:
        made.close()


class Requests:
    """Requests of a method, at all masters or at one."""

    def __init__(self, cluster: EmbeddedCluster, method: str, master: int | None = None) -> None:
        self._called = threading.Condition()
        self.fault = cluster.tubemq.on(method, master=master).run(self._notify)

    def wait_for_more(self, count: int) -> None:
        """Wait for `count` requests from now on. All but the last of them are answered then."""
        with self._called:
            enough = self.fault.fired + count
            assert self._called.wait_for(lambda: self.fault.fired >= enough, timeout=PATIENCE), self.fault

    def _notify(self) -> None:
        with self._called:
            self._called.notify_all()


def clients(cluster: EmbeddedCluster) -> list[str]:
    return cluster.members(GROUP).clients


def forget_clients(pair: EmbeddedCluster, change: str) -> None:
    """Let the active master restart, or the next one take over."""
    if change == "failover":
        pair.tubemq.switch_master()
    else:
        pair.tubemq.stop_master(1)
        pair.tubemq.start_master(1)


# One master


def test_registering_lists_the_partitions(cluster: EmbeddedCluster) -> None:
    closes = counted(cluster, CLOSE)
    with session(cluster) as consumer:
        consumer.register()
        assert consumer.cluster.partitions("demo") == DEMO
        assert consumer.broker(DEMO[0]) == messages.broker(cluster, 1)
        assert not consumer.cluster.owns_store(DEMO[0])
        assert cluster.members(GROUP) == (["demo"], "client-rebalance", [consumer.client_id], [])
        assert repr(consumer) == f"<ConsumerSession {consumer.client_id} REGISTERED at {cluster.master}>"
        consumer.close()
        consumer.close()
    assert closes.fired == 1
    assert clients(cluster) == []


def test_registering_waits_for_a_topic_that_appears_soon(use_timings: UseTimings) -> None:
    """Only release 1.2 does not refuse an unknown topic."""
    use_timings(topic_lists_fill_up=PATIENCE)
    with embedded_cluster(topics=TOPICS, brokers=1, framing="prefixed") as cluster:

        def appear() -> None:
            cluster.create("late", TopicSpec(partitions=1))
            cluster.tubemq.clock.advance(5.0)  # beyond a round of balance, which makes the lists

        late = cluster.tubemq.on(META, nth=2, times=1).run(appear)
        with session(cluster, topics=("late",)) as consumer:
            consumer.register()
            assert consumer.cluster.partitions("late") == [Partition(1, "late", 0)]
        assert late.fired == 1


@pytest.mark.parametrize("framing", ["prefixed", "standard"], ids=["1.2", "2.5"])
@pytest.mark.parametrize("lists", [True, False])
def test_the_error_for_an_unknown_topic_names_similar_ones(framing: Any, lists: bool) -> None:
    """If the masters' HTTP API can be reached, which lists topics."""
    said = "; did you mean demo\\?" if lists else "\\."
    with embedded_cluster(topics=TOPICS, brokers=1, framing=framing) as cluster:
        admin = parse_addresses(cluster.tubemq.web_master) if lists else ()
        asking = session(cluster, topics=("demo", "dmeo"), admin_addresses=admin)
        said = f"^the cluster has no topic dmeo{said} Check option 'subscribe'"
        with asking as consumer, pytest.raises(UnknownTopicError, match=said):
            consumer.register()
        assert clients(cluster) == []  # it has said good-bye


def test_an_unknown_broker_is_a_config_error(cluster: EmbeddedCluster) -> None:
    new = Partition(2, "demo", 0)
    with session(cluster) as consumer:
        consumer.register()
        with pytest.raises(ConfigError, match=f"knows no broker 2, which has {new}"):
            consumer.broker(new)
        assert cluster.tubemq.add_broker() == 2
        assert consumer.broker(new) == messages.broker(cluster, 2)


def test_a_broker_as_master_is_a_config_error(cluster: EmbeddedCluster) -> None:
    (address,) = parse_addresses(cluster.broker_address(1))
    said = f"{address} answers like a TubeMQ broker.*masters listen on 8715"
    with session(cluster, masters=(address,)) as consumer, pytest.raises(ConfigError, match=said):
        consumer.register()


# Several masters


def test_the_error_names_all_masters_that_failed(pair: EmbeddedCluster, use_timings: UseTimings) -> None:
    use_timings(first_contact_timeout=0.2)
    pair.tubemq.switch_master()
    pair.tubemq.stop_master(2)
    standby, gone = pair.master.split(",")
    said = (
        f"no master answered: .* at the master {standby}: not in service .StandbyException.; "
        f".* at the master {gone}: cannot connect.* Check option 'tubemq.master' and that the master runs"
    )
    with session(pair) as consumer, pytest.raises(TransportError, match=said):
        consumer.register()


@pytest.mark.parametrize("method", ["producer_register", "producer_heartbeat"])
def test_a_new_client_goes_on_if_a_reply_is_lost(
    cluster: EmbeddedCluster, use_timings: UseTimings, method: str
) -> None:
    """The server accepted the connection, so its address may be right."""
    use_timings(first_contact_timeout=1.0)
    quick = replace(messages.settings(cluster), retry_for=PATIENCE, rpc_timeout=0.3)
    with cluster.tubemq.on(method, times=1).drop_reply() as lost, closing(ProducerSession(quick)) as producer:
        producer.add_topics(["demo"])
        assert producer.cluster.partitions("demo") == DEMO
    assert lost.fired == 1


def test_a_silent_peer_is_no_master(use_timings: UseTimings) -> None:
    """For example the HTTP port of a master: one repetition, then the error names the ports."""
    use_timings(first_contact_timeout=0.2, first_answer_timeout=0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        settings = ClientSettings.from_options({"tubemq.master": f"127.0.0.1:{silent.getsockname()[1]}"})
        said = "accepts connections but does not answer within 0.5 s.*its port is 8715 by default, and not 8080 .HTTP"
        with pytest.raises(TransportError, match=said):
            ConsumerSession(settings, "g", ["demo"]).register()


# Masters that forget their clients

CONSUMER_REQUESTS: dict[str, Callable[[ConsumerSession], object]] = {
    "lists, repeated": lambda session: session.refresh(),
    "lists, for a caller that goes on without": lambda session: session.refresh_soon(),
    "lists, without earlier ones": lambda session: session.listed(),
    "deployed topics": lambda session: session.deployed(),
    "visit token": lambda session: session.token._ask(),
}
PRODUCER_REQUESTS: dict[str, Callable[[ProducerSession], object]] = {
    "lists, repeated": lambda session: session.refresh(),
    "lists, once": lambda session: session.refresh_once(),
    "a partition": lambda session: session.find_partition(DEMO[0]),
    "topics": lambda session: session.add_topics(["other"]),
    "topics that the driver knows": lambda session: session.add_known_topics(
        KnownTopics(frozenset({"other"}), session.cluster, {}, 1000, 0)
    ),
    "visit token": lambda session: session.token._ask(),
}


@pytest.mark.parametrize("change", ["restart", "failover"])
@pytest.mark.parametrize("request_of", CONSUMER_REQUESTS)
def test_a_consumer_that_asks_a_master_registers_again(
    pair: EmbeddedCluster, caplog: pytest.LogCaptureFixture, request_of: str, change: str
) -> None:
    with session(pair) as consumer:
        consumer.register()
        forget_clients(pair, change)
        CONSUMER_REQUESTS[request_of](consumer)
        assert clients(pair) == [consumer.client_id]
    assert caplog.messages == []


@pytest.mark.parametrize("change", ["restart", "failover"])
@pytest.mark.parametrize("request_of", PRODUCER_REQUESTS)
def test_a_producer_that_asks_a_master_registers_again(
    pair: EmbeddedCluster, caplog: pytest.LogCaptureFixture, request_of: str, change: str
) -> None:
    pair.create("other", TopicSpec(partitions=1))
    with closing(ProducerSession(messages.settings(pair))) as producer:
        producer.add_topics(["demo"])
        forget_clients(pair, change)
        joined = counted(pair, "producer_register")
        PRODUCER_REQUESTS[request_of](producer)
        assert joined.fired
    assert caplog.messages == []


def test_a_master_that_forgets_a_client_at_once_is_not_asked_for_ever(cluster: EmbeddedCluster) -> None:
    with session(cluster) as consumer:
        consumer.register()
        with cluster.tubemq.on(META).fail(411) as asked, pytest.raises(SessionExpiredError, match="has forgotten"):
            consumer.refresh_soon()
        assert asked.fired == 2


@pytest.mark.usefixtures("beating")
def test_the_next_heartbeat_registers_again(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """It does so at once, and the failure is none for the log."""
    beats = Requests(cluster, BEAT)
    with session(cluster) as consumer, closing(ProducerSession(messages.settings(cluster))) as producer:
        consumer.register()
        producer.add_topics(["demo"])
        joined = counted(cluster, "producer_register")
        cluster.tubemq.switch_master()
        beats.wait_for_more(3)
        assert clients(cluster) == [consumer.client_id]
        wait_until(lambda: joined.fired)
    assert caplog.messages == []


# Heartbeats


@pytest.mark.usefixtures("beating")
def test_a_registered_session_sends_heartbeats_until_it_is_closed(cluster: EmbeddedCluster) -> None:
    beats = Requests(cluster, BEAT)
    with session(cluster) as consumer:
        consumer.register()
        for _ in range(5):
            beats.wait_for_more(2)
            cluster.tubemq.clock.advance(20.0)  # less than the timeout of 30
        assert clients(cluster) == [consumer.client_id]
        consumer.close()
        after = beats.fault.fired
        assert clients(cluster) == []
    assert beats.fault.fired == after
