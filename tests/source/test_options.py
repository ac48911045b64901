# SPDX-License-Identifier: Apache-2.0
"""The source's options: values, defaults, and errors about bad values."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import OneOf, Option, WholeNumber, boolean
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source import options as source_options
from tubemq_spark.source.bound import Bound
from tubemq_spark.source.options import SOURCE_OPTIONS, SourceOptions, check_options

REQUIRED = {"tubemq.master": "m1", "tubemq.group": "g1", "subscribe": "t"}
PASSWORD = "p4ssw0rd-of-nobody"
POSITIONS = '{"topic":{"brokerId:partitionId":position}}'
ASSIGNED = {"subscribe": None, "assign": '{"t":["1:0"]}'}


def with_options(given: dict[str, str | None]) -> dict[str, str]:
    """Return the required options and the given ones; None removes one."""
    return {name: value for name, value in (REQUIRED | given).items() if value is not None}


def read(streaming: bool = True, /, **given: str) -> SourceOptions:
    """Read options; `tubemq_x_yMs` stands for `tubemq.x.yMs`."""
    raw = REQUIRED | {name.replace("_", "."): value for name, value in given.items()}
    return SourceOptions.read(raw, streaming=streaming)


def moments(options: SourceOptions) -> list[float]:
    return [place.timestamp() for place in options.starting.partitions.values() if isinstance(place, datetime)]


def refusal(raw: dict[str, str], streaming: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.read(raw, streaming=streaming)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _spark_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests must not depend on the Spark release."""
    monkeypatch.setattr(source_options, "_has_read_limits", lambda: True)


# Values


@pytest.mark.parametrize(
    ("value_of", "expected"),
    [
        (lambda o: o.client.masters, (Address("m1", 8715),)),
        (lambda o: o.client.credentials, None),
        (lambda o: o.client.tls, None),
        (lambda o: o.client.framing, None),
        (lambda o: o.assigned, None),
        (lambda o: o.filters, {}),
        (lambda o: o.starting, Bound("startingOffsets", "latest")),
        (lambda o: o.ending, Bound("endingOffsets", "latest")),
        (lambda o: o.late_start, "error"),
        (lambda o: (o.max_offsets, o.min_offsets, o.has_limits), (None, None, False)),
        (lambda o: o.partitions_per_task, None),
    ],
)
def test_defaults(value_of: Callable[[SourceOptions], object], expected: object) -> None:
    assert value_of(read()) == expected


