# SPDX-License-Identifier: Apache-2.0
"""`subscribe`, `assign`, `filters`, `corruptMessages`, `tubemq.group`."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pyspark.sql.datasource import Filter, GreaterThan, In, LessThan

from tests.source_options.conftest import Start
from tests.testing import raw
from tests.without_spark.source import GROUP, UNIT, Stream, bodies, fill, options, read, read_batch, stored, where
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.message import encode_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.java import filter_code

# Topics


@pytest.mark.option("subscribe")
@pytest.mark.parametrize("streaming", [True, False])
def test_only_subscribed_topics_are_read(start: Start, streaming: bool) -> None:
    tubemq = start({"a": 2, "b": 1, "c": 1}, brokers=2)
    for topic in ("a", "b", "c"):
        fill(tubemq, topic, 12)
    rows = [row for batch in Stream(tubemq, "a", "b").run() for row in batch]
    if not streaming:
        rows = read_batch(tubemq, "a", "b")
    assert sorted(bodies(rows)) == sorted(stored(tubemq, "a", "b"))
    assert len(where(rows)) == 6


@pytest.mark.option("assign")
@pytest.mark.parametrize("streaming", [True, False])
def test_only_assigned_partitions_are_read_and_claimed(start: Start, streaming: bool) -> None:
    tubemq = start({"a": 3, "b": 1}, brokers=2)
    fill(tubemq, "a", 30), fill(tubemq, "b", 10)
    assign = {"a": ["1:0", "2:2"], "b": ["2:0"]}
    wanted = {Partition(1, "a", 0), Partition(2, "a", 2), Partition(2, "b", 0)}
    claims: set[Partition] = set()

    def note() -> None:
        for group, topic, broker, number in tubemq.claims():
            if not group.endswith("_spark_look"):  # probes ask for the owner of a store's last message
                claims.add(Partition(broker, topic, number))

    with tubemq.on("get_message").run(note):
        rows = Stream(tubemq, assign=assign).run()[0] if streaming else read_batch(tubemq, assign=assign)
    assert where(rows) == wanted
    assert claims <= wanted
    expected = [m.body for t in "ab" for m in tubemq.messages(t) if Partition(m.broker_id, t, m.partition) in wanted]
    assert sorted(bodies(rows)) == sorted(expected)


@pytest.mark.option("assign")
def test_missing_assigned_partition_is_refused_at_once(start: Start) -> None:
    tubemq = start({"a": 2})
    with pytest.raises(ConfigError, match=r"option 'assign' names 1:a:2 .* it has 1:a:0, 1:a:1$"):
        Stream(tubemq, assign={"a": ["1:1", "1:2"]}).run()
    stream = Stream(tubemq, assign={"a": ["1:1"]})
    stream.run()
    with pytest.raises(ConfigError, match=r"option 'assign' names 1:a:2 .* it has 1:a:0, 1:a:1$"):
        stream.run(assign={"a": ["1:1", "1:2"]})
    stream.run(assign={"a": ["1:0", "1:1"]})


# Filters


def types_of(tubemq: EmbeddedTubeMQ, topic: str, count: int, *types: str | None) -> None:
    """Send `count` messages whose types alternate."""
    for number in range(count):
        fill(tubemq, topic, 1, msg_type=types[number % len(types)])


@pytest.mark.option("filters")
@pytest.mark.parametrize("streaming", [True, False])
def test_broker_returns_only_wanted_message_types(start: Start, served: list[int], streaming: bool) -> None:
    """Brokers cannot distinguish types with the same hash; the reader drops those."""
    assert filter_code("Aa") == filter_code("BB")
    tubemq = start({"t": 1})
    types_of(tubemq, "t", 500, "Aa", "BB", "other", None, "more")
    given = {"filters": "Aa"}
    rows = Stream(tubemq, "t", **given).run()[0] if streaming else read_batch(tubemq, "t", **given)
    assert bodies(rows) == [message.body for message in tubemq.messages("t") if message.msg_type == "Aa"]
    assert {row["msg_type"] for row in rows} == {"Aa"}
    assert sum(served) == 200
    served.clear()
    assert len(read_batch(tubemq, "t")) == 500
    assert sum(served) == 500


@pytest.mark.option("filters")
def test_filters_that_match_nothing_pass_a_backlog_in_few_requests(start: Start) -> None:
    """The query progresses, and so does the group."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 2000, msg_type="other")
    stream = Stream(tubemq, "t", filters="wanted", maxOffsetsPerTrigger=1000)
    with tubemq.on("get_message").count() as fetches:
        assert stream.run() == [[], []]
    assert tubemq.group_offset(GROUP, "t", 1, 0) == 2000 * UNIT
    assert 2 <= fetches.fired <= 40


@pytest.mark.option("filters")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ("x, y", {"a": ["x", "y"], "b": ["x", "y"]}),
        ({"a": ["x"], "b": ["y", "z"]}, {"a": ["x"], "b": ["y", "z"]}),
        ({"b": ["x"]}, {"a": ["x", "y", "z", None], "b": ["x"]}),
    ],
)
def test_each_topic_has_its_own_filters(start: Start, filters: object, wanted: dict[str, list[str | None]]) -> None:
    tubemq = start({"a": 2, "b": 1})
    for topic in ("a", "b"):
        types_of(tubemq, topic, 80, "x", "y", "z", None)
    rows = read_batch(tubemq, "a", "b", filters=filters)
    expected = [m.body for topic in wanted for m in tubemq.messages(topic) if m.msg_type in wanted[topic]]
    assert sorted(bodies(rows)) == sorted(expected)


