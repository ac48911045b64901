from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests import messages
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.broker_channel import BrokerChannel, wait_for
from tubemq_spark.client.producer.pending_record import PendingRecord
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.auth import broker_authorization
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SendEvent
from tubemq_spark.protocol.send_request import encode_content, encode_target

MIB = 1 << 20
PARTITION = Partition(1, "demo", 0)
TARGET = encode_target("tests", PARTITION, broker_authorization(None, 1, 0, 0))


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running


def link_to(cluster: EmbeddedCluster, max_in_flight: int) -> BrokerChannel:
    broker, lease = messages.broker(cluster, 1), ExitStack()
    connection = lease.enter_context(POOL.lease(broker.address, settings(cluster)))
    return BrokerChannel(broker, connection, lease, settings(cluster), max_in_flight)


def message(size: int) -> PendingRecord:
    return PendingRecord("demo", encode_content(bytes(size), 0, None, None), None)


@pytest.mark.parametrize(
    ("max_in_flight", "size", "room"),
    [(1, 10, 1), (7, 10, 7), (1000, MIB, 16), (1000, 20 * MIB, 1)],
    ids=["one", "by number", "by length", "very long"],
)
def test_it_takes_so_many_until_answers_come(
    cluster: EmbeddedCluster, max_in_flight: int, size: int, room: int
) -> None:
    link = link_to(cluster, max_in_flight)
    for _ in range(3):
        taken = 0
        while not link.is_full:
            link.submit(message(size), PARTITION, TARGET)
            taken += 1
        assert taken == room == link.in_flight
        while link.in_flight:
            wait_for([link], 10)
            for sent, _ in link.poll():
                sent.on(SendEvent.ACKNOWLEDGED)
        assert not link.is_full
    link.close()


def test_what_no_frame_holds_is_refused_and_the_link_goes_on(cluster: EmbeddedCluster) -> None:
    link = link_to(cluster, 10)
    with pytest.raises(ProtocolError, match="a frame's body has 1 to"):
        link.submit(message(30 * MIB), PARTITION, TARGET)
    link.submit(message(10), PARTITION, TARGET)
    while link.in_flight:
        wait_for([link], 10)
        link.poll()
    assert not link.is_broken
    link.close()