@pytest.mark.parametrize(
    ("name", "text", "value_of", "expected"),
    [
        ("tubemq.master", "a:1, b ,c:3", lambda o: o.client.masters, (("a", 1), ("b", 8715), ("c", 3))),
        ("tubemq.rpc.timeoutMs", "100", lambda o: o.client.rpc_timeout, 0.1),
        ("tubemq.rpc.framing", "auto", lambda o: o.client.framing, None),
        ("tubemq.rpc.framing", "Standard", lambda o: o.client.framing, Framing.STANDARD),
        ("tubemq.rpc.framing", "prefixed", lambda o: o.client.framing, Framing.PREFIXED),
        ("tubemq.retry.maxElapsedMs", "0", lambda o: o.client.retry_for, 0.0),
        ("tubemq.connections.idleMs", "1000", lambda o: o.client.idle_for, 1.0),
        ("tubemq.connections.shared", " False", lambda o: o.client.shared_connections, False),
        (
            "tubemq.brokers.addresses",
            "1=nat:18123, 20 = 10.0.0.1:2",
            lambda o: o.client.broker_addresses,
            (Broker(1, Address("nat", 18123)), Broker(20, Address("10.0.0.1", 2))),
        ),
        ("tubemq.tls.enabled", "TRUE", lambda o: o.client.tls is not None, True),
        ("subscribe", "b, a ,b", lambda o: o.topics, ("b", "a")),
        ("tubemq.group", " g-1 ", lambda o: o.group, "g-1"),
        ("tubemq.claim.timeoutMs", "0", lambda o: o.claim_timeout, 0.0),
        ("filters", " a,b , a", lambda o: o.filters, {"t": ("a", "b")}),
        ("filters", '["a"," b"]', lambda o: o.filters, {"t": ("a", "b")}),
        ("filters", "[\"'a'\"]", lambda o: o.filters, {"t": ("'a'",)}),
        ("filters", "it's,a", lambda o: o.filters, {"t": ("it's", "a")}),
        ("filters", '{"t":["a"," b"]}', lambda o: o.filters, {"t": ("a", "b")}),
        ("startingOffsets", "Earliest", lambda o: o.starting.place, "earliest"),
        ("startingOffsets", "group", lambda o: o.starting.place, "group"),
        (
            "startingOffsets",
            '{"t":{"1:0":56,"1:10001":-1},"u":{"2:0":-2}}',
            lambda o: o.starting.partitions,
            {Partition(1, "t", 0): 56, Partition(1, "t", 10001): "latest", Partition(2, "u", 0): "earliest"},
        ),
        ("startingOffsets", '{"t":"Latest","u":{"2:0":0}}', lambda o: o.starting.topics, {"t": "latest"}),
        (
            "startingOffsetsByTimestamp",
            '{"t":{"1:0":1769857200000,"1:1":"2026-01-31"}}',
            moments,
            [1769857200, 1769817600],
        ),
        ("startingOffsetsByTimestampStrategy", "Latest", lambda o: o.late_start, "latest"),
        (
            "startingTimestamp",
            "1769857200000",
            lambda o: o.starting.place,
            datetime(2026, 1, 31, 11, tzinfo=timezone.utc),
        ),
        ("startingTimestamp", "2026-01-31T11:00:00Z", lambda o: o.starting.place.utcoffset(), timedelta(0)),
        ("startingTimestamp", " 2026-01-31T12:00:00+01:00 ", lambda o: o.starting.place.timestamp(), 1769857200),
        ("startingTimestamp", "2026-01-31 11:00", lambda o: o.starting.place.timestamp(), 1769857200),
        ("startingTimestamp", "2026-01-31", lambda o: o.starting.place.isoformat(), "2026-01-31T00:00:00+00:00"),
        ("failOnDataLoss", "False", lambda o: o.loss_policy.fail, False),
        ("maxBytesPerTrigger", "10000000000", lambda o: (o.max_bytes, o.has_limits), (10**10, True)),
        ("maxOffsetsPerTrigger", str(2**63 - 1), lambda o: (o.max_offsets, o.has_limits), (2**63 - 1, True)),
        ("minOffsetsPerTrigger", "1", lambda o: (o.min_offsets, o.has_limits), (1, True)),
        ("maxTriggerDelay", "250", lambda o: o.max_delay, 0.25),
        ("maxTriggerDelay", "250ms", lambda o: o.max_delay, 0.25),
        ("maxTriggerDelay", " 90 S", lambda o: o.max_delay, 90.0),
        ("maxTriggerDelay", "2m", lambda o: o.max_delay, 120.0),
        ("maxTriggerDelay", "2min", lambda o: o.max_delay, 120.0),
        ("maxTriggerDelay", "1h", lambda o: o.max_delay, 3600.0),
        ("maxTriggerDelay", "1d", lambda o: o.max_delay, 86400.0),
        ("maxPartitionsPerTask", "16", lambda o: o.partitions_per_task, 16),
        ("commitOffsets", "false", lambda o: o.commit_offsets, False),
        ("pushFilters", "true", lambda o: o.push_filters, True),
        ("corruptMessages", "Keep", lambda o: o.rows.corrupt, "keep"),
        ("msgTimeZone", "utc", lambda o: o.rows.zone, timezone.utc),
        ("msgTimeZone", "Asia/Shanghai", lambda o: o.rows.zone, ZoneInfo("Asia/Shanghai")),
        ("headsIntervalMs", "0", lambda o: o.poll_interval, 0.0),
        ("metadataIntervalMs", "100", lambda o: o.metadata_interval, 0.1),
        ("messageFormat", "InlongMsg", lambda o: o.rows.message_format, "inlongmsg"),
        ("messageFormat", "InLong", lambda o: o.rows.default_format, "inlongmsg"),
        ("maxUnpackedBytes", "1073741824", lambda o: o.rows.max_unpacked, 1 << 30),
    ],
)
def test_values_are_parsed_in_any_form(
    name: str, text: str, value_of: Callable[[SourceOptions], object], expected: object
) -> None:
    assert value_of(SourceOptions.read(REQUIRED | {name: text}, streaming=True)) == expected


