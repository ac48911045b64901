# SPDX-License-Identifier: Apache-2.0
"""Positions that no store can have are refused before they come into a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import reading
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.network.hostile import Spoiled, saying
from tests.network.proxied import Proxied
from tests.network.proxy import Network
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.broker_requests import MAX_POSITION, check_positions
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.visitor import visitor_for
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.metadata import Partition

HERE = Partition(1, "demo", 0)
HUGE = 2**62 // UNIT * UNIT


@pytest.mark.parametrize(("cursor", "end"), [(-UNIT, 0), (0, -1), (0, UNIT + 1), (HUGE, 0), (0, HUGE)])
def test_impossible_positions_are_refused(cursor: int, end: int) -> None:
    with pytest.raises(ProtocolError, match=f"claiming: the broker reports position {cursor} and the end {end} "):
        check_positions("claiming", cursor, end)


@pytest.mark.parametrize(("cursor", "end"), [(0, 0), (5 * UNIT, 9 * UNIT), (5, 0), (0, MAX_POSITION // UNIT * UNIT)])
def test_possible_positions_are_accepted(cursor: int, end: int) -> None:
    """Administrators may set a group to any number."""
    check_positions("claiming", cursor, end)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        running.tubemq.send("demo", b"one")
        yield running


@pytest.fixture
def proxied(cluster: EmbeddedCluster) -> Iterator[Proxied]:
    with Network() as network:
        yield Proxied(network, cluster.master, {1: cluster.broker_address(1)})
        forget_servers()


@pytest.fixture
def claims(cluster: EmbeddedCluster, proxied: Proxied) -> Iterator[GroupClaims]:
    reached = ClientSettings.from_options(proxied.options)
    mapped = replace(settings(cluster), masters=reached.masters, broker_addresses=reached.broker_addresses)
    with reading.holding(mapped, "g", "demo") as claims:
        yield claims
        proxied.calm()


@pytest.mark.parametrize("said", [{"currOffset": -UNIT}, {"maxOffset": HUGE}, {"maxOffset": 1}], ids=str)
def test_a_claim_with_impossible_positions_is_none(claims: GroupClaims, proxied: Proxied, said: dict[str, int]) -> None:
    proxied.brokers[1].edit = Spoiled(Method.PARTITION_REGISTER, saying(**said))
    with pytest.raises(ProtocolError, match=r"claiming 1:demo:0 .*Positions are multiples of 28"):
        claims.take({HERE: None})
    assert not claims.holds(HERE)


def test_an_impossible_end_of_a_held_partition_is_refused(claims: GroupClaims, proxied: Proxied) -> None:
    claims.take({HERE: None})
    proxied.brokers[1].edit = Spoiled(Method.COMMIT_OFFSET, saying(maxOffset=HUGE))
    with pytest.raises(ProtocolError, match=r"asking for the end of 1:demo:0 .*Positions are multiples of 28"):
        claims.refresh(float("inf"))
    assert claims.position(HERE).end == UNIT


def test_an_impossible_beginning_of_a_store_is_refused(claims: GroupClaims, proxied: Proxied) -> None:
    visitor = visitor_for(claims._session)
    proxied.brokers[1].edit = Spoiled(Method.PARTITION_REGISTER, saying(currOffset=-UNIT))
    with pytest.raises(ProtocolError, match="Positions are multiples of 28"):
        Prober(visitor).extents([HERE])
