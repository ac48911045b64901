# SPDX-License-Identifier: Apache-2.0
"""`startingOffsets`, `startingTimestamp`, `endingOffsets`, `endingTimestamp`, `msgTimeZone`."""

from __future__ import annotations

import re
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import partial

import pytest

from tests.clusters import Cluster
from tests.messages import numbered, partitions, send
from tests.source_options.conftest import Start
from tests.without_spark.source import GROUP, UNIT, Stream, bodies, fill, read_batch
from tubemq_spark.client.consumer import time_search
from tubemq_spark.errors import ConfigError, TimestampMissingError
from tubemq_spark.protocol import index_search
from tubemq_spark.protocol.message import MILLIS_KEY, encode_attributes
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

# Positions


@pytest.fixture
def tubemq(start: Start) -> EmbeddedTubeMQ:
    """Ten messages in each of the topics a and b; the first two have expired. The group is at the sixth message of a,
    and new in b."""
    tubemq = start({"a": 1, "b": 1})
    for topic in ("a", "b"):
        fill(tubemq, topic, 10)
        tubemq.expire(topic, keep=8)
    Stream(tubemq, "a", startingOffsets={"a": {"1:0": 5 * UNIT}}).run(endingOffsets=None)
    tubemq.move_group(GROUP, "a", 1, 0, 5 * UNIT)
    return tubemq


