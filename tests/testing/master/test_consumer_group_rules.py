# SPDX-License-Identifier: Apache-2.0
"""Checks of members that differ between releases or need an administrator. For others see tests/differential."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.master.calls import MasterBench, register, register_v2
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.config import Release

# -- settings that members must share


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
    rules.authorised_topics.add("a")
    rules.may_consume["a", "other"] = True
    text = "[unAuthorized Group] c1's consumerGroup not authorized by administrator, unAuthorizedTopics"
    reply = bench.call(message())
    assert (reply.errCode, reply.errMsg) == (450, f"{text}{space}: [a]")
    rules.may_consume["a", "g"] = True
    assert bench.call(message()).errCode == 200
    rules.may_consume["a", "g"] = False
    assert bench.call(message("c2")).errCode == 450
    rules.authorised_topics.clear()
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
    bench.catalog.rules.authorised_topics.add("a")
    bench.catalog.rules.may_consume["a", "g"] = True
    reply = bench.register_v2(topicCondition=conditions)
    if text is None:
        assert reply.errCode == 200
    else:
        assert (reply.errCode, reply.errMsg) == (455, f"[Restricted Group] c1 : {text}")
