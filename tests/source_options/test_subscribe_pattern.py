# SPDX-License-Identifier: Apache-2.0
"""`subscribePattern` and `tubemq.admin.address`: topics by name, also those that come and go while a query runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, EMBEDDED_PREFIXED, REAL_THOROUGHLY, running
from tests.messages import numbered, send
from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import Stream, StreamRun, bodies, fill, read_batch, stored
from tubemq_spark.cli.topics import configure_topic, is_ready, remove_topic
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.errors import AuthError, ConfigError, DataLossError, TransportError
from tubemq_spark.protocol.metadata import Partition, parse_addresses
from tubemq_spark.testing import EmbeddedTubeMQ, Release, ServerConfig

Options = dict[str, Any]


def by_pattern(tubemq: EmbeddedTubeMQ | Cluster, pattern: str, **given: object) -> Options:
    web = {"tubemq_admin_address": tubemq.web_master}
    return {"subscribePattern": pattern, **web, "metadataIntervalMs": 100, "tubemq_retry_maxElapsedMs": 1000, **given}


def logged(caplog: pytest.LogCaptureFixture, log_id: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"[{log_id}]")]


def came(run: StreamRun, stream: Stream, wanted: list[bytes]) -> bool:
    run.next()
    assert len(stream.rows) <= len(wanted)
    return sorted(bodies(stream.rows)) == sorted(wanted)


@pytest.mark.option("subscribePattern", "tubemq.admin.address")
@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders_.*", ["orders_1", "orders_22"]),
        (r"orders_\d", ["orders_1"]),  # the whole name must match
        ("(?i)ORDERS_1|items", ["orders_1", "items"]),
        (".*", ["orders_1", "orders_22", "items"]),  # without the topic that brokers have for themselves
    ],
)
def test_topics_whose_whole_names_match_are_read(start: Start, pattern: str, topics: list[str]) -> None:
    tubemq = start({"orders_1": 2, "orders_22": 1, "items": 1})
    for topic in tubemq.topics:
        fill(tubemq, topic, 10)
    assert sorted(bodies(read_batch(tubemq, **by_pattern(tubemq, pattern)))) == sorted(stored(tubemq, *topics))
    stream = Stream(tubemq, **by_pattern(tubemq, pattern))
    stream.run()
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, *topics))


def test_filters_of_topics_by_pattern(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """They hold for topics that do not exist yet, with a warning; one that cannot match is refused."""
    tubemq = start({"t1": 1})
    fill(tubemq, "t1", 3, msg_type="a"), fill(tubemq, "t1", 3, msg_type="b")
    filters = {"t1": ["a"], "t2": ["b"]}
    stream = Stream(tubemq, **by_pattern(tubemq, "t.", filters=filters))
    with stream.running() as run:
        wait_until(lambda: came(run, stream, stored(tubemq, "t1")[:3]))
        tubemq.create_topic("t2", 1)
        fill(tubemq, "t2", 3, msg_type="a"), fill(tubemq, "t2", 3, msg_type="b")
        wait_until(lambda: came(run, stream, stored(tubemq, "t1")[:3] + stored(tubemq, "t2")[3:]))
    (warning,) = logged(caplog, "filters-without-topic")
    assert "option 'filters' names t2, and no topic" in warning
    assert read_batch(tubemq, **by_pattern(tubemq, "t.", filters=filters))
    assert read_batch(tubemq, **by_pattern(tubemq, "t.", filters="a"))
    assert len(logged(caplog, "filters-without-topic")) == 1
    with pytest.raises(ConfigError, match="option 'filters' names other, which is not one of the topics to read"):
        stream.run(filters={"other": ["a"]})


def test_a_topic_that_the_pattern_no_longer_matches_is_left_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Also of a batch that an earlier run did not end. The texts name the option."""
    tubemq = start({"t1": 1, "t2": 1})
    stream = Stream(tubemq, **by_pattern(tubemq, "t."))
    stream.run()
    fill(tubemq, "t2", 3)
    with stream.running() as run:
        assert run.find_next()  # and the driver dies
    option = "'subscribePattern' (and|or) 'assign' do not name"
    with pytest.raises(ConfigError, match=option):
        stream.run(subscribePattern="t1")
    stream.run(subscribePattern="t1", failOnDataLoss="false")
    for log_id in ("partition-left-out", "data-loss"):
        assert re.search(option, "".join(logged(caplog, log_id)))


