# SPDX-License-Identifier: Apache-2.0
"""The driver's checks on both servers: a healthy cluster, holders, and what they leave as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import messages, reading
from tests.clusters import Cluster
from tests.messages import partitions, send
from tubemq_spark.checks import CheckResult, driver_checks
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = cluster.new_topic("three")
    send(cluster, [(partition, b"x") for partition in partitions(cluster, name)])
    return name


@pytest.fixture
def claims(cluster: Cluster, topic: str, group: str) -> Iterator[GroupClaims]:
    """Claims of another query on all partitions, one message behind the beginning."""
    claim = ClaimId("other-query", run=1, batch=1, label="host")
    with reading.holding(messages.settings(cluster), group, topic, claim=claim) as held:
        held.take(dict.fromkeys(partitions(cluster, topic), UNIT))
        yield held


def checked(cluster: Cluster, topic: str, group: str) -> list[CheckResult]:
    options = {"tubemq.master": cluster.master, "tubemq.group": group, "subscribe": topic, "topic": topic}
    return list(driver_checks(options, workers=False))


def test_a_healthy_cluster_has_no_problem(cluster: Cluster, topic: str, group: str) -> None:
    results = checked(cluster, topic, group)
    assert [result for result in results if result.state != "ok"] == []
    found = {result.check: result.detail for result in results}
    assert found["framing"] == f"it answers in the {cluster.framing} framing"
    assert found["clock"].startswith("no difference from the master's clock")
    assert found["holders"] == "6 of 6 partitions are free"
    groups = [cluster.group_offset(group, *place(partition)) for partition in partitions(cluster, topic)]
    assert set(groups) <= {None, -2}  # no broker knows the group


def test_the_holder_is_named_and_keeps_its_claims(
    cluster: Cluster, topic: str, group: str, claims: GroupClaims
) -> None:
    (holder,) = [result for result in checked(cluster, topic, group) if result.state != "ok"]
    assert (holder.state, holder.check, holder.subject) == ("warning", "holders", group)
    assert holder.detail.startswith("query other-query of this connector (host) holds 6 of 6 partitions")
    mine = partitions(cluster, topic)
    claims.refresh(older_than=messages.settings(cluster).clock.monotonic())
    assert all(claims.holds(partition) for partition in mine)
    assert {claims.position(partition).group for partition in mine} == {UNIT}


def place(partition: Partition) -> tuple[str, int, int]:
    return partition.topic, partition.broker_id, partition.partition_id
