# SPDX-License-Identifier: Apache-2.0
"""Rebalances by the master, as its consumers see them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testing.master.calls import Consumer, MasterBench, register
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.catalog import BrokerEntry, FlowRule, TopicLayout
from tubemq_spark.testing.config import Release

ALL_OF_A = {"1:a:0", "1:a:1", "1:a:2", "2:a:0", "2:a:1", "2:a:10000", "2:a:10001"}


def run(bench: MasterBench, consumers: list[Consumer], rounds: int = 40) -> None:
    for _ in range(rounds):
        for consumer in consumers:
            consumer.beat()
        bench.wait(0.5)
        together = [(consumer.group, key) for consumer in consumers for key in consumer.keys]
        assert len(together) == len(set(together)), "two members hold one partition"


def test_a_single_member_gets_all_partitions_in_one_order() -> None:
    bench = MasterBench(consumer_balance_period=5.0)
    consumer = Consumer(bench, "c1")
    first = consumer.beat()
    assert not first.HasField("event")
    assert first.notAllocated
    bench.wait(10)
    told = consumer.beat()
    assert told.event.opType == 10
    assert told.event.rebalanceId > 0
    assert not told.event.HasField("status")
    assert told.notAllocated
    assert consumer.keys == ALL_OF_A
    done = consumer.beat()
    assert not done.HasField("event")
    assert not done.notAllocated
    run(bench, [consumer])
    assert consumer.op_types == [10]


def test_texts_of_an_order() -> None:
    bench = MasterBench()
    plain, tls = Consumer(bench, "c1"), Consumer(bench, "c2", "g2", tls=True)
    run(bench, [plain, tls], 4)
    assert "c1@g#1:10.0.0.1:8123#a:0" in plain.held
    assert "c1@g#2:10.0.0.2:8200#a:10001" in plain.held
    assert "c2@g2#1:10.0.0.1:8124#a:0" in tls.held
    assert "c2@g2#2:10.0.0.2:8201#a:10001" in tls.held


def test_an_order_is_sent_once() -> None:
    bench = MasterBench()
    bench.register()
    bench.heartbeat()
    bench.wait(2)
    assert bench.heartbeat().HasField("event")
    assert not bench.heartbeat().HasField("event")


def test_a_new_member_gets_its_order_after_the_others_have_disconnected() -> None:
    bench = MasterBench()
    one = Consumer(bench, "c1")
    run(bench, [one])
    two = Consumer(bench, "c2")
    two.beat()
    bench.wait(1)
    assert not two.beat().HasField("event")
    assert one.beat().event.opType == 20
    assert len(one.keys) == 4
    assert not two.beat().HasField("event")
    one.beat()
    assert two.beat().event.opType == 10
    assert len(two.keys) == 3
    run(bench, [one, two])
    assert (one.op_types, two.op_types) == ([10, 20], [10])


def test_a_report_with_an_id_counts_with_any_status() -> None:
    bench = MasterBench()
    bench.register()
    bench.heartbeat()
    bench.wait(1)
    assert bench.heartbeat().HasField("event")
    failed = pb.EventProto(rebalanceId=99, opType=5, status=-2)
    assert not bench.heartbeat(event=failed).notAllocated
    bench.wait(1)
    assert bench.heartbeat().HasField("event")  # it reported that it holds nothing, so it gets an order again


@pytest.mark.parametrize("rebalance_id", [0, -2])
def test_a_report_without_an_id_does_not_count(rebalance_id: int) -> None:
    bench = MasterBench()
    bench.register()
    assert bench.heartbeat(event=pb.EventProto(rebalanceId=rebalance_id)).notAllocated


def test_an_unreported_order_is_dropped_after_ten_rebalances() -> None:
    bench = MasterBench(consumer_heartbeat_timeout=100.0)
    bench.register()
    bench.heartbeat()
    bench.wait(1)
    first = bench.heartbeat().event.rebalanceId
    bench.wait(10)
    assert not bench.heartbeat().HasField("event")
    bench.wait(2)
    assert bench.heartbeat().event.rebalanceId > first


def test_new_partitions_and_lost_brokers() -> None:
    bench = MasterBench()
    one, two = Consumer(bench, "c1"), Consumer(bench, "c2")
    run(bench, [one, two])
    bench.catalog.brokers[3] = BrokerEntry(3, "10.0.0.3", 8123)
    bench.catalog.topics["a"][3] = TopicLayout(1, 1)
    run(bench, [one, two])
    assert one.keys | two.keys == {*ALL_OF_A, "3:a:0"}
    assert len(one.keys) == len(two.keys) == 4
    bench.catalog.brokers[2].online = False
    run(bench, [one, two])
    assert one.keys | two.keys == {"1:a:0", "1:a:1", "1:a:2", "3:a:0"}
    assert len(one.keys) == len(two.keys) == 2


def test_closed_topics_and_blacklisted_groups_are_not_assigned() -> None:
    bench = MasterBench()
    bench.catalog.topics["a"][1].accept_subscribe = False
    bench.catalog.brokers[2].accept_subscribe = False
    bench.catalog.rules.may_consume["a", "g2"] = False
    one, two = Consumer(bench, "c1"), Consumer(bench, "c2", "g2")
    run(bench, [one, two])
    bench.catalog.topics["a"][1].accept_subscribe = True
    run(bench, [one, two])
    assert one.keys == {"1:a:0", "1:a:1", "1:a:2"}
    assert two.keys == set()
    bench.catalog.rules.may_consume["a", "g"] = False
    run(bench, [one, two])
    assert one.keys == set()


def test_a_member_that_registers_again_keeps_the_partitions_it_reports() -> None:
    bench = MasterBench()
    one = Consumer(bench, "c1")
    run(bench, [one])
    bench.master.forget()
    assert one.beat().errCode == 411
    assert not bench.register("c1", subscribeInfo=sorted(one.held)).notAllocated
    run(bench, [one])
    assert one.op_types == [10]


def test_the_master_believes_a_report_of_other_partitions() -> None:
    bench = MasterBench()
    one = Consumer(bench, "c1")
    run(bench, [one])
    one.held = {text for text in one.held if "#2:" not in text}
    run(bench, [one])
    assert one.keys == ALL_OF_A
    assert one.op_types == [10, 10]


def test_the_first_rebalance_assigns_ranges() -> None:
    bench = MasterBench(first_balance_delay=3.0, consumer_balance_period=1.0)
    one, two = Consumer(bench, "c1"), Consumer(bench, "c2")
    bench.wait(3.5)
    assert not one.beat().HasField("event")
    bench.wait(0.5)
    one.beat()
    two.beat()
    assert one.keys == {"1:a:0", "1:a:1", "1:a:2", "2:a:0"}
    assert two.keys == {"2:a:1", "2:a:10000", "2:a:10001"}


def test_a_restarted_master_assigns_ranges_again_after_its_delay() -> None:
    bench = MasterBench(first_balance_delay=3.0)
    bench.wait(10)
    bench.master.restart()
    names = ("c1", "c2", "c3")
    assert bench.heartbeat("c1").errCode == 411
    consumers = [Consumer(bench, name) for name in names]
    for consumer in consumers:
        consumer.beat()
    bench.wait(3.5)
    assert not any(consumer.beat().HasField("event") for consumer in consumers)
    bench.wait(0.5)
    told = [consumer.beat().event for consumer in consumers]
    assert [sorted(consumer.keys) for consumer in consumers] == [
        ["1:a:0", "1:a:1", "1:a:2"],
        ["2:a:0", "2:a:1"],
        ["2:a:10000", "2:a:10001"],
    ]
    assert {order.rebalanceId for order in told} == {1}


def test_a_master_that_takes_over_continues_rebalancing_at_random() -> None:
    bench = MasterBench(first_balance_delay=3.0)
    bench.wait(10)
    bench.master.forget()
    consumers = [Consumer(bench, name) for name in ("c1", "c2", "c3")]
    for consumer in consumers:
        consumer.beat()
    bench.wait(1)
    told = [consumer.beat() for consumer in consumers]
    assert any(reply.HasField("event") for reply in told)
    assert sorted(consumers[0].keys) != ["1:a:0", "1:a:1", "1:a:2"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "vanish", "lose", "find", "wait"]), st.integers(0, 7))))
def test_random_changes_end_with_every_partition_held_once_and_evenly(script: list[tuple[str, int]]) -> None:
    bench = MasterBench(consumer_heartbeat_timeout=3.0)
    consumers = {"c": Consumer(bench, "c")}
    for what, number in script:
        name = f"c{number}"
        if what == "join" and name not in consumers:
            consumers[name] = Consumer(bench, name)
        elif what == "leave" and consumers.pop(name, None) is not None:
            bench.close(name)
        elif what == "vanish":
            consumers.pop(name, None)
        elif what in ("lose", "find"):
            bench.catalog.brokers[2].online = what == "find"
        else:
            run(bench, list(consumers.values()), number % 3)
    bench.catalog.brokers[2].online = True
    run(bench, list(consumers.values()), 60)
    counts = [len(consumer.keys) for consumer in consumers.values()]
    assert set().union(*(consumer.keys for consumer in consumers.values())) == ALL_OF_A
    assert max(counts) - min(counts) <= 1


# -- bound consumption


def test_bound_members_wait_for_each_other_and_get_the_partitions_they_named() -> None:
    bench = MasterBench()
    fields: dict[str, Any] = {"requireBound": True, "sessionKey": "k", "totalCount": 2}
    one = Consumer(bench, "c1", requiredPartition="1:a:0=28,1:a:1=0", **fields)
    run(bench, [one])
    assert one.keys == set()
    two = Consumer(bench, "c2", requiredPartition="1:a:1=56,2:a:0=0", **fields)
    run(bench, [one, two], 3)
    assert (one.keys, two.keys) == ({"1:a:0"}, {"1:a:1", "2:a:0"})  # the greater of two offsets wins
    assert not one.beat().notAllocated
    run(bench, [one, two])
    assert one.keys | two.keys == ALL_OF_A


def test_of_two_offsets_the_smaller_may_win() -> None:
    bench = MasterBench()
    fields: dict[str, Any] = {"requireBound": True, "sessionKey": "k", "totalCount": 2, "selectBig": False}
    one = Consumer(bench, "c1", requiredPartition="1:a:0=28", **fields)
    two = Consumer(bench, "c2", requiredPartition="1:a:0=56", **fields)
    run(bench, [one, two], 3)
    assert (one.keys, two.keys) == ({"1:a:0"}, set())


def test_bound_members_without_offsets_get_partitions_as_others() -> None:
    bench = MasterBench()
    one = Consumer(bench, "c1", requireBound=True, sessionKey="k", totalCount=2)
    run(bench, [one])
    assert one.keys == ALL_OF_A


# -- flow rules and presence of fields


def test_flow_rules_are_sent_only_to_clients_that_name_a_rule_id() -> None:
    bench = MasterBench()
    bench.catalog.default_flow = FlowRule(11, "[1]")
    bench.catalog.group_flows["g"] = FlowRule(22, "[2]", 203)
    silent = [bench.register(), bench.heartbeat()]
    for reply in silent:
        assert {field.name for field, _ in reply.ListFields()} == {
            "success",
            "errCode",
            "errMsg",
            "authorizedInfo",
            "notAllocated",
        }
    told = bench.register(defFlowCheckId=-2)
    assert (told.defFlowCheckId, told.defFlowControlInfo) == (11, "[1]")
    assert (told.groupFlowCheckId, told.groupFlowControlInfo, told.qryPriorityId) == (22, "[2]", 203)
    assert told.ssdStoreId == -2
    known = bench.heartbeat(defFlowCheckId=11, groupFlowCheckId=22)
    assert (known.defFlowCheckId, known.defFlowControlInfo) == (11, " ")
    assert (known.groupFlowCheckId, known.groupFlowControlInfo, known.qryPriorityId) == (22, " ", 203)
    none = bench.call(register("c9", groupName="g9", groupFlowCheckId=-2))
    assert (none.groupFlowCheckId, none.groupFlowControlInfo, none.qryPriorityId) == (-2, " ", -2)


@pytest.mark.parametrize(
    ("fields", "not_allocated"),
    [({}, True), ({"notAllocated": True}, True), ({"notAllocated": False}, False)],
)
@pytest.mark.parametrize("release", list(Release))
def test_a_member_may_report_that_its_group_is_allocated(
    fields: dict[str, Any], not_allocated: bool, release: Release
) -> None:
    assert MasterBench(release).register(**fields).notAllocated is not_allocated
