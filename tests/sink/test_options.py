# SPDX-License-Identifier: Apache-2.0
"""The sink's options: what each may be, what it is without, and how a bad one is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructType

from tests.source.test_options import BAD_VALUES as BAD_VALUES_OF_THE_SOURCE
from tests.source.test_options import MISFITS as MISFITS_OF_THE_SOURCE
from tests.source.test_options import REQUIRED, assert_is_for_users, bad, bad_by_declaration
from tubemq_spark.client.producer.send_queue import SendLimits
from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.compression import CODECS
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.options import (
    DEAD_LETTER,
    SINK_OPTIONS,
    EffectivelyOnceOptions,
    PackLimits,
    SinkOptions,
)
from tubemq_spark.source.options import SOURCE_OPTIONS, SourceOptions, check_options

MASTER = {"tubemq.master": "127.0.0.1:8715"}
PACKED = {"messageFormat": "inlongmsg", "inlongPackRows": "9", "inlongPackBytes": "10"}
ONCE = {"effectivelyOnce": "true", "checkpointLocation": "/here"}
IN_CHECKPOINT = EffectivelyOnceOptions("/here/tubemq", "checkpointLocation", ("t",), "/here")
SHARED = {option.name for option in CLIENT_OPTIONS}


@pytest.mark.parametrize(
    "others",
    [
        {"checkpointlocation": "/checkpoints/here"},
        {"tubemq.group": "g1", "tubemq.claim.timeoutms": "1000", "subscribe": "a", "startingoffsets": "earliest"},
        {"failedrows": "FAIL", "stamprows": "false", "effectivelyonce": "False", "messageformat": "raw"},
        {"compression": "none"},
        {"queryname": "my query", "mode": "append", "__of_a_platform": "x", "spark.sql.x": "y"},
    ],
    ids=lambda others: next(iter(others)),
)
def test_options_that_change_nothing(others: dict[str, str]) -> None:
    assert SinkOptions.from_options({**MASTER, **others}) == SinkOptions.from_options(MASTER)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, {"topic": None, "effectively_once": None, "receipts": None, "packs": None}),
        ({}, {"failed_rows": "fail", "dead_letter_topic": None}),
        ({"topic": " demo ", "stampRows": "TRUE"}, {"topic": "demo", "stamp_rows": True}),
        ({"tubemq.producer.maxinflight": "5"}, {"limits": SendLimits(in_flight=5)}),
        ({"TUBEMQ.PRODUCER.MAXINFLIGHTBYTES": "6"}, {"limits": SendLimits(size=6)}),
        ({"receipts": " /folder "}, {"receipts": "/folder"}),
        ({"failedRows": "drop"}, {"failed_rows": "drop", "dead_letter_topic": None}),
        (
            {"failedRows": "deadLetter", "deadLetterTopic": " dead "},
            {"failed_rows": "deadletter", "dead_letter_topic": "dead"},
        ),
        (
            {"failedrows": "DEADLETTER", "deadlettertopic": "dead"},
            {"failed_rows": DEAD_LETTER, "dead_letter_topic": "dead"},
        ),
        ({"messageFormat": "inlongmsg"}, {"packs": None}),
        ({**PACKED, "inlongpackms": "250"}, {"packs": PackLimits(9, 10, 0.25)}),
        ({"messageFormat": "inlongmsg", "inlongPackRows": "2"}, {"packs": PackLimits(2)}),
        *(
            (
                {"messageformat": "InLongMsg", "compression": codec.upper()},
                {"message_format": "inlongmsg", "compression": codec},
            )
            for codec in CODECS
        ),
        *(
            (
                {**ONCE, "topic": "t", **given},
                {"effectively_once": once, "stamp_rows": True},  # rows are then stamped as well
            )
            for given, once in [
                ({}, IN_CHECKPOINT),
                ({"checkpointLocation": " /here/ "}, replace(IN_CHECKPOINT, checkpoint="/here/")),
                (
                    {"checkpointLocation": "s3a://b/x"},
                    replace(IN_CHECKPOINT, location="s3a://b/x/tubemq", checkpoint="s3a://b/x"),
                ),
                (
                    {"effectivelyOnceLocation": " s3://b/x "},
                    EffectivelyOnceOptions("s3://b/x", "effectivelyOnceLocation", ("t",)),
                ),
                ({"effectivelyOnceMaxOffsets": "7"}, replace(IN_CHECKPOINT, max_offsets=7)),
                ({"stampRows": "true"}, IN_CHECKPOINT),
                ({"effectivelyOnceUncertain": "Fail"}, IN_CHECKPOINT),
                ({"effectivelyOnceUncertain": "SENDAGAIN"}, replace(IN_CHECKPOINT, fails_when_uncertain=False)),
            ]
        ),
        (
            {**ONCE, "effectivelyOnceTopics": " b, a,b "},
            {"topic": None, "effectively_once": replace(IN_CHECKPOINT, topics=("b", "a"))},
        ),
    ],
    ids=str,
)
def test_options_are_parsed(raw: dict[str, str], expected: dict[str, Any]) -> None:
    options = SinkOptions.from_options({**MASTER, **raw})
    assert {name: getattr(options, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("failedRows", "drp", "drop"),
        ("failedRows", "dead_letter", "deadLetter"),
        ("compression", "gzipp", "gzip"),
        ("messageFormat", "inlongmesg", "inlongmsg"),
        ("stampRows", "ture", "true"),
    ],
)
def test_a_misspelled_word_gets_a_proposal(name: str, text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"; did you mean '{meant}'\?\)$"):
        SinkOptions.from_options({**MASTER, name: text})


def test_a_codec_that_pyarrow_lacks_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubemq_spark.sink.options.is_available", lambda codec: codec != "zstd")
    with pytest.raises(ConfigError, match=r"'compression' is 'zstd'; .*pyarrow was built without zstd here"):
        SinkOptions.from_options({**MASTER, "compression": "zstd"})


# What source and sink share


def test_source_and_sink_parse_client_options_alike() -> None:
    """So tests of the source also prove what these options do in the sink."""
    given = {
        "tubemq.master": "a,b:1",
        "tubemq.user": "ann",
        "tubemq.password": "p",
        "tubemq.rpc.timeoutMs": "101",
        "tubemq.rpc.framing": "prefixed",
        "tubemq.retry.maxElapsedMs": "102",
        "tubemq.connections.idleMs": "1003",
        "tubemq.connections.shared": "false",
        "tubemq.brokers.addresses": "1=nat:18123",
        "tubemq.tls.enabled": "true",
        "tubemq.tls.verifyHostname": "false",
    }
    sink = SinkOptions.from_options(given)
    assert sink.client == SourceOptions.read({**REQUIRED, **given}, streaming=True).client
    assert sink.client != SinkOptions.from_options(MASTER).client


def test_source_and_sink_may_share_a_configuration() -> None:
    """Each ignores the other's options, unless their meaning differs."""
    for option in SOURCE_OPTIONS:
        if option.name not in {*MASTER, *SHARED, "messageFormat"}:
            SinkOptions.from_options({**MASTER, option.name: "x"})
    for option in SINK_OPTIONS:
        if option.name not in {*MASTER, *SHARED, "messageFormat"}:
            check_options({**REQUIRED, option.name: "x"})