@pytest.mark.parametrize("release", [Release.V1_2, Release.V2_5])
def test_topics_that_the_master_does_not_list_are_logged(
    start: Start, caplog: pytest.LogCaptureFixture, release: Release
) -> None:
    """After a failover, only the HTTP API may know them for a while."""
    tubemq = start({"t1": 1, "t2": 1}, masters=2, config=ServerConfig(release=release))
    tubemq.switch_master(lists_fill_after=60.0)
    assert read_batch(tubemq, **by_pattern(tubemq, "t.")) == []
    (line,) = logged(caplog, "topics-missing")
    assert "lists no topic t1, t2, which group" in line


@pytest.mark.parametrize("trigger", ["processingTime", "availableNow"])
def test_without_a_match_a_stream_waits_and_a_batch_is_empty(
    start: Start, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """Topics that come later are read from their beginning, in the same run and in the next one."""
    tubemq = start({"other": 1})
    assert read_batch(tubemq, **by_pattern(tubemq, "t.")) == []
    stream = Stream(tubemq, **by_pattern(tubemq, "t.", startingOffsets="latest"))
    with stream.running(trigger) as run:
        assert run.next() == []
        assert run.next() is None
        assert len(logged(caplog, "no-topic-matches")) == 2
        if trigger == "processingTime":
            tubemq.create_topic("t1", 2)
            fill(tubemq, "t1", 5)
            wait_until(lambda: came(run, stream, stored(tubemq, "t1")))
            assert tubemq.group_offset("readers", "t1", 1, 0) is not None
    assert not tubemq.claims()


def test_a_first_micro_batch_without_a_match_can_be_repeated_by_another_run(start: Start) -> None:
    tubemq = start({"other": 1})
    stream = Stream(tubemq, **by_pattern(tubemq, "t."))
    with stream.running() as run:
        assert run.find_next()  # and the driver dies
    tubemq.create_topic("t1", 2)
    fill(tubemq, "t1", 5)
    assert stream.run()[0] == []
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t1"))


def test_an_http_api_that_cannot_be_reached_ends_the_start_and_no_running_query(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    tubemq = start({"t1": 1}, masters=2)
    stream = Stream(tubemq, **by_pattern(tubemq, "t."))
    advice = "option 'subscribePattern' needs the masters' HTTP API.*Name the addresses.*'tubemq.admin.address'"
    for run_it in (stream.run, lambda **given: read_batch(tubemq, **by_pattern(tubemq, "t.", **given))):
        with pytest.raises(TransportError, match=advice):
            run_it(tubemq_admin_address="127.0.0.1:1")
    fill(tubemq, "t1", 5)
    with stream.running() as run:
        assert len(run.next() or ()) == 5
        tubemq.create_topic("t2", 1)
        fill(tubemq, "t2", 5)
        admin = run.reader._planner._options.client.admin_addresses  # type: ignore[union-attr]
        assert len(admin) == 2
        for master in tubemq._servers.masters:
            tubemq._on_thread(master.web.close)
        fill(tubemq, "t1", 5)
        wait_until(lambda: (run.next(), logged(caplog, "outage"))[1])
        wait_until(lambda: came(run, stream, stored(tubemq, "t1")))
        for master in tubemq._servers.masters:
            tubemq._on_thread(master.web.open)
        wait_until(lambda: came(run, stream, stored(tubemq, "t1", "t2")))
    assert (len(logged(caplog, "outage")), len(logged(caplog, "outage-over"))) == (1, 1)


def test_a_topic_that_the_group_may_not_read_fails_the_query_and_is_named(start: Start) -> None:
    tubemq = start({"t1": 1, "t2": 1})
    fill(tubemq, "t1", 3), fill(tubemq, "t2", 3)
    tubemq.authorize("t2", "others")
    with pytest.raises(AuthError, match="t2"):
        Stream(tubemq, **by_pattern(tubemq, "t.")).run()
    stream = Stream(tubemq, **by_pattern(tubemq, "t[13]"))
    with stream.running() as run:
        wait_until(lambda: came(run, stream, stored(tubemq, "t1")))
        tubemq.create_topic("t3", 1)
        tubemq.authorize("t3", "others")
        fill(tubemq, "t3", 3)
        with pytest.raises(AuthError, match="t3"):
            wait_until(lambda: run.next() is not None)


# On both servers


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY, EMBEDDED_PREFIXED])
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose brokers a test may reload."""
    with running(request.param, brokers=1, topics={}) as started:
        yield started


class Topics:
    """An administrator, who creates topics, fills and deletes them."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.sent: list[bytes] = []
        self._cluster, self._prefix = cluster, prefix
        self._admin = AdminApi(parse_addresses(cluster.web_master), cluster.admin_token)

    @property
    def pattern(self) -> str:
        return f"{self._prefix}_.*"

    def create(self, name: str, count: int = 10) -> None:
        topic = f"{self._prefix}_{name}"
        configure_topic(self._admin, topic, 2, 1, (), None)
        wait_until(lambda: is_ready(self._admin, topic), f"topic {topic}")
        self.fill(name, count)

    def fill(self, name: str, count: int = 10) -> None:
        places = [Partition(1, f"{self._prefix}_{name}", number) for number in range(2)]
        sent = send(self._cluster, numbered(places, count))
        self.sent += [message.body for messages in sent.values() for message in messages]

    def delete(self, name: str) -> None:
        remove_topic(self._admin, f"{self._prefix}_{name}")


