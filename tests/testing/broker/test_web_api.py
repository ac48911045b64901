# SPDX-License-Identifier: Apache-2.0
"""The brokers' HTTP API: the embedded broker answers as a real one."""

from __future__ import annotations

from typing import Any

from tests import messages
from tests.clusters import Cluster
from tests.real import admin
from tests.waiting import wait_until
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.protocol.metadata import Partition

CLAIM_FIELDS = ("groupName", "topicName", "partitionId", "consumerId", "isRegOk", "tmpOffset", "minOffset", "maxOffset")


def ask(cluster: Cluster, broker_id: int, method: str, **params: object) -> list[dict[str, Any]]:
    web = f"http://{cluster.web_master}/webapi.htm"
    (row,) = admin.call(web, {"method": "admin_query_broker_run_status", "brokerId": broker_id})["data"]
    place = f"http://{row['brokerIp']}:{row['brokerWebPort']}/broker.htm"
    found: list[dict[str, Any]] = admin.call(place, {"method": method, **params})["dataSet"]
    return found


def test_positions_and_claims_of_a_group(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("one")
    place = Partition(1, topic, 0)
    messages.send(cluster, messages.numbered([place], 3))
    with GroupMember(messages.settings(cluster), group, topic) as member:
        member.claims.take({place: 28})
        # Release 2.5 shows a new group after some seconds.
        wait_until(lambda: ask(cluster, 1, "admin_query_offset", groupName=group))
        (row,) = ask(cluster, 1, "admin_query_offset", groupName=group, topicName=topic)
        assert row["groupName"] == group
        (info,) = row["subInfo"]
        (at,) = info["offsets"]
        assert (info["topicName"], at["partitionId"], at["curOffset"], at["flightOffset"]) == (topic, 0, 28, 0)
        assert (at["offsetLag"], at["offsetMax"]) == (56, 84)
        (claim,) = ask(cluster, 1, "admin_query_broker_all_consumer_info", groupName=group)
        client = str(member.claims.claim)
        assert tuple(claim[name] for name in CLAIM_FIELDS) == (group, topic, 0, client, True, 0, 0, 84)
        assert claim["zkOffset"] == 28
    assert ask(cluster, 1, "admin_query_broker_all_consumer_info", groupName=group) == []
    assert ask(cluster, 1, "admin_query_offset", groupName=group) != []