# Values that cannot be used

NAME = "the name of a topic"
BAD_VALUES: list[tuple[str, str, str]] = [
    *((name, text, expects) for name, text, expects in BAD_VALUES_OF_THE_SOURCE if name in SHARED),
    *bad_by_declaration(option for option in SINK_OPTIONS if option.name not in SHARED),
    *bad("topic", NAME, "", " "),
    ("deadLetterTopic", "", NAME),
    *bad("effectivelyOnceLocation", "a folder", "", " "),
    *bad("effectivelyOnceTopics", "names of topics", "", ",", "a,,b"),
    *bad("receipts", "a folder", "", " "),
    *bad("compression", "none, gzip, ", "unknown", "", "gzip,zstd"),
]


@pytest.mark.parametrize(("name", "text", "expects"), BAD_VALUES)
def test_a_bad_value_is_refused(name: str, text: str, expects: str) -> None:
    """The error names option, value and what was expected, before any request to a server."""
    raw = {**MASTER, "topic": "demo", **({} if name == "effectivelyOnce" else ONCE), name: text}
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_options(raw)
    problem = str(caught.value)
    assert problem.startswith(f"option '{name}' is {text!r}; expected ")
    assert expects in problem
    assert_is_for_users(problem.replace(repr(text), ""))
    with pytest.raises(ConfigError) as at_start:
        TubeMQDataSource(raw).streamWriter(StructType().add("value", BinaryType()), False)
    assert str(at_start.value) == problem


