# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.master.calls import NOTHING_KNOWN, MasterBench, register, register_v2
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.catalog import BrokerEntry, FlowRule, TopicLayout
from tubemq_spark.testing.config import Release

BROKERS = ["1:10.0.0.1: ", "2:10.0.0.2:8200"]


# -- contents of V2 replies


def test_new_partitions_are_announced_after_a_rebalance() -> None:
    bench = MasterBench(consumer_balance_period=5.0)
    bench.register_v2()
    old = bench.meta()
    bench.catalog.topics["a"][1] = TopicLayout(4, 1)
    assert bench.meta().topicMetaInfoId == old.topicMetaInfoId
    bench.wait(5)
    new = bench.meta(topicMetaInfoId=old.topicMetaInfoId)
    assert new.topicMetaInfoId != old.topicMetaInfoId
    assert "1:1:4:1" in new.topicMetaInfoList[0]


def test_a_deleted_topic_stays_in_the_metadata_of_its_group() -> None:
    bench = MasterBench()
    bench.register_v2(topicList=["a", "b"])
    bench.meta()
    del bench.catalog.topics["b"]
    bench.wait(1)
    assert sorted(bench.meta().topicMetaInfoList)[1] == "b#1:1:1:1"


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (lambda bench: setattr(bench.catalog.brokers[1], "online", False), (0, 1), (0, 1)),
        (lambda bench: setattr(bench.catalog.brokers[2], "online", False), (1, 1), (1, 0)),
        (lambda bench: setattr(bench.catalog.brokers[2], "accept_subscribe", False), (1, 1), (1, 0)),
        (lambda bench: setattr(bench.catalog.brokers[1], "accept_subscribe", False), (1, 1), (0, 1)),
        (lambda bench: setattr(bench.catalog.topics["a"][1], "accept_subscribe", False), (0, 1), (0, 1)),
        (lambda bench: bench.catalog.rules.may_consume.update({("a", "g"): False}), (0, 0), (0, 0)),
        (lambda bench: bench.catalog.rules.may_consume.update({("a", "g2"): False}), (1, 1), (1, 1)),
    ],
)
def test_the_status_of_brokers(
    change: Callable[[MasterBench], object], old: tuple[int, int], new: tuple[int, int]
) -> None:
    for release, (first, second) in ((Release.V1_2, old), (Release.V2_5, new)):
        bench = MasterBench(release)
        change(bench)
        bench.register_v2()
        assert list(bench.meta().topicMetaInfoList) == [f"a#1:1:3:{first},2:2:2:{second}"]


def test_a_member_with_old_metadata_gets_it_unasked() -> None:
    bench = MasterBench()
    bench.register_v2()
    meta_id = bench.meta().topicMetaInfoId
    assigned = bench.clock.wall_ms()

    def report(**fields: Any) -> Any:
        base = {"brokerConfigId": 1, "topicMetaInfoId": NOTHING_KNOWN, "lstAssignedTime": assigned}
        return bench.heartbeat_v2(subRepInfo=pb.ClientSubRepInfo(**{**base, **fields}))

    held = {"reportSubInfo": True, "partSubInfo": ["a#1:0,2:10000"]}
    assert not report(**held).HasField("topicMetaInfoId")
    for _ in range(20):
        bench.wait(9)
        assert not bench.heartbeat_v2().HasField("topicMetaInfoId")
    bench.wait(1)
    assert report().topicMetaInfoId == meta_id
    assert len(report().topicMetaInfoList) == 1
    assert not report(topicMetaInfoId=meta_id).topicMetaInfoList
    assert report(topicMetaInfoId=meta_id).topicMetaInfoId == meta_id
    assert not report(lstAssignedTime=bench.clock.wall_ms()).HasField("topicMetaInfoId")
    assert not report(reportSubInfo=True).HasField("topicMetaInfoId")  # a member without partitions gets no metadata


def test_a_report_without_its_flag_is_ignored() -> None:
    bench = MasterBench()
    report = pb.ClientSubRepInfo(brokerConfigId=1, topicMetaInfoId=1, reportSubInfo=False, partSubInfo=["a"])
    assert bench.register_v2(subRepInfo=report).errCode == 200


def test_orders_to_consume_from_the_latest() -> None:
    bench = MasterBench()
    bench.catalog.rules.from_max["g"] = 5
    assert not bench.register_v2().opsTaskInfo.HasField(
        "csmFrmMaxOffsetCtrlId"
    )  # given before the group was created again
    bench.catalog.rules.from_max["g"] = 6
    assert bench.heartbeat_v2().opsTaskInfo.csmFrmMaxOffsetCtrlId == 6
    assert bench.heartbeat_v2().opsTaskInfo.csmFrmMaxOffsetCtrlId == 6
    done = pb.OpsTaskInfo(csmFrmMaxOffsetCtrlId=6)
    assert not bench.heartbeat_v2(opsTaskInfo=done).opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")
    assert not bench.heartbeat_v2().opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")
    bench.register_v2("c2", nodeId=1)
    assert bench.heartbeat_v2("c2").opsTaskInfo.csmFrmMaxOffsetCtrlId == 6


def test_flow_rules_in_v2_replies() -> None:
    bench = MasterBench()
    bench.catalog.default_flow = FlowRule(11, '[{"type":1}]')
    bench.catalog.group_flows["g"] = FlowRule(22, '[{"type":3}]', 203)
    tasks = bench.register_v2().opsTaskInfo
    assert tasks == pb.OpsTaskInfo(
        defFlowCheckId=11,
        defFlowControlInfo='[{"type":1}]',
        groupFlowCheckId=22,
        groupFlowControlInfo='[{"type":3}]',
        qryPriorityId=203,
    )
    known = pb.OpsTaskInfo(defFlowCheckId=11, groupFlowCheckId=22)
    tasks = bench.heartbeat_v2(opsTaskInfo=known).opsTaskInfo
    assert tasks == pb.OpsTaskInfo(defFlowCheckId=11, groupFlowCheckId=22, qryPriorityId=203)