def numbers(rows: list[dict[str, object]], topic: str) -> list[int]:
    """Which of the topic's messages were read."""
    return [int(str(row["offset"])) // UNIT for row in rows if row["topic"] == topic]


@pytest.mark.option("startingOffsets")
@pytest.mark.parametrize(
    ("given", "a", "b"),
    [
        ("earliest", range(2, 10), range(2, 10)),
        ("group", range(5, 10), range(2, 10)),
        ({"a": {"1:0": 7 * UNIT}, "b": {"1:0": -2}}, range(7, 10), range(2, 10)),
        ({"a": {"1:0": -2}, "b": {"1:0": 9 * UNIT}}, range(2, 10), range(9, 10)),
        ({"a": "Group", "b": {"1:0": 9 * UNIT}}, range(5, 10), range(9, 10)),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_read_begins_at_starting_offsets(
    tubemq: EmbeddedTubeMQ, given: object, a: range, b: range, streaming: bool
) -> None:
    stream = Stream(tubemq, "a", "b", startingOffsets=given)
    rows = stream.run()[0] if streaming else read_batch(tubemq, "a", "b", startingOffsets=given)
    assert (numbers(rows, "a"), numbers(rows, "b")) == (list(a), list(b))


@pytest.mark.option("startingOffsets")
@pytest.mark.parametrize(
    ("given", "a"),
    [
        ("latest", []),
        (None, []),
        ({"a": {"1:0": -2}, "b": {"1:0": -1}}, list(range(2, 10))),
        ({"a": "earliest", "b": "latest"}, list(range(2, 10))),
    ],
)
def test_stream_begins_at_the_latest_by_default(tubemq: EmbeddedTubeMQ, given: object, a: list[int]) -> None:
    """Later messages are read."""
    stream = Stream(tubemq, "a", "b", startingOffsets=given)
    stream.run()
    fill(tubemq, "b", 1)
    stream.run()
    assert (numbers(stream.rows, "a"), numbers(stream.rows, "b")) == (a, [10])


@pytest.mark.option("startingOffsets")
def test_batch_reads_from_the_earliest_by_default(tubemq: EmbeddedTubeMQ) -> None:
    assert numbers(read_batch(tubemq, "a", startingOffsets=None), "a") == list(range(2, 10))


@pytest.mark.option("endingOffsets")
@pytest.mark.parametrize(
    ("given", "a", "b"),
    [
        ("latest", range(2, 10), range(2, 10)),
        (None, range(2, 10), range(2, 10)),
        ({"a": {"1:0": 4 * UNIT}, "b": {"1:0": -1}}, range(2, 4), range(2, 10)),
        ({"a": "latest", "b": {"1:0": 4 * UNIT}}, range(2, 10), range(2, 4)),
    ],
)
def test_batch_ends_at_ending_offsets(tubemq: EmbeddedTubeMQ, given: object, a: range, b: range) -> None:
    rows = read_batch(tubemq, "a", "b", endingOffsets=given)
    assert (numbers(rows, "a"), numbers(rows, "b")) == (list(a), list(b))


# Times


MINUTES = 60
A_MINUTE = 20  # messages


@pytest.fixture
def timed(start: Start) -> EmbeddedTubeMQ:
    """Two partitions, each with its own store, and an hour of messages from 12:00 on, `A_MINUTE` a minute; every fifth
    message has no time, and every other one has milliseconds, which no search needs."""
    tubemq = start({"t": 1}, brokers=2)
    for minute in range(MINUTES):
        for number in range(A_MINUTE):
            msg_time = f"2026010112{minute:02}" if number % 5 != 4 else None
            for broker in (1, 2):
                millis = {MILLIS_KEY: f"{number * 2999}"} if number % 2 else None
                tubemq.send("t", b"%d.%d" % (minute, number), f"{broker}:0", attributes=millis, msg_time=msg_time)
    return tubemq


def between(first: int, behind: int) -> list[bytes]:
    """The bodies of one partition from minute `first` on."""
    return [b"%d.%d" % (minute, number) for minute in range(first, behind) for number in range(A_MINUTE)]


def milliseconds(minute: int) -> int:
    return int(datetime(2026, 1, 1, 12, minute, tzinfo=timezone.utc).timestamp()) * 1000


def at_times(first: object, second: object) -> dict[str, object]:
    return {"t": {"1:0": first, "2:0": second}}


def at_minute(minute: int) -> dict[str, object]:
    return at_times(UNIT * A_MINUTE * minute, UNIT * A_MINUTE * minute)


@pytest.mark.option("startingTimestamp")
@pytest.mark.parametrize(
    ("given", "first"),
    [
        (milliseconds(17), 17),
        (milliseconds(17) + 59_999, 17),
        (milliseconds(17) - 1, 16),
        ("2026-01-01T12:17:00Z", 17),
        ("2026-01-01T13:17:00+01:00", 17),
        ("2026-01-01 12:17", 17),
        (0, 0),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_read_begins_at_starting_timestamp(timed: EmbeddedTubeMQ, given: object, first: int, streaming: bool) -> None:
    """Times are exact to the minute, apply to each partition, and win over `startingOffsets`."""
    options = {"startingTimestamp": given, "startingOffsets": "latest"}
    rows = Stream(timed, "t", **options).run()[0] if streaming else read_batch(timed, "t", **options)
    for broker in (1, 2):
        assert bodies(row for row in rows if row["broker_id"] == broker) == between(first, MINUTES)


TOO_LATE = (
    "[starting-time-too-late] no message of 1:t:0, 2:t:0 is as late as 2026-01-01 13:00:00+00:00 (option "
    "'startingTimestamp'): reading begins at the end"
)


@pytest.mark.option("startingTimestamp")
def test_stream_begins_at_the_latest_if_no_message_is_late_enough(
    timed: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(timed, "t", startingTimestamp="2026-01-01T13:00:00Z")
    stream.run()
    assert caplog.messages.count(TOO_LATE) == 1
    timed.send("t", b"later", msg_time="202601011259")
    stream.run()
    assert bodies(stream.rows) == [b"later"]


@pytest.mark.option("startingTimestamp")
def test_messages_that_come_during_the_search_for_a_time_are_no_loss(timed: EmbeddedTubeMQ) -> None:
    stream = Stream(timed, "t", startingTimestamp="2026-01-01T13:00:00Z")
    come = partial(timed.send, "t", b"early", "1:0", msg_time="202601011259")
    with timed.on("partition_register", client="_look_", times=1).run(come) as search:
        stream.run()
    assert search.fired
    timed.send("t", b"late", "1:0", msg_time="202601011301")
    stream.run()
    assert bodies(stream.rows) == [b"late"]


@pytest.mark.option("startingTimestamp")
def test_nothing_is_logged_if_a_partition_has_a_message_that_is_late_enough(
    timed: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    timed.send("t", b"late", "2:0", msg_time="202601011300")
    assert bodies(read_batch(timed, "t", startingTimestamp="2026-01-01T13:00:00Z")) == [b"late"]
    assert "starting-time-too-late" not in caplog.text


@pytest.mark.option("startingTimestamp")
@pytest.mark.parametrize("streaming", [True, False])
def test_search_for_a_time_gives_up_in_a_topic_without_times(
    start: Start, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a week of messages would be read twice within the first `latestOffset`."""
    monkeypatch.setattr(index_search, "MOST_UNTIMED", 300)
    tubemq = start({"t": 1}, config=ServerConfig(mem_cache_msg_count=100))
    fill(tubemq, "t", 2000)
    given = {"startingTimestamp": "2026-01-01T12:00:00Z"}
    with pytest.raises(ConfigError, match=r"1:t:0: the search for a time has read \d+ .* none has a \$msgTime\$"):
        Stream(tubemq, "t", **given).run() if streaming else read_batch(tubemq, "t", **given)
    assert tubemq.group_offset(GROUP, "t", 1, 0) == (0 if streaming else None)
    assert len(read_batch(tubemq, "t")) == 2000


@pytest.mark.option("startingTimestamp")
@pytest.mark.parametrize("streaming", [True, False])
def test_messages_without_times_are_not_skipped_without_the_users_word(start: Start, streaming: bool) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 20)
    given = {"startingTimestamp": "2026-01-01T12:00:00Z"}
    with pytest.raises(TimestampMissingError, match=r"no message of 1:t:0 has a \$msgTime\$"):
        Stream(tubemq, "t", **given).run() if streaming else read_batch(tubemq, "t", **given)


@pytest.mark.option("startingOffsetsByTimestampStrategy")
@pytest.mark.parametrize("most_untimed", [10, 1000])
def test_read_begins_behind_messages_without_times_if_the_user_says_so(
    start: Start, most_untimed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_search, "MOST_UNTIMED", most_untimed)
    tubemq = start({"t": 1})
    fill(tubemq, "t", 2000)
    options = {"startingTimestamp": "2026-01-01T12:00:00Z", "startingOffsetsByTimestampStrategy": "latest"}
    assert read_batch(tubemq, "t", **options) == []
    assert "[no-message-times] no message of 1:t:0 has a $msgTime$" in caplog.text


@pytest.mark.option("endingTimestamp")
@pytest.mark.parametrize(
    ("given", "first", "behind"),
    [
        ({"endingTimestamp": milliseconds(30), "endingOffsets": "latest"}, 0, 30),
        ({"endingTimestamp": "2026-01-01T12:30:00Z", "startingTimestamp": milliseconds(28)}, 28, 30),
        ({"endingTimestamp": milliseconds(25), "startingTimestamp": milliseconds(25)}, 0, 0),
        ({"endingTimestamp": "2026-01-01T13:00:00Z"}, 0, MINUTES),
        ({"endingTimestamp": milliseconds(20), "startingOffsets": at_minute(10)}, 10, 20),
        ({"endingOffsets": at_minute(20), "startingTimestamp": milliseconds(10)}, 10, 20),
        (
            {
                "startingTimestamp": milliseconds(20),
                "startingOffsetsByTimestamp": at_times(milliseconds(10), milliseconds(10)),
                "endingTimestamp": milliseconds(30),
                "endingOffsetsByTimestamp": at_times(milliseconds(40), milliseconds(40)),
            },
            20,
            30,
        ),
    ],
)
def test_batch_ends_at_ending_timestamp(
    timed: EmbeddedTubeMQ, given: dict[str, object], first: int, behind: int
) -> None:
    rows = read_batch(timed, "t", **given)
    for broker in (1, 2):
        assert bodies(row for row in rows if row["broker_id"] == broker) == between(first, behind)


@pytest.mark.option("endingTimestamp")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "where a batch read would read nothing"),
        ({"startingOffsets": {"t": {"1:0": -2, "2:0": -1}}}, "where a batch read would read nothing"),
        ({"startingTimestamp": milliseconds(25), "endingTimestamp": milliseconds(20)}, "later than 'endingTimestamp'"),
        (
            {
                "startingOffsetsByTimestamp": {"t": {"1:0": milliseconds(10), "2:0": milliseconds(25)}},
                "endingTimestamp": milliseconds(20),
            },
            "option 'startingOffsetsByTimestamp' is 2026-01-01 12:25:00+00:00 for 2:t:0, later than 'endingTimestamp'",
        ),
        (
            {"startingOffsets": {"t": {"1:0": UNIT * A_MINUTE * 21, "2:0": 0}}, "endingTimestamp": milliseconds(20)},
            f"has 2026-01-01 12:20:00+00:00 for 1:t:0, position {UNIT * A_MINUTE * 20}, which lies before the start",
        ),
        (
            {"startingTimestamp": "2026-01-01T13:00", "endingOffsets": at_minute(20)},
            f"{UNIT * A_MINUTE * 20}, which lies before the start {UNIT * A_MINUTE * MINUTES}, 2026-01-01 13:00",
        ),
        (
            {"startingOffsets": "group", "endingTimestamp": milliseconds(20)},
            f"lies before the start {UNIT * A_MINUTE * 30}, group in option 'startingOffsets'",
        ),
    ],
)
def test_a_batch_that_begins_behind_its_end_is_refused(
    timed: EmbeddedTubeMQ, given: dict[str, object], says: str
) -> None:
    Stream(timed, "t").run(endingOffsets=None)
    timed.move_group(GROUP, "t", 1, 0, UNIT * A_MINUTE * 30)
    with pytest.raises(ConfigError, match=re.escape(says)):
        read_batch(timed, "t", **given)


@pytest.mark.option("endingTimestamp")
@pytest.mark.option("endingOffsetsByTimestamp")
@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"endingTimestamp": "2026-01-01T12:00"}, "endingTimestamp"),
        ({"startingTimestamp": "2026-01-01T11:00", "endingTimestamp": "2026-01-01T12:00"}, "endingTimestamp"),
        (
            {"endingOffsetsByTimestamp": {"t": dict.fromkeys(("1:0", "2:0", "3:0"), "2026-01-01T12:00")}},
            "endingOffsetsByTimestamp",
        ),
        ({"endingTimestamp": milliseconds(10), "startingTimestamp": milliseconds(8)}, None),
        ({"endingTimestamp": milliseconds(10), "startingOffsets": {"t": {"1:0": UNIT, "2:0": 0, "3:0": 0}}}, None),
        ({"endingOffsetsByTimestamp": {"t": {"1:0": 0, "2:0": milliseconds(21), "3:0": 0}}}, None),
    ],
    ids=str,
)
def test_an_end_before_all_messages_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture, given: dict[str, object], option: str | None
) -> None:
    """An empty range between messages is normal for a job that runs again and again."""
    tubemq = start({"t": 1}, brokers=3)
    for broker, minute in ((1, 5), (2, 20)):  # the third one has no messages
        tubemq.send("t", b"a", f"{broker}:0", msg_time=f"2026010112{minute:02}")
    rows = read_batch(tubemq, "t", **given)
    told = [line for line in caplog.messages if line.startswith("[ending-time-too-early]")]
    if option is None:
        assert told == []
    else:
        assert (rows, told) == (
            [],
            [
                "[ending-time-too-early] the first message of 1:t:0, 2:t:0 is not earlier than 2026-01-01 "
                f"12:00:00+00:00 (option '{option}'): nothing is read"
            ],
        )


@pytest.mark.option("endingTimestamp")
@pytest.mark.parametrize(("until", "is_told"), [("2026-01-01T12:00", True), ("2026-01-01T12:06", False)])
def test_an_end_before_all_messages_of_a_shared_store_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture, until: str, is_told: bool
) -> None:
    """The first message of a partition may lie behind messages of others."""
    tubemq = start({"t": 3})
    for number in range(6):
        tubemq.send("t", b"a", f"1:{number % 3}", msg_time=f"2026010112{5 + number:02}")
    rows = read_batch(tubemq, "t", endingTimestamp=until)
    told = [line for line in caplog.messages if line.startswith("[ending-time-too-early] the first message of 1:t:0, ")]
    assert (len(rows), len(told)) == ((0, 1) if is_told else (1, 0))


@pytest.mark.option("endingTimestamp")
@pytest.mark.parametrize(
    ("begin", "end", "is_told"),
    [("12:05:10", "12:05:50", True), ("12:05", "12:05", True), ("12:04:59", "12:05", False)],
)
def test_a_read_within_one_minute_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture, begin: str, end: str, is_told: bool
) -> None:
    tubemq = start({"t": 1})
    for minute in ("202601011203", "202601011205"):
        tubemq.send("t", b"a", msg_time=minute)
    assert read_batch(tubemq, "t", startingTimestamp=f"2026-01-01T{begin}", endingTimestamp=f"2026-01-01T{end}") == []
    assert (["times are rounded down" in line for line in caplog.messages].count(True) == 1) is is_told


@pytest.mark.option("endingTimestamp", "msgTimeZone")
def test_a_read_within_one_minute_of_a_repeated_hour_is_not_empty(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    tubemq = start({"t": 1})
    for minute in ("0159", "0215", "0230", "0310"):
        tubemq.send("t", minute.encode(), msg_time=f"20251026{minute}")
    given = dict.fromkeys(("startingTimestamp", "endingTimestamp"), "2025-10-26T02:30")
    assert bodies(read_batch(tubemq, "t", msgTimeZone="Europe/Berlin", **given)) == [b"0215", b"0230"]
    assert "ending-time-too-early" not in caplog.text


@pytest.mark.option("endingTimestamp")
def test_a_batch_that_begins_behind_its_end_is_refused_by_any_server(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("one")
    send(cluster, numbered(partitions(cluster, topic), 4), attributes=encode_attributes({}, None, "202601010000"))
    starts = {topic: {"1:0": UNIT, "2:0": 0}}
    for until, says in [("2025-12-31", "which lies before the start"), ("2026-01-02", "")]:
        given = {"tubemq_group": group, "startingOffsets": starts, "endingTimestamp": until}
        with pytest.raises(ConfigError, match=says) if says else nullcontext():
            assert len(read_batch(cluster, topic, **given)) == 3


@pytest.mark.option("startingOffsetsByTimestamp")
@pytest.mark.option("endingOffsetsByTimestamp")
@pytest.mark.parametrize("streaming", [True, False])
def test_each_partition_has_times_of_its_own(timed: EmbeddedTubeMQ, streaming: bool) -> None:
    given: dict[str, object] = {"startingOffsetsByTimestamp": at_times(milliseconds(10), "2026-01-01T12:50")}
    end = MINUTES
    if not streaming:
        end = 55
        given["endingOffsetsByTimestamp"] = at_times("2026-01-01T12:55:30", milliseconds(55))
    options = {**given, "startingOffsets": "earliest"}
    rows = Stream(timed, "t", **options).run()[0] if streaming else read_batch(timed, "t", **options)
    found = [bodies(row for row in rows if row["broker_id"] == broker) for broker in (1, 2)]
    assert found == [between(10, end), between(50, end)]


LATE = at_times(milliseconds(10), "2026-01-01T13:00")


@pytest.mark.option("startingOffsetsByTimestampStrategy")
@pytest.mark.parametrize(
    ("given", "strategy", "late"),
    [
        ({"startingOffsetsByTimestamp": LATE}, None, "2:t:0"),
        ({"startingOffsetsByTimestamp": LATE}, "error", "2:t:0"),
        ({"startingOffsetsByTimestamp": LATE}, "latest", None),
        ({"startingTimestamp": "2026-01-01T13:00"}, "error", "1:t:0, 2:t:0"),
    ],
    ids=str,
)
def test_a_time_that_no_message_reaches(
    timed: EmbeddedTubeMQ, given: dict[str, object], strategy: str | None, late: str | None
) -> None:
    options = {**given, "startingOffsetsByTimestampStrategy": strategy}
    if late is None:
        assert bodies(read_batch(timed, "t", **options)) == between(10, MINUTES)
    else:
        with pytest.raises(ConfigError, match=rf"'{next(iter(given))}': no message of {late} is as late as .*13:00"):
            read_batch(timed, "t", **options)


@pytest.mark.option("startingOffsetsByTimestampStrategy")
def test_no_earlier_time_is_advised_for_an_empty_partition(start: Start) -> None:
    tubemq = start({"t": 1}, brokers=2)
    tubemq.send("t", b"old", "1:0", msg_time="202601011200")
    given = {"startingOffsetsByTimestamp": LATE, "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(ConfigError, match=r"no message of .*2:t:0 is as late as .*: 2:t:0 has no messages, so set opt"):
        read_batch(tubemq, "t", **given)


# Clocks in Berlin show 02:00 to 02:59 on 2025-10-26 twice: from 00:00Z on and from 01:00Z on.
NIGHT = [f"{hour:02}{minute:02}" for hour in (0, 1, 2, 2, 3, 4) for minute in range(60)]
FIRST, SECOND, BEHIND = 120, 180, 240  # minutes from 00:00 on, which is 22:00Z


@pytest.fixture
def night(start: Start) -> EmbeddedTubeMQ:
    tubemq = start({"t": 1})
    for number, text in enumerate(NIGHT):
        tubemq.send("t", b"%d" % number, msg_time=f"20251026{text}")
    return tubemq


def minutes(rows: list[dict[str, object]]) -> list[int]:
    return [int(body) for body in bodies(rows)]


@pytest.mark.option("msgTimeZone")
@pytest.mark.parametrize("neighbourhood", [0, index_search.NEIGHBOURHOOD])
@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("2025-10-26T01:59", FIRST - 1),
        ("2025-10-26T02:00+02:00", FIRST),
        ("2025-10-26T02:50", FIRST),
        ("2025-10-26T02:50+02:00", FIRST),
        ("2025-10-26T02:10:59+01:00", FIRST),
        ("2025-10-26T01:59:59Z", FIRST),
        ("2025-10-26T02:00Z", BEHIND),
        ("2025-10-26T03:00", BEHIND),
        ("2025-03-30T02:30", 0),  # clocks skip it
    ],
)
def test_read_begins_before_a_repeated_hour_and_ends_behind_it(
    night: EmbeddedTubeMQ, given: str, first: int, neighbourhood: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message that is late enough is left out at the start, and none that is early enough at the end."""
    monkeypatch.setattr(time_search, "Search", partial(index_search.Search, neighbourhood=neighbourhood))
    rows = read_batch(night, "t", startingTimestamp=given, msgTimeZone="Europe/Berlin")
    assert minutes(rows) == list(range(first, len(NIGHT)))
    rows = read_batch(night, "t", endingTimestamp=given, msgTimeZone="Europe/Berlin")
    assert minutes(rows) == list(range(BEHIND if first == FIRST else first))


@pytest.mark.option("msgTimeZone")
@pytest.mark.parametrize(("zone", "hour"), [(None, 12), ("UTC", 12), ("Asia/Shanghai", 4), ("+05:30", None)])
def test_msg_time_zone_is_the_producers_zone(start: Start, zone: str | None, hour: int | None) -> None:
    """It applies to rows, to times without a zone, and to the search."""
    tubemq = start({"t": 1})
    for minute in range(3):
        tubemq.send("t", b"%d" % minute, msg_time=f"2026010112{minute:02}")
    given = {"msgTimeZone": zone, "startingTimestamp": "2026-01-01T12:01"}
    if hour is None:
        with pytest.raises(ConfigError, match="option 'msgTimeZone' is '\\+05:30'; expected a time zone"):
            read_batch(tubemq, "t", **given)
        return
    rows = read_batch(tubemq, "t", **given)
    assert bodies(rows) == [b"1", b"2"]
    assert rows[0]["msg_time"] == datetime(2026, 1, 1, hour, 1, tzinfo=timezone.utc)
    moment = f"2026-01-01T{hour:02}:02:00Z"
    assert bodies(read_batch(tubemq, "t", msgTimeZone=zone, startingTimestamp=moment)) == [b"2"]