MISFITS: list[tuple[str, dict[str, str], str]] = [
    *(
        (name, {key: text for key, text in given.items() if text is not None}, sentence)
        for name, given, sentence in MISFITS_OF_THE_SOURCE
        if name in SHARED
    ),
    (
        "failedRows",
        {"failedRows": "deadLetter"},
        "option 'failedRows' is deadLetter, which needs option 'deadLetterTopic'",
    ),
    ("inlongPackRows", {"inlongPackRows": "9"}, "option 'inlongPackRows' needs messageFormat=inlongmsg: set that too"),
    (
        "inlongPackCompression",
        {"inlongPackCompression": "snappy"},
        "option 'inlongPackCompression' needs messageFormat=inlongmsg: set that too",
    ),
    (
        "inlongPackCompression",
        {**PACKED, "inlongPackCompression": "gzip"},
        "option 'inlongPackCompression' needs inlongPackFormat=protobuf for gzip: set that too",
    ),
    ("inlongPackFormat", {"inlongPackFormat": "protobuf"}, "option 'inlongPackFormat' needs messageFormat=inlongmsg"),
    ("inlongPackMs", {"inlongPackMs": "9"}, "option 'inlongPackMs' needs messageFormat=inlongmsg: set that too"),
    ("inlongPackBytes", {**PACKED, "inlongPackRows": "1"}, "option 'inlongPackBytes' needs 'inlongPackRows' above 1"),
    ("stampRows", {**PACKED, "stampRows": "true"}, "option 'stampRows' needs a message for each row, and with"),
    ("receipts", {**PACKED, "receipts": "/here"}, "option 'receipts' needs a message for each row, and with"),
    (
        "effectivelyOnce",
        {**PACKED, **ONCE, "topic": "t"},
        "option 'effectivelyOnce' needs a message for each row, and with",
    ),
    ("deadLetterTopic", {"deadLetterTopic": "dead"}, "option 'deadLetterTopic' needs failedRows=deadLetter: set"),
    ("deadLetterTopic", {"failedRows": "drop", "deadLetterTopic": "dead"}, "option 'deadLetterTopic' needs failed"),
    (
        "deadLetterTopic",
        {"failedRows": "deadLetter", "deadLetterTopic": "x", "topic": " x "},
        "option 'deadLetterTopic' is also the topic of the other rows: dead letters need a topic of their own",
    ),
    (
        "checkpointLocation",
        {"topic": "t", "effectivelyOnce": "true"},
        "option 'effectivelyOnce' keeps a file in the folder of the checkpoint, and the writer does not name it: add",
    ),
    (
        "checkpointLocation",
        {"topic": "t", **ONCE, "checkpointLocation": " "},
        "option 'effectivelyOnce' keeps a file in the folder of the checkpoint, and the writer does not name it: add",
    ),
    ("effectivelyOnceTopics", ONCE, "option 'effectivelyOnce' needs option 'topic', or the topics that rows name in"),
    (
        "effectivelyOnceTopics",
        {**ONCE, "topic": "t", "effectivelyOnceTopics": "u"},
        "option 'effectivelyOnceTopics' is for rows with a column topic: leave it or 'topic' out",
    ),
    (
        "stampRows",
        {**ONCE, "stampRows": "false"},
        "option 'effectivelyOnce' needs stamped rows: leave 'stampRows'",
    ),
    *(
        (
            f"effectivelyOnce{name}",
            {**given, f"effectivelyOnce{name}": text},
            f"option 'effectivelyOnce{name}' needs",
        )
        for name, text in [("Location", "/x"), ("Topics", "t"), ("MaxOffsets", "1"), ("Uncertain", "fail")]
        for given in ({}, {**ONCE, "effectivelyOnce": "false"})
    ),
]


@pytest.mark.parametrize(("name", "given", "sentence"), MISFITS)
def test_contradicting_values_are_refused(name: str, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_options({**MASTER, **given})
    problem = str(caught.value)
    assert problem.startswith(sentence)
    assert f"'{name}'" in problem


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"topic": "demo"}, r"'tubemq\.master' is required: host:port"),
        ({**MASTER, "tubemq.producer.maxFlight": "1"}, "unknown; did you mean 'tubemq.producer.maxInFlight'"),
        ({**MASTER, "topics": "demo"}, "option 'topics' is unknown; did you mean 'topic'"),
        ({**MASTER, "effectivlyOnce": "true"}, "option 'effectivlyOnce' is unknown; did you mean 'effectivelyOnce'"),
        ({**MASTER, "stampRow": "true"}, "option 'stampRow' is unknown; did you mean 'stampRows'"),
        ({**MASTER, "receipt": "/x"}, "option 'receipt' is unknown; did you mean 'receipts'"),
        ({**MASTER, "kafka.bootstrap.servers": "m"}, "belongs to Spark's Kafka connector.* use option 'tubemq.master'"),
        ({**MASTER, "deadLetters": "x"}, "option 'deadLetters' is unknown; did you mean 'deadLetterTopic'"),
        ({**MASTER, "messageFormat": "inlong"}, "expected raw or inlongmsg .* writes packs in either inlongPackFormat"),
        ({**MASTER, "exactlyOnce": "true"}, "option 'exactlyOnce' is unknown; did you mean 'effectivelyOnce'"),
        (
            {**MASTER, "header": "x"},
            r"option 'header' is unknown to tubemq; remove it, or look .* docs/options\.md$",
        ),
        (
            {**MASTER, "path": "/here"},
            r"option 'path' is set, but TubeMQ has topics, no paths: call load\(\), save\(\)",
        ),
        ({**MASTER, "keyColumn": "id"}, "option 'keyColumn' is unknown to tubemq; remove it, or look"),
    ],
    ids=lambda value: list(value)[-1] if isinstance(value, dict) else None,
)
def test_unknown_names_are_refused(raw: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        SinkOptions.from_options(raw)
