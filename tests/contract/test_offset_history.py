# SPDX-License-Identifier: Apache-2.0
"""Messages without times: a position by time is what the broker has recorded of its groups at that time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timezone
from zoneinfo import ZoneInfo

import pytest

from tests import messages, reading
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.waiting import wait_until
from tubemq_spark.client.consumer.offset_history import OffsetHistory
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.consumer.working_group import look_group
from tubemq_spark.errors import TimestampMissingError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import OFFSET_HISTORY
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions

_SECOND, _MINUTE = 1_000_000, 60_000_000  # microseconds


def wait_until_recorded(cluster: Cluster, visitor: Visitor) -> int:
    """Return a moment behind a new record of all groups. On the embedded server, let the clock skip."""
    history = Partition(1, OFFSET_HISTORY, 0)

    def end() -> int:
        return Prober(visitor).extents([history])[history].end

    def is_recorded() -> bool:
        if isinstance(cluster, EmbeddedCluster):
            cluster.tubemq.clock.advance(20.0)
        return end() > before

    before = end()
    wait_until(is_recorded, "a record of the broker")
    seen = now(cluster)
    wait_until(lambda: now(cluster) > seen + _SECOND, "the end of the second that the record names")
    return now(cluster)


def now(cluster: Cluster) -> int:
    if isinstance(cluster, EmbeddedCluster):
        return cluster.tubemq.clock.wall_ms() * 1000
    return time.time_ns() // 1000


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY])
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose clock a test may advance; a real one records twice a minute."""
    with running(request.param, brokers=1) as started:
        yield started


def test_a_time_is_found_in_the_records_of_the_broker(
    own_cluster: Cluster, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, topic = own_cluster, own_cluster.new_topic("one")
    here = Partition(1, topic, 0)
    messages.send(cluster, messages.numbered([here], 10))
    with (
        reading.holding(messages.settings(cluster), group, topic) as claims,
        closing(reading.visitor(cluster, look_group(group))) as visitor,
    ):
        claims.hold([here])
        first = wait_until_recorded(cluster, visitor)
        messages.send(cluster, messages.numbered([here], 7))
        second = wait_until_recorded(cluster, visitor)
        messages.send(cluster, messages.numbered([here], 3))
        extents = Prober(visitor).extents([here])

        def found(moment: int, zone: str = "UTC", *, is_end: bool = False, skips_untimed: bool = False) -> int:
            caplog.clear()
            positions = find_positions(
                visitor, {here: moment}, extents, ZoneInfo(zone), is_end=is_end, skips_untimed=skips_untimed
            )
            return positions[here] // UNIT

        assert (found(first), found(second)) == (10, 17)
        assert "[times-from-history]" in caplog.text
        records = OffsetHistory(visitor, timezone.utc)._records(1, first)
        recorded = max(one.moment for one in records if (one.topic, one.end) == (topic, 10 * UNIT))
        assert found(recorded + _SECOND) == 10
        assert found(recorded + _SECOND // 2, skips_untimed=True) != 10  # the record may be later within its second
        assert found(first, is_end=True) in (17, 20)
        assert found(second + 10 * _MINUTE, is_end=True) == 20
        with pytest.raises(TimestampMissingError):  # nothing is known of the time
            found(first - 30 * _MINUTE)
        has_zone = all(one.moment % _SECOND == 0 for one in records)  # release 1.2 writes whole seconds of its zone
        for zone in ("Asia/Tokyo", "America/Lima"):
            if has_zone:  # the broker is elsewhere
                with pytest.raises(TimestampMissingError):
                    found(first, zone)
            else:
                assert found(first, zone) == 10
            assert ("[records-not-of-today]" in caplog.text) is has_zone
        options = {"tubemq.master": cluster.master, "tubemq.group": group, "subscribe": topic}
        options |= {"startingtimestamp": str(second // 1000), "tubemq.rpc.framing": cluster.framing}
        (part,) = plan_batch(SourceOptions.read(options, streaming=False))
        ranges = {wanted.partition: (wanted.start // UNIT, wanted.end // UNIT) for wanted, _ in part.ranges}
        assert ranges == {here: (17, 20)}


def test_a_topic_that_was_created_again_is_read_from_its_beginning(group: str) -> None:
    with running("embedded", brokers=1) as cluster:
        assert isinstance(cluster, EmbeddedCluster)
        topic, tubemq = cluster.new_topic("one"), cluster.tubemq
        here = Partition(1, topic, 0)

        def send_and_record(count: int) -> int:
            messages.send(cluster, messages.numbered([here], count))
            with (
                reading.holding(messages.settings(cluster), group, topic) as claims,
                closing(reading.visitor(cluster, look_group(group))) as visitor,
            ):
                claims.hold([here])
                return wait_until_recorded(cluster, visitor)

        moment = send_and_record(10)
        tubemq.delete_topic(topic)
        tubemq.create_topic(topic, 1)
        send_and_record(4)
        messages.send(cluster, messages.numbered([here], 8))  # it is longer now than the old one
        with closing(reading.visitor(cluster, look_group(group))) as visitor:
            positions = find_positions(visitor, {here: moment}, Prober(visitor).extents([here]), timezone.utc)
        assert positions == {here: 0}