@pytest.fixture
def topics(own_cluster: Cluster, group: str) -> Topics:
    return Topics(own_cluster, group)


def test_a_topic_that_is_created_while_the_query_runs_or_is_down_is_read_from_its_beginning(
    own_cluster: Cluster, topics: Topics, group: str
) -> None:
    topics.create("one")
    stream = Stream(own_cluster, **by_pattern(own_cluster, topics.pattern, tubemq_group=group))
    with stream.running() as run:
        wait_until(lambda: came(run, stream, topics.sent))
        topics.create("two")
        wait_until(lambda: came(run, stream, topics.sent))
        topics.fill("one")
        topics.fill("two")
        wait_until(lambda: came(run, stream, topics.sent))
    topics.create("three")
    stream.run(startingOffsets="latest")
    assert sorted(bodies(stream.rows)) == sorted(topics.sent)
    batch = read_batch(own_cluster, **by_pattern(own_cluster, topics.pattern, tubemq_group=f"{group}_b"))
    assert sorted(bodies(batch)) == sorted(topics.sent)


@pytest.mark.parametrize("while_down", [False, True])
def test_a_topic_that_is_deleted_is_a_loss(
    own_cluster: Cluster, topics: Topics, group: str, while_down: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out with `failOnDataLoss=false`. A real broker empties its store first."""
    gone = "_two:0: the (cluster does not have the partition any more|store ends at 0)"
    topics.create("one")
    topics.create("two")
    stream = Stream(own_cluster, **by_pattern(own_cluster, topics.pattern, tubemq_group=group))
    with stream.running() as run:
        wait_until(lambda: came(run, stream, topics.sent))
        if not while_down:
            topics.delete("two")
            with pytest.raises(DataLossError, match=gone):
                wait_until(lambda: run.next() is not None)
    if while_down:
        topics.delete("two")
        with pytest.raises(DataLossError, match=gone):
            stream.run()
    with stream.running(failOnDataLoss="false") as run:
        topics.fill("one")
        wait_until(lambda: came(run, stream, topics.sent))
        topics.create("three")
        wait_until(lambda: came(run, stream, topics.sent))
        assert "missing" not in run.reported
    assert len(logged(caplog, "data-loss")) >= 2
