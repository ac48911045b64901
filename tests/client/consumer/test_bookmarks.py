# SPDX-License-Identifier: Apache-2.0
"""Bookmarks at brokers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import messages, reading
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.bookmarks import Bookmark, move_bookmarks, read_bookmarks
from tubemq_spark.client.consumer.working_group import bookmark_group
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
def partitions(cluster: EmbeddedCluster) -> list[Partition]:
    found = messages.partitions(cluster, TOPIC)
    messages.send(cluster, messages.numbered(found, 2 * len(found)))
    return found


def ends(cluster: EmbeddedCluster, partitions: list[Partition]) -> dict[Partition, int]:
    return {p: reading.group_position(cluster, "ends", p).end for p in partitions}


def held(cluster: EmbeddedCluster, group: str) -> list[object]:
    return [key for key in cluster.tubemq.claims() if key[0].startswith(group)]


@pytest.mark.parametrize("code", [403, 410, 500, 503])
def test_a_temporary_refusal_is_waited_for(
    cluster: EmbeddedCluster, session: ProducerSession, partitions: list[Partition], group: str, code: int
) -> None:
    with cluster.tubemq.on("partition_register", nth=3, times=2).fail(code, "just now") as fault:
        bookmarks = read_bookmarks(session, group, partitions)
    assert fault.fired == 2
    assert bookmarks == {p: Bookmark(end, end, end, end) for p, end in ends(cluster, partitions).items()}


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
        pytest.raises(error, match=f":{TOPIC}:1 for group {group}_0 at broker 1 at .*{says}"),
    ):
        read_bookmarks(session, group, partitions)
    assert fault.fired == 6  # two groups at two brokers, once
    cluster.tubemq.clear_faults()
    assert held(cluster, group) == []


def test_a_broker_that_does_not_answer_is_given_up_after_the_others_were_moved(
    cluster: EmbeddedCluster, partitions: list[Partition], group: str
) -> None:
    session = ProducerSession(replace(messages.settings(cluster), rpc_timeout=0.1, retry_for=0.3, timings=QUICK))
    session.add_topics([TOPIC])
    with (
        cluster.tubemq.on("partition_register", broker=2).drop_request(),
        pytest.raises(TransportError, match=r"at broker 2 .*gave up after 0\.3 s, with 3 of 6 partitions") as raised,
    ):
        move_bookmarks(session, group, 4, partitions)
    assert raised.value.unserved == {p for p in partitions if p.broker_id == 2}
    at = {p: reading.group_position(cluster, bookmark_group(group, 4), p).group for p in partitions if p.broker_id == 1}
    assert at == ends(cluster, list(at))

    with (
        cluster.tubemq.on("partition_register", broker=2).drop_request(),
        pytest.raises(TransportError, match=r"gave up after 0 s"),
    ):
        read_bookmarks(session, group, partitions, retry_for=0.0)
    session.close()


def test_a_batch_that_begins_after_a_crash_is_not_untried() -> None:
    """The crash takes the messages before the bookmarks, which stay where they were."""
    with embedded_cluster(topics={TOPIC: TopicSpec(partitions=1)}) as cluster:
        found = messages.partitions(cluster, TOPIC)[:1]
        messages.send(cluster, messages.numbered(found, 4))
        session = ProducerSession(messages.settings(cluster))
        session.add_topics([TOPIC])
        read_bookmarks(session, "crashed", found)
        cluster.tubemq.clock.advance(6.0)  # the broker stores positions every 5 s
        cluster.tubemq.crash_broker(found[0].broker_id)
        cluster.tubemq.start_broker(found[0].broker_id)
        [behind] = read_bookmarks(session, "crashed", found).values()
        assert (behind.even, behind.odd, behind.end) == (112, 112, 0)
        [begun] = read_bookmarks(session, "crashed", found, begin_batch=True).values()
        assert (begun.even, begun.odd) == (0, 0)
        messages.send(cluster, messages.numbered(found, 6))
        [later] = read_bookmarks(session, "crashed", found, begin_batch=True).values()
        assert not later.is_untried(0)
        assert not later.is_untried(1)
        session.close()
