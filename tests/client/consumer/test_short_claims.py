# SPDX-License-Identifier: Apache-2.0
"""Claims for one request at brokers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import messages, reading
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.short_claims import exchange_position, read_ends
from tubemq_spark.client.consumer.working_group import ends_group
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import AuthError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.metadata import Partition

TOPIC = "demo"
QUICK = Timings(slow_peer_grace=0.1)


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={TOPIC: TopicSpec(partitions=3)}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield running
    running.tubemq.clear_faults()


@pytest.fixture
def session(cluster: EmbeddedCluster) -> Iterator[ProducerSession]:
    session = ProducerSession(messages.settings(cluster))
    session.add_topics([TOPIC])
    yield session
    session.close()


@pytest.fixture
def quick(cluster: EmbeddedCluster) -> Iterator[ProducerSession]:
    session = ProducerSession(replace(messages.settings(cluster), rpc_timeout=0.1, retry_for=0.3, timings=QUICK))
    session.add_topics([TOPIC])
    yield session
    session.close()


@pytest.fixture
def partitions(cluster: EmbeddedCluster) -> list[Partition]:
    found = messages.partitions(cluster, TOPIC)
    messages.send(cluster, messages.numbered(found, 2 * len(found)))
    return found


def ends(cluster: EmbeddedCluster, partitions: list[Partition]) -> dict[Partition, int]:
    return {p: reading.group_position(cluster, "ends", p).end for p in partitions}


@pytest.mark.parametrize("code", [403, 410, 500, 503])
def test_a_temporary_refusal_is_waited_for(
    cluster: EmbeddedCluster, session: ProducerSession, partitions: list[Partition], group: str, code: int
) -> None:
    with cluster.tubemq.on("partition_register", nth=3, times=2).fail(code, "just now") as fault:
        found = read_ends(session, group, partitions)
    assert fault.fired == 2
    assert found == ends(cluster, partitions)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (415, AuthError, "check options 'tubemq.user'"),
        (400, ServerError, "failed with 400 BAD_REQUEST: no"),
    ],
)
def test_a_permanent_refusal_is_an_error_at_once(
    cluster: EmbeddedCluster,
    session: ProducerSession,
    partitions: list[Partition],
    group: str,
    code: int,
    error: type[TubeMQError],
    says: str,
) -> None:
    with (
        cluster.tubemq.on("partition_register", partition=1, nth=1).fail(code, "no") as fault,
        pytest.raises(error, match=f":{TOPIC}:1 for group {ends_group(group)} at broker 1 at .*{says}"),
    ):
        read_ends(session, group, partitions)
    assert fault.fired == 2  # at two brokers, once
    cluster.tubemq.clear_faults()
    assert [key for key in cluster.tubemq.claims() if key[0].startswith(group)] == []


def test_a_broker_that_does_not_answer_is_given_up(
    cluster: EmbeddedCluster, quick: ProducerSession, partitions: list[Partition], group: str
) -> None:
    with (
        cluster.tubemq.on("partition_register", broker=2).drop_request(),
        pytest.raises(TransportError, match=r"at broker 2 .*gave up after 0\.3 s, with 3 of 6 partitions") as raised,
    ):
        read_ends(quick, group, partitions)
    assert raised.value.unserved == {p for p in partitions if p.broker_id == 2}


def test_a_broker_that_does_not_answer_may_be_left_out(
    cluster: EmbeddedCluster,
    quick: ProducerSession,
    partitions: list[Partition],
    group: str,
) -> None:
    with cluster.tubemq.on("partition_register", broker=2).drop_request():
        found = read_ends(quick, group, partitions, within=0.2)
        mark = exchange_position(quick, group, partitions[-1], 0, within=0.2)
    assert found == ends(cluster, [p for p in partitions if p.broker_id == 1])
    assert mark is None
