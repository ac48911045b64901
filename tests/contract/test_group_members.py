# SPDX-License-Identifier: Apache-2.0
"""A group has one set of topics and filters: a member that has others waits until those before it have left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from tests import messages
from tests.clusters import Cluster
from tubemq_spark.client.clock import SystemClock
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.errors import ConfigError


@dataclass(frozen=True)
class CallingClock(SystemClock):
    """Calls `on_sleep` at the begin of each pause."""

    on_sleep: Callable[[], None]

    def sleep(self, seconds: float) -> None:
        self.on_sleep()
        super().sleep(seconds)


@pytest.mark.parametrize("differs", ["topics", "filters"])
def test_a_member_waits_until_members_with_others_have_left(cluster: Cluster, group: str, differs: str) -> None:
    topic, other = cluster.new_topic("one"), cluster.new_topic("one")
    settings = messages.settings(cluster)
    first = ConsumerSession(settings, group, [topic], {topic: ("x",)})
    waiting = replace(settings, clock=CallingClock(first.close))
    if differs == "topics":
        second = ConsumerSession(waiting, group, [topic, other], {topic: ("x",)})
    else:
        second = ConsumerSession(waiting, group, [topic], {topic: ("y",)})
    with closing(first), closing(second):
        first.register()
        with pytest.raises(ConfigError, match=f"failed with 42[56] .*with other {differs}: stop those consumers"):
            second.register()
        assert len(cluster.members(group).clients) == 1
        second.register(wait=30.0)
        assert cluster.members(group).clients == [second.client_id]
        assert second.missing_topics == []
