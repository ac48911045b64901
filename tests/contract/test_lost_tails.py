# SPDX-License-Identifier: Apache-2.0
"""A broker loses messages that a query has read, and stores others at their positions before the query reads on.

This is the contract on both servers; on a real one it may have to wait until message ids distinguish old messages, so
it is thorough there. `tests/source/test_truncation_check.py` tests the decisions of the check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from tests import messages, reading
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.clusters.unambiguous_ids import wait_until_ids_are_unambiguous
from tests.messages import Sent, bring_into_files
from tests.real.cluster import RealTubeMQ
from tests.real.topics import FLUSH_NEVER, TopicSpec
from tests.without_spark.query import Query
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.errors import DataLossError, PositionMovedError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition

BASE, TAIL = 300, 300  # messages of each topic, flushed and not flushed
REFILLS = {"nothing": 0, "a_part": 100, "as_many": 300, "more": 1000}
LOST = [f"{refill}_{layout}" for refill in REFILLS for layout in LAYOUTS]
PLANNED = [f"planned_{layout}" for layout in LAYOUTS]
CLOCK = "clock"
_LONGEST = 180.0  # seconds that a test takes which relies on ids


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY])
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    layouts = {name: LAYOUTS[cast(Layout, name.rpartition("_")[2])] for name in [*LOST, *PLANNED]}
    topics = {name: replace(layout, settings=FLUSH_NEVER) for name, layout in layouts.items()}  # else no tail is lost
    topics[CLOCK] = TopicSpec(partitions=1)
    with running(request.param, brokers=1, topics=topics) as cluster:
        yield cluster


@pytest.fixture
def telling_ids(broker: Cluster) -> None:
    if isinstance(broker, RealTubeMQ):
        wait_until_ids_are_unambiguous(broker, CLOCK, _LONGEST)


@dataclass
class Story:
    """A query of one topic, and the messages that are stored there and those that were lost."""

    cluster: Cluster
    topic: str
    group: str
    fail: bool = False
    stored: dict[Partition, list[Sent]] = field(default_factory=dict)
    lost: dict[Partition, list[Sent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client: dict[str, Any] = {"framing": Framing(self.cluster.framing), "retry_for": 60.0, "rpc_timeout": 10.0}
        self.query = Query(cast(Any, self.cluster), self.topic, group=self.group, **client)
        self.query._options = replace(self.query._options, loss_policy=LossPolicy(self.fail), claim_timeout=45.0)

    def send(self, count: int) -> None:
        partitions = messages.partitions(self.cluster, self.topic)
        for partition, sent in messages.send(self.cluster, messages.numbered(partitions, count)).items():
            self.stored.setdefault(partition, []).extend(sent)

    def forget_the_tail(self, group: str | None = None) -> None:
        """Count the messages behind the end of their store as lost."""
        for partition, sent in self.stored.items():
            end = reading.group_position(self.cluster, group or self.group, partition).end
            self.lost[partition] = [message for message in sent if message.position >= end]
            self.stored[partition] = [message for message in sent if message.position < end]

    def check(self) -> None:
        for partition, sent in self.stored.items():
            rows = [row.message_id for row in self.query.rows[partition]]
            lost = {message.message_id for message in self.lost.get(partition, [])}
            assert [one for one in rows if one not in lost] == [message.message_id for message in sent], partition
            assert len(rows) == len(set(rows))


def restart(cluster: Cluster) -> None:
    cluster.kill_broker(1)
    cluster.start_broker(1)


@pytest.mark.usefixtures("telling_ids")
def test_tails_that_were_read_are_lost(broker: Cluster, group: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each topic gets another number of new messages. One crash serves all, because a real broker restarts slowly."""
    stories = [Story(broker, topic, group) for topic in LOST]
    for story in stories:
        story.send(BASE)
    bring_into_files(broker, LOST)
    for story in stories:
        story.query.run()
    for story in stories:
        story.send(TAIL)
        story.query.run()
        story.send(TAIL)
        story.query.run()
    restart(broker)
    for story in stories:
        story.forget_the_tail()
        assert any(story.lost.values()), "no tail was lost, so this proves nothing"
        count = REFILLS[story.topic.rpartition("_")[0]]
        if count:
            story.send(count)
    for story in stories:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            story.query.run()
        assert any("the broker lost [" in record.getMessage() for record in caplog.records), story.topic
        story.check()
        story.send(30)
        story.query.run()
        story.check()


@pytest.mark.usefixtures("telling_ids")
@pytest.mark.parametrize("fail", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["go on", "fail"])
def test_tails_that_were_planned_to_be_read_are_lost(broker: Cluster, group: str, fail: bool) -> None:
    stories = [Story(broker, topic, group, fail) for topic in PLANNED]
    for story in stories:
        story.send(BASE)
    bring_into_files(broker, PLANNED)
    for story in stories:
        story.query.run()

    for story in stories:
        story.send(TAIL)

        def lose(story: Story = story) -> None:
            story.query.planned = lambda: None
            restart(broker)
            story.forget_the_tail(f"{group}_spark_look")
            assert any(story.lost.values()), "no tail was lost, so this proves nothing"
            story.send(2 * TAIL)

        story.query.planned = lose
        with pytest.raises(PositionMovedError, match="have other ids than those that stood there"):
            story.query.run()
        if fail:
            with pytest.raises(DataLossError) as lost:
                story.query.run()
            assert lost.value.offered < lost.value.asked
        else:
            story.query.run()
            story.query.run()
            story.check()
