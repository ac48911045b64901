# SPDX-License-Identifier: Apache-2.0
"""The destination of rows: `topic`, `key`, `broker_id` and `partition`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.messages import partitions
from tests.sending import connect
from tests.stored import stored_in
from tests.without_spark.sink import STRING, bodies, save
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition


@pytest.mark.sink_option("topic")
@pytest.mark.column("topic")
@pytest.mark.parametrize("by_rows", [False, True])
def test_the_option_wins_over_a_rows_topic(cluster: Cluster, by_rows: bool) -> None:
    """The row's topic may be null, empty or unknown."""
    first, second = cluster.new_topic("one"), cluster.new_topic("one")
    rows: list[dict[str, Any]] = [
        {"value": b"a", "topic": None},
        {"value": b"b", "topic": second},
        {"value": b"c", "topic": first},
        {"value": b"d", "topic": "nowhere"},
        {"value": b"e", "topic": ""},
    ]
    written = save(cluster, rows, first, by_rows=by_rows)
    assert (bodies(cluster, first), bodies(cluster, second)) == ([b"a", b"b", b"c", b"d", b"e"], [])
    assert {key.split(":")[1] for key in written.rows} == {first}


@pytest.mark.column("topic")
def test_rows_of_several_topics(cluster: Cluster) -> None:
    first, second = cluster.new_topic("one"), cluster.new_topic("one")
    rows: list[dict[str, Any]] = [
        {"value": b"a", "topic": first},
        {"value": b"b", "topic": second},
        {"value": b"c", "topic": first},
    ]
    written = save(cluster, rows)
    assert (bodies(cluster, first), bodies(cluster, second)) == ([b"a", b"c"], [b"b"])
    assert Counter(key.split(":")[1] for key in written.rows for _ in range(written.rows[key])) == {first: 2, second: 1}


@pytest.mark.sink_option("topic")
def test_a_write_without_a_topic_fails_in_the_plan(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"^no topic to write to: give option 'topic' or a column 'topic'$"):
        save(cluster, [{"value": b"a"}])


@pytest.mark.sink_option("topic")
def test_an_unknown_topic_fails_in_the_plan(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"^the cluster has no topic nowhere\. Check the topic's name, or create"):
        save(cluster, [{"value": b"a"}], "nowhere", tubemq_retry_maxElapsedMs=100)


@pytest.mark.column("key")
def test_rows_of_a_key_go_to_one_partition_in_order(cluster: Cluster, demo: str) -> None:
    """This holds across writes. The messages of a key have the order of the rows."""
    for part in range(3):
        save(
            cluster, [{"value": b"%d %d" % (n % 20, 20 * part + n), "key": b"%d" % (n % 20)} for n in range(100)], demo
        )
    where: dict[bytes, set[Partition]] = defaultdict(set)
    order: dict[bytes, list[bytes]] = defaultdict(list)
    for message in stored_in(cluster, demo):
        key, number = message.body.split()
        where[key].add(message.partition)
        order[key].append(number)
    assert len(where) == 20
    assert all(len(found) == 1 for found in where.values())
    assert len(set.union(*where.values())) > 3  # of six
    wanted = {b"%d" % key: [b"%d" % (20 * p + n) for p in range(3) for n in range(key, 100, 20)] for key in range(20)}
    assert order == wanted


@pytest.mark.column("key")
def test_a_text_key_equals_its_bytes(cluster: Cluster, demo: str) -> None:
    keys = ["", "a", "Zürich", "日本", "key " * 50]
    save(cluster, [{"value": key.encode(), "key": key} for key in keys], demo, kinds={"key": STRING})
    save(cluster, [{"value": key.encode(), "key": key.encode()} for key in keys], demo)
    where: dict[bytes, list[Partition]] = defaultdict(list)
    for message in stored_in(cluster, demo):
        where[message.body].append(message.partition)
    assert {key: len(found) for key, found in where.items()} == {key.encode(): 2 for key in keys}
    assert all(first == second for first, second in where.values())


@pytest.mark.column("broker_id", "partition")
def test_a_row_goes_to_its_target(cluster: Cluster, demo: str) -> None:
    """The target also wins over a key."""
    targets = partitions(cluster, demo)
    rows = [
        {
            "value": str(targets[n % 6]).encode(),
            "broker_id": targets[n % 6].broker_id,
            "partition": targets[n % 6].partition_id,
            "key": b"same" if n % 2 else None,
        }
        for n in range(60)
    ]
    written = save(cluster, rows, demo)
    stored = stored_in(cluster, demo)
    assert len(stored) == 60
    assert all(message.body == str(message.partition).encode() for message in stored)
    assert written.rows == {str(target): 10 for target in targets}


@pytest.mark.column("key", "broker_id", "partition")
@pytest.mark.parametrize("empty", [("key",), ("broker_id", "partition")], ids=str)
def test_rows_without_a_key_or_a_target_are_spread(cluster: Cluster, demo: str, empty: tuple[str, ...]) -> None:
    connect(cluster)
    save(cluster, [{"value": b"%d" % n, **dict.fromkeys(empty)} for n in range(300)], demo)
    assert {message.partition for message in stored_in(cluster, demo)} == set(partitions(cluster, demo))
