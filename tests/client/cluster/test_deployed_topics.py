# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions whose brokers are down: a producer waits for them, and reports only unknown ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tubemq_spark.client.cluster.deployed_topics import layouts_of
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, TransportError

HEARTBEAT = "producer_heartbeat"
TOPICS = {"both": TopicSpec(partitions=3), "lone": TopicSpec(partitions=3, brokers=(2,))}
PATIENCE, SHORT = 60.0, 0.3  # seconds


@pytest.fixture(autouse=True)
def no_waiting(use_timings: UseTimings, skipping_clock: SkippingClock) -> None:
    """The lists of new masters are complete at once, and requests follow each other soon."""
    use_timings(topic_lists_fill_up=0.0, deployed_topic_max_pause=0.05)


@pytest.fixture(params=["standard", "prefixed"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    framing: Literal["standard", "prefixed"] = request.param
    with embedded_cluster(topics=TOPICS, brokers=2, framing=framing) as running:
        yield running


def test_waiting_for_the_only_broker_of_a_topic_ends_with_an_error(cluster: EmbeddedCluster) -> None:
    cluster.stop_broker(2)
    with Producer(settings(cluster, retry_for=SHORT)) as producer:
        producer.send("both", b"a")
        producer.flush()
        with pytest.raises(
            TransportError,
            match=r"^row 7 cannot be sent, and 1 of 1 messages so far are acknowledged: topic lone accepted "
            r"no messages for 0.3 s; it is deployed on broker 2 at .*, which is down \(.*refused\)\. Start the brok.*$",
        ):
            producer.send("lone", b"b", row=7)


def test_a_closed_topic_is_not_reported_as_unknown(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.close_topic("lone")
    with (
        Producer(settings(cluster, retry_for=SHORT)) as producer,
        pytest.raises(TransportError, match=r"deployed on broker 2 at .*, which runs\. Start .* if it is closed"),
    ):
        producer.send("lone", b"b")


def test_a_producer_waits_for_topics_that_consumers_may_not_read(cluster: EmbeddedCluster) -> None:
    """The master does not tell such a consumer where a topic is deployed."""
    cluster.tubemq.authorize("lone", "others")
    assert layouts_of(settings(cluster), "lone") is None
    cluster.stop_broker(2)
    with (
        Producer(settings(cluster, retry_for=SHORT)) as producer,
        pytest.raises(TransportError, match=r"topic lone .*the master does not say whether it is deployed"),
    ):
        producer.send("lone", b"b")


def test_waiting_for_the_broker_of_a_target_partition_ends_with_an_error(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster, retry_for=SHORT)) as producer:
        producer.send("both", b"a")
        cluster.stop_broker(2)
        cluster.create("both", TopicSpec(partitions=4))
        with pytest.raises(
            TransportError,
            match=r"^row 1 cannot be sent to partition 3 on broker 2, and .*: partition 2:both:3 accepted no messages",
        ):
            producer.send("both", b"good", row=1, target=(2, 3))
        cluster.start_broker(2)
        producer.send("both", b"good", row=1, target=(2, 3))
    assert bodies_in(cluster)[b"good"] == 1


@pytest.mark.parametrize("target", [(2, 3), (3, 0)], ids=str)
def test_an_unknown_target_is_an_error_at_once_while_brokers_are_down(
    cluster: EmbeddedCluster, target: tuple[int, int]
) -> None:
    cluster.stop_broker(2)
    with (
        Producer(settings(cluster, retry_for=PATIENCE)) as producer,
        pytest.raises(ConfigError, match=r"^row 0: topic both has no partition . on a broker .;"),
    ):
        producer.send("both", b"wrong", row=0, target=target)
