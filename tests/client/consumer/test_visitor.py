# SPDX-License-Identifier: Apache-2.0
"""Visitors of one group: they end each other's claims, but no claim of another client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

GROUP, STRANGER = "g_look", "some_java_consumer"
HERE = Partition(1, "demo", 0)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        for number in range(3):
            running.tubemq.send("demo", b"%d" % number)
        yield running


def test_a_visitor_ends_the_claim_of_another_one(cluster: EmbeddedCluster) -> None:
    ids = [message.message_id for message in cluster.tubemq.messages("demo")]
    with closing(reading.visitor(cluster, GROUP)) as one, closing(reading.visitor(cluster, GROUP)) as other:
        for visitor in (one, other, one, other):
            (found,) = Prober(visitor).probe([(HERE, UNIT)]).values()
            assert (found.begin, found.message_ids) == (UNIT, tuple(ids[1:]))
            assert reading.register(cluster, GROUP, HERE, STRANGER).errCode == 410, "the claim is kept"
        cluster.tubemq.flush("demo")
        for visitor in (one, other):
            assert Prober(visitor).flushed_ends([HERE]) == {HERE: 3 * UNIT}
        assert one.failures == other.failures == 0, "the broker has answered"
    assert reading.register(cluster, GROUP, HERE, STRANGER).errCode == 200, "the claim was released"


def test_a_visitor_does_not_wait_for_another_one(cluster: EmbeddedCluster) -> None:
    """Where visits follow one another, after each pause another visitor holds the partition."""
    clock = SkippingClock()
    given = settings(cluster, clock=clock)
    with closing(reading.visitor(cluster, GROUP)) as one, closing(reading.visitor(cluster, GROUP, given)) as other:
        for _ in range(3):
            Prober(one).extents([HERE])
            assert Prober(other).extents([HERE]) == {HERE: (0, 3 * UNIT)}
        assert len(Prober(other).probe([(HERE, UNIT)])) == 1
    assert not clock.pauses


def test_a_visit_waits_for_a_foreign_claim_as_long_as_for_a_broker(cluster: EmbeddedCluster) -> None:
    assert reading.register(cluster, GROUP, HERE, STRANGER).errCode == 200
    clock = SkippingClock()
    with closing(reading.visitor(cluster, GROUP, settings(cluster, retry_for=5.0, clock=clock))) as visitor:
        with pytest.raises(TransportError, match=rf"410.*{STRANGER}.*gave up after 5 s") as raised:
            Prober(visitor).extents([HERE])
        assert raised.value.unserved == {HERE}
    assert visitor.failures > 1
    assert sum(clock.pauses) == pytest.approx(5.0, abs=0.5)
    assert reading.unregister(cluster, GROUP, HERE, STRANGER).errCode == 200, "the claim was left alone"
