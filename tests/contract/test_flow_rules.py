# SPDX-License-Identifier: Apache-2.0
"""The rate limits that an administrator sets, and how the sessions of a group learn them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import messages
from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tests.clusters.real import RealCluster
from tests.waiting import wait_until
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.protocol.flow_rules import DataLimit, EmptyWait, FetchPause, Limits

ONE = json.dumps(
    [
        {"type": 0, "rule": [{"start": "00:00", "end": "24:00", "dltInM": 21, "limitInM": 6, "freqInMs": 200}]},
        {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
    ]
)
OTHER = json.dumps([{"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]}])
LIMITS = {
    ONE: Limits(data=(DataLimit(0, 2400, 21, 6 << 20, 200),), empty=(EmptyWait(3, 300),)),
    OTHER: Limits(pause=FetchPause(0, 100, 400)),
}


def set_rule(cluster: Cluster, text: str, group: str | None) -> None:
    if isinstance(cluster, EmbeddedCluster):
        cluster.tubemq.set_flow_rule(text, group)
        return
    assert isinstance(cluster, RealCluster)
    params = {"flowCtrlInfo": text, "statusId": 1, "qryPriorityId": 301}
    if group is None:
        cluster.admin(method="admin_set_def_flow_control_rule", **params)
    else:
        cluster.admin(method="admin_set_group_flow_control_rule", groupName=group, **params)


def remove_rule(cluster: Cluster, group: str | None) -> None:
    if isinstance(cluster, EmbeddedCluster):
        catalog = cluster.tubemq._catalog
        cluster.tubemq._on_thread(
            lambda: setattr(catalog, "default_flow", None) if group is None else catalog.group_flows.pop(group)
        )
        return
    assert isinstance(cluster, RealCluster)
    if group is None:
        cluster.admin(method="admin_rmv_def_flow_control_rule")
    else:
        cluster.admin(method="admin_rmv_group_flow_control_rule", groupName=group)


@pytest.fixture
def session(cluster: Cluster, group: str, use_timings: UseTimings) -> Iterator[ConsumerSession]:
    """A session that is not registered yet, and sends heartbeats all the time once it is."""
    use_timings(heartbeat_period=0.05)
    made = ConsumerSession(messages.settings(cluster), group, [cluster.new_topic("one")])
    yield made
    made.close()


def test_a_session_follows_changes_of_its_groups_rule(cluster: Cluster, group: str, session: ConsumerSession) -> None:
    set_rule(cluster, ONE, group)
    session.register()
    rules = session.flow_rules
    assert (rules.group.limits, rules.group.problem) == (LIMITS[ONE], "")
    assert rules.qry_priority_id == 301
    assert not rules.default.is_known

    set_rule(cluster, OTHER, group)
    wait_until(lambda: session.flow_rules.group.limits == LIMITS[OTHER])
    assert session.flow_rules.group.rule_id != rules.group.rule_id

    remove_rule(cluster, group)
    wait_until(lambda: not session.flow_rules.group.is_known)


def test_a_registered_session_follows_changes_of_the_default_rule(cluster: Cluster, session: ConsumerSession) -> None:
    session.register()
    assert not session.flow_rules.default.is_known
    set_rule(cluster, OTHER, None)
    try:
        wait_until(lambda: session.flow_rules.default.is_known)
        rules = session.flow_rules
        assert (rules.default.limits, rules.default.problem) == (LIMITS[OTHER], "")
        assert not rules.group.is_known
    finally:
        remove_rule(cluster, None)
    wait_until(lambda: not session.flow_rules.default.is_known)
