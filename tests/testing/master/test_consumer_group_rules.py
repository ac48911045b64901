# SPDX-License-Identifier: Apache-2.0
"""A master's checks of a group's members: equal settings, valid requests, and authorisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.master.calls import MasterBench, register, register_v2
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.config import Release


def present(reply: Any) -> set[str]:
    return {field.name for field, _ in reply.ListFields()}


def bound(client_id: str = "c1", **fields: Any) -> pb.RegisterRequestC2M:
    return register(client_id, **{"requireBound": True, "sessionKey": "k", "totalCount": 2, **fields})


# -- settings that members must share

UNBOUND, CLIENT, BOUND = "unbound", "client-rebalance", "bound"
NOT_OURS = "is inconsistency with other consumers in the group"
FILTER = "[Inconsistency subscribe] c2 subscribe with filter condition"


@pytest.mark.parametrize(
    ("first", "second", "code", "text"),
    [
        (register_v2(), register("c2"), 424, ("unbound", "client-rebalance")),
        (register(), register_v2("c2"), 424, ("client-rebalance", "unbound")),
        (register(), bound("c2"), 424, ("bound", "unbound")),
        (
            register_v2(),
            register_v2("c2", topicList=["b"]),
            425,
            f"subscribed topics [b] {NOT_OURS}, existedTopics: [a]",
        ),
        (
            register(topicList=["b", "a"]),
            register("c2", topicList=["a"]),
            425,
            f"subscribed topics [a] {NOT_OURS}, existedTopics: [a, b]",
        ),
        (
            register_v2(),
            register_v2("c2", topicCondition=["a#y,x"]),
            426,
            "subscribe with filter condition {a=[x, y]} " + NOT_OURS + ": topic without conditions",
        ),
        (
            register_v2(topicCondition=["a#y,x"]),
            register_v2("c2"),
            426,
            f"subscribe without filter condition  {NOT_OURS}, existed topic conditions is {{a=[x, y]}}",
        ),
        (
            register_v2(topicCondition=["a#y,x"]),
            register_v2("c2", topicCondition=["a#x"]),
            426,
            f"subscribe with filter condition {{a=[x]}} {NOT_OURS}, existed topic conditions is {{a=[x, y]}}",
        ),
        (bound(), bound("c2", sessionKey="l"), 427, f"'s sessionKey {NOT_OURS}, required is k, request is l"),
        (bound(), bound("c2", selectBig=False), 428, f"'s isSelectBig {NOT_OURS}, required is true, request is false"),
        (bound(), bound("c2", totalCount=3), 429, f"'s sourceCount {NOT_OURS}, required is 2, request is 3"),
        (
            register_v2(sourceCount=2),
            register_v2("c2", sourceCount=3, nodeId=1),
            429,
            f"'s sourceCount {NOT_OURS}, required is 2, request is 3",
        ),
        (
            register_v2(sourceCount=2),
            register_v2("c2", sourceCount=-1),
            429,
            f"'s sourceCount {NOT_OURS}, required is 2, request is -1",
        ),
    ],
)
@pytest.mark.parametrize("release", list(Release))
def test_members_must_agree(first: Any, second: Any, code: int, text: str | tuple[str, str], release: Release) -> None:
    bench = MasterBench(release)
    assert bench.call(first).errCode == 200
    reply = bench.call(second)
    if isinstance(text, tuple):
        asked, there = text
        text = f"using {asked} subscribe is inconsistency with other consumers using {there} subscribe in the group"
    between = "" if text.startswith("'s") else " "
    assert (reply.errCode, reply.errMsg) == (code, f"[Inconsistency subscribe] c2{between}{text}")
    assert present(reply) <= {"success", "errCode", "errMsg"}
    bench.close("c1")
    assert bench.call(second).errCode == 200


@pytest.mark.parametrize(
    ("release", "text"),
    [
        (Release.V1_2, "'s nodeId value(0) is occupied by c1 in the group!"),
        (Release.V2_5, "'s nodeId value(0) is occupied by c1's nodeId value(0) in the group!"),
    ],
)
def test_node_ids_are_unique_where_members_are_counted(release: Release, text: str) -> None:
    bench = MasterBench(release)
    bench.register_v2("c1", sourceCount=2)
    reply = bench.register_v2("c2", sourceCount=2)
    assert (reply.errCode, reply.errMsg) == (430, f"[Inconsistency subscribe] c2{text}")
    assert bench.register_v2("c1", sourceCount=2, nodeId=1).errCode == 200
    assert bench.register_v2("c2", sourceCount=2).errCode == 200


@pytest.mark.parametrize(
    "second",
    [
        register_v2("c2", topicList=["b", "a", "a"], topicCondition=["b# x , y"]),
        register_v2("c2", topicList=["a", "b"], topicCondition=["b#y,x,x"], sourceCount=5, nodeId=3),
    ],
)
def test_members_that_agree(second: pb.RegisterRequestC2MV2) -> None:
    bench = MasterBench()
    assert bench.register_v2(topicList=["a", "b"], topicCondition=["b#x,y"]).errCode == 200
    assert bench.call(second).errCode == 200


@pytest.mark.parametrize("message", [register_v2, register])
@pytest.mark.parametrize("topics", [["x"], ["a", "x"]])
def test_topics_that_are_not_deployed(message: Callable[..., Any], topics: list[str]) -> None:
    new = MasterBench()
    reply = new.call(message(topicList=topics))
    assert (reply.errCode, reply.errMsg) == (431, "Requested topic [[x]] not deployed!")
    assert new.call(message(topicList=["a"])).errCode == 200  # the failed register left no group
    old = MasterBench(Release.V1_2)
    assert old.call(message(topicList=topics)).errCode == 200
    assert old.call(message("c2", topicList=["a"])).errCode == 425


def test_a_deployed_topic_needs_no_running_broker() -> None:
    bench = MasterBench()
    bench.catalog.brokers[1].online = False
    assert bench.register_v2(topicList=["b"]).errCode == 200


# -- bad requests

TOO_MANY = [f"t{number}" for number in range(1025)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"client_id": " "}, "Request miss necessary clientId data!"),
        ({"hostName": ""}, "Request miss necessary hostName data!"),
        ({"groupName": ""}, "Request miss necessary groupName data!"),
        ({"groupName": "g" * 1025}, "groupName's length over max value, {} max length is 1024"),
        ({"hostName": "", "groupName": ""}, "Request miss necessary hostName data!"),
        ({"topicList": []}, "Request miss necessary subscribed topicList data!"),
        ({"topicList": [" ", ""]}, "Request subscribed topicList data must not Blank!"),
        ({"topicList": TOO_MANY}, "Subscribed topicList size over max value, required max count is 1024"),
        ({"topicCondition": ["b#x"]}, "Filter's Topic not subscribed :[b]"),
    ],
)
@pytest.mark.parametrize("message", [register_v2, register])
@pytest.mark.parametrize("release", list(Release))
def test_bad_registers(fields: dict[str, Any], text: str, message: Callable[..., Any], release: Release) -> None:
    reply = MasterBench(release).call(message(**fields))
    expected = text.format("required" if release is Release.V1_2 else "allowed")
    assert (reply.errCode, reply.errMsg) == (400, expected)


@pytest.mark.parametrize("node_id", [-1, 2])
def test_node_ids_are_below_the_count(node_id: int) -> None:
    reply = MasterBench().register_v2(sourceCount=2, nodeId=node_id)
    assert (reply.errCode, reply.errMsg) == (400, "Request nodeId value must be between in [0, sourceCount-1]!")


@pytest.mark.parametrize("conditions", [["a"], ["a#"], ["#"], ["a", "b#x"]])
@pytest.mark.parametrize("message", [register_v2, register])
def test_filters_of_a_wrong_shape(conditions: list[str], message: Callable[..., Any]) -> None:
    assert MasterBench().failure(message(topicCondition=conditions)).simple_name == "InvocationTargetException"


@pytest.mark.parametrize("conditions", [[""], [" "], [" #x"], ["a# "]])
def test_blank_filters_are_none(conditions: list[str]) -> None:
    bench = MasterBench()
    assert bench.register_v2(topicCondition=conditions).errCode == 200
    assert bench.register_v2("c2").errCode == 200


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sessionKey": " "}, "blank value of sessionKey!"),
        ({"totalCount": 0}, "totalSourceCount must over zero!"),
        (
            {"requiredPartition": "1:a:0"},
            "unformatted Partition-Offset value : 1:a:0 must be aa:bbb:ccc=val1,ddd:eee:ff=val2",
        ),
        (
            {"requiredPartition": "1:a=5"},
            "unformatted Partition-Offset value : 1:a=5 must be aa:bbb:ccc=val1,ddd:eee:ff=val2",
        ),
        (
            {"requiredPartition": "1:b:0=5"},
            "wrong offset reset for unsubscribed topic: reset item is 1:b:0=5, request topicList are [a]",
        ),
        ({"requiredPartition": "1:a:0=x"}, "required long type value of 1:a:0=x' Offset!"),
        ({"requiredPartition": f"1:a:0={1 << 63}"}, f"required long type value of 1:a:0={1 << 63}' Offset!"),
    ],
)
def test_bad_bound_registers(fields: dict[str, Any], text: str) -> None:
    reply = MasterBench().call(bound(**fields))
    assert (reply.errCode, reply.errMsg) == (400, f"[Parameter error] {text}")


@pytest.mark.parametrize("text", ["a", "c@g#1:h:1", "c#1:h:1#a:0", "c@g#1:h#a:0", "c@g#1:h:1#a", "c@g#1:h:x#a:0"])
def test_subscribe_infos_of_a_wrong_shape(text: str) -> None:
    bench = MasterBench()
    assert bench.failure(register(subscribeInfo=[text])).simple_name == "InvocationTargetException"
    bench.register()
    heartbeat = pb.HeartRequestC2M(clientId="c1", groupName="g", subscribeInfo=[text], reportSubscribeInfo=True)
    assert bench.failure(heartbeat).simple_name == "InvocationTargetException"
    assert bench.heartbeat(subscribeInfo=[text]).errCode == 200  # ignored, because nothing is reported


# -- authorisation


@pytest.mark.parametrize("message", [register_v2, register])
@pytest.mark.parametrize(("release", "space"), [(Release.V1_2, " "), (Release.V2_5, "")])
def test_groups_that_are_not_authorised(message: Callable[..., Any], release: Release, space: str) -> None:
    bench = MasterBench(release)
    rules = bench.catalog.rules
    rules.authorized["a"] = {"other"}
    text = "[unAuthorized Group] c1's consumerGroup not authorized by administrator, unAuthorizedTopics"
    reply = bench.call(message())
    assert (reply.errCode, reply.errMsg) == (450, f"{text}{space}: [a]")
    rules.authorized["a"].add("g")
    assert bench.call(message()).errCode == 200
    rules.blacklist.add(("a", "g"))
    assert bench.call(message("c2")).errCode == 450
    del rules.authorized["a"]
    assert bench.call(message("c2")).errCode == 200


@pytest.mark.parametrize(
    ("allowed", "conditions", "text"),
    [
        (frozenset(), ["a#x"], "g not allowed to consume any data of topic a"),
        ({"x"}, [], "g must set the filter conditions of topic a"),
        ({"x"}, ["a#z,x,y"], "unAuthorized filter conditions {a=[y, z]}"),
        ({"x", "y"}, ["a#x"], None),
    ],
)
def test_groups_that_may_read_only_some_types(allowed: set[str], conditions: list[str], text: str | None) -> None:
    bench = MasterBench()
    bench.catalog.rules.filters["a", "g"] = frozenset(allowed)
    assert (
        bench.register_v2("c0", topicCondition=["a#other"]).errCode == 200
    )  # without authorisation, restrictions do not apply
    bench.close("c0")
    bench.catalog.rules.authorized["a"] = {"g"}
    reply = bench.register_v2(topicCondition=conditions)
    if text is None:
        assert reply.errCode == 200
    else:
        assert (reply.errCode, reply.errMsg) == (455, f"[Restricted Group] c1 : {text}")