# Pushed filters


def send_raw(tubemq: EmbeddedTubeMQ, msg_type: str, partition: int) -> None:
    """Send as other clients may, with a type that ours refuses."""
    data, flag = encode_payload(b"body", b"$msgType$=" + msg_type.encode())
    message = raw.send(data, "t", partition)
    message.flag, message.msgType, message.msgTime = flag, msg_type, "202601011200"
    with raw.Raw(tubemq.broker_address(1)) as connection:
        assert connection.call(message).success


@pytest.mark.option("pushFilters")
@pytest.mark.parametrize("condition", [LessThan, GreaterThan])
def test_conditions_on_times_lose_no_row(start: Start, condition: type[Filter]) -> None:
    """Messages may be stored in any order of their times."""
    tubemq = start({"t": 1})
    for hour, count in ((14, 1), (11, 1500), (14, 1), (11, 1)):
        fill(tubemq, "t", count, msg_time=f"20260101{hour}00")
    source = TubeMQDataSource(options(tubemq, "t", pushFilters="true"))
    reader = source.reader(source.schema())
    noon = condition(("msg_time",), datetime(2026, 1, 1, 12, tzinfo=timezone.utc))  # type: ignore[call-arg]
    assert list(reader.pushFilters([noon])) == [noon]
    assert bodies(read(reader, reader.partitions())) == stored(tubemq, "t")


@pytest.mark.option("pushFilters")
@pytest.mark.parametrize(
    "types",
    [("x",), ("x", "y"), ("",), ("", "x"), (" x",), ("x", "x,y"), ("z" * 300, "y"), (*map(str, range(600)), "y"), ()],
    ids=lambda types: f"{len(types)} types",
)
def test_conditions_on_types_lose_no_row(start: Start, types: tuple[str, ...]) -> None:
    """For any types in the query's condition."""
    tubemq = start({"t": 2})
    for number in range(20):
        send_raw(tubemq, ("x", "y", "", " x", "7")[number % 5], number % 2)
    source = TubeMQDataSource(options(tubemq, "t", pushFilters="true"))
    reader = source.reader(source.schema())
    assert list(reader.pushFilters([condition := In(("msg_type",), types)])) == [condition]
    rows = read(reader, reader.partitions())
    wanted = [row["message_id"] for row in read_batch(tubemq, "t") if row["msg_type"] in types]
    assert [row["message_id"] for row in rows if row["msg_type"] in types] == wanted


# Corrupt messages


def damage(tubemq: EmbeddedTubeMQ, topic: str, body: bytes) -> None:
    """Store one more message, and damage its check sum."""
    tubemq.send(topic, body)

    def change() -> None:
        store = tubemq._servers.broker(1).service.stores.get(topic, 0)
        assert store is not None
        entry = store._block.entries[-1]
        reply = broker_pb.GetMessageResponseB2C()
        reply.MergeFromString(b"" if entry.wire is None else entry.wire)
        reply.messages[0].checkSum = 12345
        store._block.entries[-1] = entry._replace(wire=reply.SerializePartialToString())

    tubemq._on_thread(change)


@pytest.fixture
def damaged(start: Start) -> EmbeddedTubeMQ:
    """Ten good messages; a damaged one follows the third, another the last."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 3)
    damage(tubemq, "t", b"damaged 1")
    fill(tubemq, "t", 7)
    damage(tubemq, "t", b"damaged 2")
    return tubemq


@pytest.mark.option("corruptMessages")
@pytest.mark.parametrize("given", [{}, {"corruptMessages": "fail"}])
def test_a_corrupt_message_fails_the_query(damaged: EmbeddedTubeMQ, given: dict[str, str]) -> None:
    number = damaged.messages("t")[3].message_id
    with pytest.raises(ProtocolError, match=rf"1:t:0: message {number}: its check sum is 12345, .*'corruptMessages'"):
        Stream(damaged, "t", **given).run()


@pytest.mark.option("corruptMessages")
def test_corrupt_messages_are_skipped(damaged: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    rows = read_batch(damaged, "t", corruptMessages="skip")
    assert bodies(rows) == [body for body in stored(damaged, "t") if not body.startswith(b"damaged")]
    assert [row["offset"] for row in rows] == [28 * n for n in range(12) if n not in (3, 11)]
    assert "corrupt" not in rows[0]
    number = damaged.messages("t")[3].message_id
    assert f"1:t:0: 2 corrupt messages were skipped; the first: message {number}: " in caplog.text


@pytest.mark.option("corruptMessages")
def test_corrupt_messages_are_kept_unchanged(damaged: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    rows = Stream(damaged, "t", corruptMessages="keep").run()[0]
    assert bodies(rows) == stored(damaged, "t")
    assert [row["value"] for row in rows if row["corrupt"]] == [b"damaged 1", b"damaged 2"]
    assert all(row["attributes"] is row["msg_type"] is row["msg_time"] is None for row in rows if row["corrupt"])
    assert "1:t:0: 2 corrupt messages were kept" in caplog.text
