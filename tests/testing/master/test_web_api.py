# SPDX-License-Identifier: Apache-2.0
"""The masters' HTTP API: the embedded master answers as a real one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clusters import Cluster
from tests.real import admin
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import parse_addresses
from tubemq_spark.testing import EmbeddedTubeMQ

TOPIC_FIELDS = ("topicName", "brokerId", "brokerIp", "brokerPort", "topicStatusId", "numTopicStores", "numPartitions")
RUN_FIELDS = ("acceptPublish", "acceptSubscribe", "numPartitions", "numTopicStores", "brokerManageStatus")


def ask(cluster: Cluster, method: str, **params: object) -> dict[str, Any]:
    return admin.call(f"http://{cluster.web_master}/webapi.htm", {"method": method, **params})


def test_a_topic_is_described(cluster: Cluster) -> None:
    name = cluster.new_topic("stores")
    answer = ask(cluster, "admin_query_topic_info", topicName=name)
    (topic,) = answer["data"]
    assert (answer["errCode"], answer["count"], topic["topicName"], topic["maxMsgSizeInMB"]) == (0, 1, name, 1)
    assert (topic["infoCount"], topic["totalCfgNumPart"], topic["totalRunNumPartCount"]) == (2, 8, 8)
    assert (topic["isSrvAcceptPublish"], topic["isSrvAcceptSubscribe"]) == (True, True)
    rows = sorted(topic["topicInfo"], key=lambda row: int(row["brokerId"]))
    for broker_id, row in zip(cluster.broker_ids, rows, strict=True):
        host, port = cluster.broker_address(broker_id).split(":")
        assert tuple(row[name] for name in TOPIC_FIELDS) == (name, broker_id, host, int(port), 0, 2, 2)
        assert tuple(row["runInfo"][name] for name in RUN_FIELDS) == (True, True, 2, 2, "online")
        assert (row["acceptPublish"], row["acceptSubscribe"], row["deletePolicy"]) == (True, True, "delete,168h")


def test_an_unknown_topic_has_no_row(cluster: Cluster) -> None:
    answer = ask(cluster, "admin_query_topic_info", topicName="no_such_topic")
    assert (answer["data"], answer["count"]) == ([], 0)


def test_brokers_are_listed_with_their_http_ports(cluster: Cluster) -> None:
    rows = ask(cluster, "admin_query_broker_run_status")["data"]
    assert sorted(row["brokerId"] for row in rows) == list(cluster.broker_ids)
    for row in rows:
        assert f"{row['brokerIp']}:{row['brokerPort']}" == cluster.broker_address(row["brokerId"])
        assert (row["manageStatus"], row["runStatus"], row["isBrokerOnline"]) == ("online", "running", "true")
        place = f"http://{row['brokerIp']}:{row['brokerWebPort']}/broker.htm"
        assert admin.call(place, {"method": "admin_query_offset", "groupName": "nobody"})["dataSet"] == []


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        ("admin_query_nothing", {}, "unsupported method"),
        ("admin_add_new_topic_record", {"topicName": "x1", "confModAuthToken": "wrong"}, "unauthorized request"),
    ],
)
def test_a_call_is_refused(cluster: Cluster, method: str, params: dict[str, str], text: str) -> None:
    with pytest.raises(admin.AdminError, match=text):
        ask(cluster, method, **params)


def test_rows_of_a_change_say_what_failed(cluster: Cluster) -> None:
    name = cluster.new_topic("one")
    place = {"topicName": name, "brokerId": 1, "confModAuthToken": cluster.admin_token}
    (row,) = ask(cluster, "admin_add_new_topic_record", **place)["data"]
    assert (row["success"], row["errCode"], row["errInfo"]) == (
        False, 402, f"Existed record found for brokerId-topicName(1:{name})!",
    )  # fmt: skip
    (row,) = ask(cluster, "admin_delete_topic_info", **place)["data"]
    assert (row["success"], row["errCode"]) == (False, 406)
    assert "acceptPublish and acceptSubscribe must be false" in row["errInfo"]


def test_a_standby_names_the_active_master() -> None:
    with EmbeddedTubeMQ({"demo": 1}, masters=2) as tubemq:
        active, standby = parse_addresses(tubemq.web_master)
        assert set(AdminApi([standby, active]).brokers()) == {1}
        with pytest.raises(TransportError, match=f"HTTP status 302, a redirect to http://{active}/webapi.htm"):
            AdminApi([standby]).brokers()
        tubemq.switch_master()
        tubemq.stop_master(1)
        assert set(AdminApi([standby]).brokers()) == {1}
