# SPDX-License-Identifier: Apache-2.0
"""The cluster's metadata: what newer lists of a master change."""

from __future__ import annotations

import pytest

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.protocol.metadata import Address, Broker, Partition, TopicOnBroker, parse_consumer_topic


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