def test_keys_in_lower_case_are_accepted() -> None:
    raw = {name.lower(): value for name, value in REQUIRED.items()}
    spelled = {"tubemq.rpc.timeoutMs": "7000", "startingOffsets": "group", "headsIntervalMs": "5"}
    lowered = {name.lower(): value for name, value in spelled.items()}
    assert SourceOptions.read(raw | lowered, streaming=True) == SourceOptions.read(raw | spelled, streaming=True)


# Bad values: `tests/test_options_covered.py` checks that each option is in one of the next two tables.


def bad_by_declaration(options: Iterable[Option[Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield values that numbers, words and flags refuse, with what the error expects instead."""
    for option in options:
        texts: tuple[str, ...] = ()
        if isinstance(option.parse, WholeNumber):
            texts = (str(option.parse.least - 1), str(option.parse.most + 1), "", "10s", "1e3", "many")
        elif isinstance(option.parse, OneOf) or option.parse is boolean:
            texts = ("", "1", "unknown")
        yield from ((option.name, text, option.expects) for text in texts)


def bad(name: str, expects: str, *texts: str) -> Iterator[tuple[str, str, str]]:
    yield from ((name, text, expects) for text in texts)


BAD_VALUES = [
    *bad_by_declaration(SOURCE_OPTIONS),
    *bad("tubemq.master", "host:port", "", "m:", "m:0", "m:65536", "m:x", "tube://m:1", "a:1,,b:2", "host;8715"),
    ("tubemq.user", " ", "a user name"),
    ("tubemq.passwordFile", "", "the path of a file"),
    *bad(
        "tubemq.brokers.addresses", "brokerId=host:port[,brokerId=host:port…]", "", "1", "1=nat", "nat:1",
        "one=nat:1", "-1=nat:1", "1=nat:0", "1=nat:1,", "1=nat:1,1=nat:2",
    ),
    ("tubemq.tls.ca", " ", "the path of a PEM file"),
    ("tubemq.tls.cert", "", "the path of a PEM file"),
    ("tubemq.tls.key", "", "the path of a PEM file"),
    *bad("subscribe", "topic[,topic…]", "", "a,,b", "a b", "a#b"),
    *bad("longMessageTopics", "topic[,topic…]", "", "a,,b"),
    *bad(
        "assign", '{"topic":["brokerId:partitionId",…]}', "", "t", "{}", '["1:0"]', '{"t":[]}', '{"t":"1:0"}',
        '{"t":[0]}', '{"t":[null]}', '{"t":["1:0","x"]}', '{"":["1:0"]}',
    ),
    *bad("tubemq.group", "a consumer group", "", "a:b", "a b", "g", "1abc", "a.b", "消费组", "g" * 1025),
    *bad(
        "filters", "type[,type…] or {", "", "a,,b", "a=b", "a#b", '["a"', "[1]", '{"t"', '{"t":"a"}', '{"t":[]}',
        '{"t":[1]}',
    ),
    *bad("filters", "at most 500 of 256 characters", "x" * 257, ",".join(map(str, range(501)))),
    *bad("filters", "in quotes", "a, 'b'", '"a"'),
    *bad(
        "startingOffsets", "earliest, latest, group or {", "newest", "{", "[]", "28", '{"t":28}', '{"t":{"0":28}}',
        '{"t":{"1:a":28}}', '{"t":{"1:-1":28}}', '{"t":{"1:0":"28"}}', '{"t":{"1:0":28.0}}', '{"t":{"1:0":true}}',
        '{"t":{"1:0":null}}', '{"t":"newest"}', '{"t":' * 5000 + "1" + "}" * 5000,
    ),
    *bad("startingOffsets", "multiples of 28", '{"t":{"1:0":27}}', '{"t":{"1:0":-3}}'),
    ("startingOffsets", '{"t":{"1:0":28,"01:0":56}}', "names partition 1:t:0 twice"),
    ("startingOffsets", '{"t":{"1:0":28,"1:0":56}}', "its JSON has a key twice"),
    ("endingOffsets", '{"t":{"1:0":28},"t":{"1:1":56}}', "its JSON has a key twice"),
    *bad(
        "startingTimestamp", "milliseconds since 1970 or a time as 2026-", "", "yesterday", "2026-13-01",
        "1769857200.5", "9" * 20,
    ),
    *bad(
        "startingTimestamp", "13 digits; write seconds or a yyyyMMddHHmm in the form 2026-01-31T12:00",
        "20260131120000", "202601311200", "1769857200",
    ),
    *(
        (f"{bound}OffsetsByTimestamp", text, '{"topic":{"brokerId:partitionId":time}}')
        for bound in ("starting", "ending")
        for text in ("latest", "{", "[]", '{"t":"latest"}', '{"t":5}', '{"t":{"0":5}}', '{"t":{"1:0":null}}')
    ),
    ("startingOffsetsByTimestamp", '{"t":{"1:0":1.5}}', "neither a number nor a text"),
    ("startingOffsetsByTimestamp", '{"t":{"1:0":"noon"}}', "not such a time"),
    ("startingOffsetsByTimestamp", '{"t":{"1:0":1769857200}}', "milliseconds have 13 digits"),
    *bad("endingOffsets", "latest or {", '{"t":"earliest"}', "earliest", "group", '{"t":{"1:0":-2}}'),
    ("endingTimestamp", "noon", "milliseconds since 1970 or a time as 2026-"),
    ("endingTimestamp", "20260131120000", "13 digits; write seconds or a yyyyMMddHHmm in the form 2026-01-31T12:00"),
    *bad("maxTriggerDelay", "milliseconds, or a number with us, ms, s, m, h or d", "soon", "1 week", "-1s"),
    *bad("msgTimeZone", "a time zone", "", "Asia/Nowhere", "../etc/passwd"),
    *bad(
        "subscribePattern", "a regular expression of Python", "", "(", r"\p{L}", r"\Qa\E", "[[a]b", "a{9999999999}",
        "(?<n>a)",
    ),
    *bad("tubemq.admin.address", "host:port[,host:port…]", "", "http://m:8080", "m:0", "a,,b"),
    ("assign", '{"t":' + "[" * 5000 + "]" * 5000 + "}", '{"topic":["brokerId:partitionId",'),
]  # fmt: skip

# Values that do not fit other options. Each entry: the wrong option, the given options, the error.
MISFITS: list[tuple[str, dict[str, str | None], str]] = [
    (
        "subscribe",
        {"subscribe": None},
        "option 'subscribe' is required: topic[,topic…], or option 'subscribePattern': a regular expression of Python, "
        "as orders_.*, or option 'assign': {",
    ),
    ("subscribe", {"assign": '{"t":["1:0"]}'}, "give option 'subscribe' or 'assign', not both"),
    ("subscribePattern", {"subscribePattern": "t.*"}, "give option 'subscribe' or 'subscribePattern', not both"),
    (
        "subscribePattern",
        {"subscribePattern": "t.*", "assign": '{"t":["1:0"]}'},
        "give option 'subscribe', 'subscribePattern' or 'assign', not all",
    ),
    ("longMessageTopics", {"longMessageTopics": "t,u"}, "option 'longMessageTopics' names u, which is not one of the"),
    ("filters", {"filters": '{"t":["a"],"u":["b"],"v":["c"]}'}, "option 'filters' names u, v, which is not one of"),
    (
        "filters",
        {**ASSIGNED, "filters": '{"u":["b"]}'},
        "option 'filters' names u, which is not one of the topics to read",
    ),
    (
        "minOffsetsPerTrigger",
        {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
        "option 'minOffsetsPerTrigger' is 11, more than 'maxOffsetsPerTrigger', which is 10",
    ),
    ("tubemq.password", {"tubemq.user": "u"}, "option 'tubemq.user' needs 'tubemq.password' or 'tubemq.passwordFile'"),
    ("tubemq.password", {"tubemq.user": "u", "tubemq.password": ""}, "option 'tubemq.user' needs 'tubemq.password'"),
    ("tubemq.user", {"tubemq.password": PASSWORD}, "option 'tubemq.user' is required with a password"),
    ("tubemq.user", {"tubemq.passwordFile": "f"}, "option 'tubemq.user' is required with a password"),
    (
        "tubemq.password",
        {"tubemq.user": "u", "tubemq.password": PASSWORD, "tubemq.passwordFile": "f"},
        "give option 'tubemq.password' or 'tubemq.passwordFile', not both",
    ),
    (
        "tubemq.passwordFile",
        {"tubemq.user": "u", "tubemq.passwordFile": "/no/such/file"},
        "option 'tubemq.passwordFile': /no/such/file gives no password",
    ),
    (
        "tubemq.passwordFile",
        {"tubemq.user": "u", "tubemq.passwordFile": "/dev/null"},
        "option 'tubemq.passwordFile': /dev/null gives no password",
    ),
    ("tubemq.tls.ca", {"tubemq.tls.ca": "ca.pem"}, "option 'tubemq.tls.ca' needs TLS: set option 'tubemq.tls.enabled'"),
    (
        "tubemq.tls.keyPassword",
        {"tubemq.tls.enabled": "true", "tubemq.tls.keyPassword": PASSWORD},
        "option 'tubemq.tls.keyPassword' needs 'tubemq.tls.key' beside it",
    ),
    ("tubemq.tls.key", {"tubemq.tls.enabled": "true", "tubemq.tls.key": "k"}, "option 'tubemq.tls.key' needs"),
    (
        "tubemq.tls.ca",
        {"tubemq.tls.enabled": "true", "tubemq.tls.ca": "/no/ca.pem"},
        "option 'tubemq.tls.ca': cannot read /no/ca.pem",
    ),
]

_JARGON = re.compile(
    r"\bNone|Error\b|Exception|Traceback|literal|isoformat|argument|iterable|subscript|attribute '|0x|"
    r"\b(int|str|dict|list)\b"
)


def assert_is_for_users(sentence: str) -> None:
    """Assert that it is one sentence on one line, without Python's terms."""
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert not _JARGON.search(sentence), sentence


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("corruptMessages", "kep", "it is none of these; did you mean 'keep'?"),
        ("corruptMessages", "drop", "it is none of these"),
        ("tubemq.rpc.framing", "prefix", "it is none of these; did you mean 'prefixed'?"),
        ("failOnDataLoss", "flase", "'flase' is neither true nor false; did you mean 'false'?"),
        ("startingOffsets", "Earlyest", "it is neither one of the words nor JSON; did you mean 'earliest'?"),
        ("startingOffsets", "newest", "it is neither one of the words nor JSON"),
        ("startingOffsets", '{"t":"lates"}', "topic t has 'lates'; did you mean 'latest'?"),
        ("msgTimeZone", "Asia/Shangai", "this machine does not know the zone; did you mean 'Asia/Shanghai'?"),
        ("msgTimeZone", "Mars/Olympus", "this machine does not know the zone"),
    ],
)
def test_a_misspelled_word_gets_a_proposal(name: str, text: str, reason: str) -> None:
    assert refusal(with_options({name: text})).endswith(f" ({reason})")


@pytest.mark.parametrize(("name", "text", "expects"), BAD_VALUES)
def test_a_bad_value_is_refused(name: str, text: str, expects: str) -> None:
    """The error names the option, the value and what was expected. It is raised on the driver, at load."""
    raw = with_options({"subscribe": None if name == "assign" else "t", name: text})
    problem = refusal(raw, streaming=not name.startswith("ending"))
    assert problem.startswith(f"option '{name}' is {text!r}; expected ")
    assert expects in problem
    assert_is_for_users(problem.replace(repr(text), ""))
    with pytest.raises(ConfigError) as at_load:
        TubeMQDataSource(raw).schema()
    assert str(at_load.value) == problem
    assert at_load.value.__context__ is None or at_load.value.__suppress_context__  # users see one error


@pytest.mark.parametrize(("name", "given", "sentence"), MISFITS)
def test_values_that_do_not_fit_each_other(name: str, given: dict[str, str | None], sentence: str) -> None:
    problem = refusal(with_options(given))
    assert problem.startswith(sentence)
    assert f"'{name}'" in problem
    assert PASSWORD not in problem


@pytest.mark.parametrize("name", ["tubemq.master", "tubemq.group"])
def test_a_required_option_is_missed(name: str) -> None:
    raw = {key: value for key, value in REQUIRED.items() if key != name}
    problem = refusal(raw)
    assert problem.startswith(f"option '{name}' is required: ")
    assert_is_for_users(problem)
    with pytest.raises(ConfigError, match=r"is required: "):
        check_options(raw)


# Streams and batches


@pytest.mark.parametrize(
    "option",
    [{"endingOffsets": "latest"}, {"endingTimestamp": "0"}, {"endingOffsetsByTimestamp": '{"t":{"1:0":0}}'}],
)
def test_a_stream_has_no_end(option: dict[str, str]) -> None:
    (name,) = option
    expected = f"option '{name}' is for batch reads: a stream has no end, leave it out"
    assert refusal(REQUIRED | option) == expected
    SourceOptions.read(REQUIRED | option, streaming=False)


LIMITS = {
    "maxOffsetsPerTrigger": "10",
    "maxBytesPerTrigger": "10",
    "minOffsetsPerTrigger": "1",
    "maxTriggerDelay": "1s",
}


@pytest.mark.parametrize("name", LIMITS)
def test_older_spark_ignores_read_limits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """With a warning, so that a query runs with the same options on all releases."""
    monkeypatch.setattr(source_options, "_has_read_limits", lambda: False)
    raw = REQUIRED | {name: LIMITS[name]}
    TubeMQDataSource(raw).schema()
    assert not caplog.records
    assert not SourceOptions.read(raw, streaming=True).has_limits
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        f"[read-limits-missing] option '{name}' is ignored: this Spark has no read limits"
    )