# -- membership


def test_members_without_heartbeats_are_removed_and_then_their_group() -> None:
    bench = MasterBench(consumer_heartbeat_timeout=30.0)
    bench.register_v2("c1")
    bench.register_v2("c2")
    bench.wait(20)
    assert bench.heartbeat_v2("c1").errCode == 200
    bench.wait(20)
    assert bench.meta("c1").errCode == 200  # counts as a heartbeat
    assert bench.heartbeat_v2("c2").errMsg == "Not found client c2 in group(g)"
    bench.wait(20)
    assert bench.heartbeat_v2("c1").errCode == 200
    bench.wait(31)
    assert bench.heartbeat_v2("c1").errMsg == "Not found groupName g in holder!"


def test_the_server_cannot_remove_a_name_with_an_at_sign() -> None:
    bench = MasterBench()
    bench.register_v2("c@1")
    assert bench.close("c@1").errCode == 200
    text = "Update consumer node exception:Invalid node id:c@1@g, you have to append node first!"
    assert bench.heartbeat_v2("c@1").errMsg == text


@pytest.mark.parametrize(("client", "group"), [("c", "@"), ("@", "@"), ("c", "@@@"), ("@@", "@@")])
def test_a_close_with_a_key_that_the_server_cannot_split_fails(client: str, group: str) -> None:
    bench = MasterBench()
    failure = bench.failure(pb.CloseRequestC2M(clientId=client, groupName=group))
    assert failure.exception_name == "java.lang.reflect.InvocationTargetException"
    assert not failure.fatal


def test_a_close_of_a_client_with_an_empty_name_part_succeeds() -> None:
    assert MasterBench().close("@@").errCode == 200


@pytest.mark.parametrize("odd", ["@", "@@@"])
def test_an_expired_key_that_cannot_be_split_does_not_keep_the_others(odd: str) -> None:
    bench = MasterBench()
    for client, group in (("c1", "g"), ("c2", odd), ("c3", "h")):
        assert bench.register_v2(client, groupName=group).errCode == 200
    bench.wait(31)
    codes = [bench.heartbeat_v2(client, groupName=group).errMsg for client, group in (("c1", "g"), ("c3", "h"))]
    assert codes == ["Not found groupName g in holder!", "Not found groupName h in holder!"]
    assert bench.heartbeat_v2("c2", groupName=odd).errMsg == (  # its group stays forever
        f"Update consumer node exception:Invalid node id:c2@{odd}, you have to append node first!"
    )


def test_a_master_that_takes_over_knows_no_group_and_at_first_no_broker() -> None:
    bench = MasterBench()
    bench.register_v2()
    bench.master.forget(lists_fill_after=3)
    assert bench.heartbeat_v2().errMsg == "Not found groupName g in holder!"
    assert not bench.register_v2().brokerConfigList
    reply = bench.meta()
    assert not reply.brokerConfigList
    assert list(reply.topicMetaInfoList) == ["a#1:1:3:0,2:2:2:0"]
    bench.wait(3.5)
    later = bench.meta(topicMetaInfoId=reply.topicMetaInfoId, brokerConfigId=reply.brokerConfigId)
    assert list(later.brokerConfigList) == BROKERS
    assert list(later.topicMetaInfoList) == ["a#1:1:3:1,2:2:2:1"]


def test_broker_lists_over_tls() -> None:
    bench = MasterBench()
    assert list(bench.register_v2(tls=True).brokerConfigList) == ["1:10.0.0.1: ", "2:10.0.0.2:8201"]
    assert list(bench.meta(brokerConfigId=0).brokerConfigList) == BROKERS


# -- standby


@pytest.mark.parametrize("release", list(Release))
def test_a_standby_refuses_after_the_checks_of_its_release(release: Release) -> None:
    bench = MasterBench(release)
    bench.master.access.standby = True
    assert bench.register_v2(groupName="").errCode == 400
    assert bench.failure(register_v2()).simple_name == "StandbyException"
    for request in (register_v2(topicList=[]), register(topicList=[])):  # 1.2 checks the topics first
        if release is Release.V1_2:
            assert bench.call(request).errCode == 400
        else:
            assert bench.failure(request).simple_name == "StandbyException"
    others = [
        pb.HeartRequestC2MV2(clientId="c", groupName="g"),
        pb.GetPartMetaRequestC2M(clientId="c", groupName="g", brokerConfigId=0, topicMetaInfoId=0),
        pb.HeartRequestC2M(clientId="c", groupName="g", reportSubscribeInfo=False),
        pb.CloseRequestC2M(clientId="c", groupName="g"),
        register(),
    ]
    for message in others:
        assert bench.failure(message).simple_name == "StandbyException"


def test_brokers_may_be_added_while_clients_are_registered() -> None:
    bench = MasterBench()
    bench.register_v2()
    known = bench.meta()
    bench.catalog.brokers[3] = BrokerEntry(3, "10.0.0.3", 8123)
    bench.catalog.topics["a"][3] = TopicLayout(1, 1)
    bench.wait(1)
    reply = bench.meta(brokerConfigId=known.brokerConfigId, topicMetaInfoId=known.topicMetaInfoId)
    assert "3:10.0.0.3: " in reply.brokerConfigList
    assert "3:1:1:1" in reply.topicMetaInfoList[0]