def test_older_spark_refuses_push_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_options, "datasource", SimpleNamespace())
    raw = REQUIRED | {"pushFilters": "true"}
    assert refusal(raw, streaming=False) == "option 'pushFilters' needs Spark 4.1 or later: leave it out"
    assert not read(False, pushFilters="false").push_filters


@pytest.mark.parametrize(("name", "value"), [*LIMITS.items(), ("commitOffsets", "true")])
def test_batch_warns_that_it_ignores_options_for_streams(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    SourceOptions.read(REQUIRED | {name: value}, streaming=True)
    SourceOptions.read(REQUIRED | {"commitOffsets": "false"}, streaming=False)  # a batch read moves no group anyway
    assert not caplog.records
    SourceOptions.read(REQUIRED | {name: value}, streaming=False)
    expected = f"[read-limit-ignored] option '{name}' is for streams: a batch read ignores it"
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, expected)]


# Credentials


def test_the_password_is_in_no_text() -> None:
    raw = REQUIRED | {"tubemq.user": "u", "tubemq.password": PASSWORD}
    options = SourceOptions.read(raw, streaming=True)
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    streamed, batch = TubeMQDataSource(raw).streamReader, TubeMQDataSource(raw).reader
    schema = TubeMQDataSource(raw).schema()
    for shown in (options, options.client, options.client.credentials, copy, streamed(schema), batch(schema)):
        assert PASSWORD not in repr(shown)
        assert PASSWORD not in str(shown)
        assert PASSWORD not in f"{shown}"


@pytest.mark.parametrize("broken", [{"tubemq.rpc.timeoutMs": "x"}, {"tubemq.pasword": PASSWORD}, {"assign": "x"}])
def test_password_is_not_in_error_texts(broken: dict[str, str]) -> None:
    assert PASSWORD not in refusal(REQUIRED | {"tubemq.user": "u", "tubemq.password": PASSWORD} | broken)
