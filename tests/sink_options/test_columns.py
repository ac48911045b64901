# SPDX-License-Identifier: Apache-2.0
"""Columns that the sink cannot write, and ways of writing it does not know: refused before a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructType,
    TimestampNTZType,
)

from tests.clusters import Cluster
from tests.without_spark.sink import BINARY, INT, STRING, TEXTS, TIMESTAMP, bodies, save, schema
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError

PACKS: dict[str, Any] = {"messageFormat": "inlongmsg"}

# Column, its types that are refused, and what is expected instead.
WRONG_TYPES: list[tuple[str, list[DataType], str]] = [
    ("value", [INT, DoubleType(), TEXTS, ArrayType(BINARY), StructType().add("a", BINARY)], "binary or string"),
    ("topic", [BINARY, INT, NullType()], "string"),
    ("attributes", [STRING, MapType(STRING, INT), MapType(BINARY, STRING), MapType(STRING, BINARY)], "map<string,stri"),
    ("msg_type", [BINARY, INT], "string"),
    ("msg_time", [LongType(), DateType(), TimestampNTZType()], "timestamp, or string of the form yyyyMMddHHmm"),
    ("key", [INT, LongType(), DecimalType(10, 2)], "binary or string"),
    ("broker_id", [LongType(), ShortType(), STRING], "int"),
    ("partition", [LongType(), ShortType(), STRING], "int"),
    ("inlong_group", [BINARY, INT], "string"),
    ("inlong_stream", [BINARY, INT], "string"),
    ("inlong_time", [STRING, LongType(), TimestampNTZType()], "timestamp"),
    ("inlong_attributes", [STRING, MapType(STRING, LongType())], "map<string,string>"),
    ("corrupt", [STRING, INT], "boolean"),
]
COPIED: dict[str, DataType] = {"message_id": LongType()}  # makes a frame one in the source's own shape
FLAT = [(name, kind, expected) for name, kinds, expected in WRONG_TYPES for kind in kinds]


def problem(columns: StructType, overwrite: bool = False, **given: Any) -> str:
    """Return the error of a stream and of a batch write, which sends no request."""
    raw = {"tubemq.master": "127.0.0.1:1", "topic": "demo", **{name.lower(): text for name, text in given.items()}}
    error_text = set()
    for make in (TubeMQDataSource(raw).writer, TubeMQDataSource(raw).streamWriter):
        with pytest.raises(ConfigError) as caught:
            make(columns, overwrite)
        error_text.add(str(caught.value))
    (sentence,) = error_text
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(("name", "kind", "expected"), FLAT, ids=[f"{name} {kind}" for name, kind, _ in FLAT])
def test_a_column_of_another_type_is_refused(name: str, kind: DataType, expected: str) -> None:
    is_packed = name.startswith("inlong")
    columns: dict[str, DataType] = {"broker_id": INT, "partition": INT} if name in ("broker_id", "partition") else {}
    columns |= {"inlong_group": STRING, "inlong_stream": STRING} if is_packed else {}
    columns |= COPIED if name == "corrupt" else {}
    error_text = problem(schema(kinds={**columns, name: kind}), **(PACKS if is_packed else {}))
    assert error_text.startswith(f"column '{name}' has the type {kind.simpleString()}; expected {expected}")


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (
            {"city": STRING, "Value": STRING},
            "columns 'city', 'Value' are unknown to the sink; the sink accepts value (binary or string),",
        ),
        (
            {"id": STRING, "body": STRING, "value": None},
            "columns 'id', 'body' are unknown to the sink, and column 'value' is missing; the sink accepts value",
        ),
        (
            {"id": STRING, "topic": STRING, "value": None},
            "column 'id' is unknown to the sink, and column 'value' is missing; the sink accepts value",
        ),
        (
            {"topic": STRING, "offset": LongType(), "value": None},
            "column 'value' (binary or string) is missing; the fr",
        ),
        ({"value": None}, "column 'value' (binary or string) is missing; the frame has no columns"),
        ({"inlong_index": INT}, "column 'inlong_index' is a position in a pack that was read; drop it before"),
        ({"city": LongType()}, "column 'city' is unknown to the sink; the sink accepts value (binary or string),"),
        (
            {"corrupt": BooleanType()},
            "column 'corrupt' is unknown to the sink; the sink accepts value (binary or string),",
        ),
        ({"key": TEXTS}, "column 'key' has the type map<string,string>; expected binary or string: use to_json"),
        ({"offset": INT}, "column 'offset' has the type int; expected bigint: cast it"),
        ({"message_id": STRING}, "column 'message_id' has the type string; expected bigint: cast it"),
        ({**COPIED, "city": STRING}, "column 'city' is unknown to the sink; the sink accepts value (binary or string)"),
        ({**COPIED, "inlong_group": STRING}, "column 'inlong_group' is accepted only with messageFormat=inlongmsg"),
        ({"kee": BINARY}, "column 'kee' is unknown to the sink; did you mean 'key'? The sink accepts value"),
        (
            {"vlaue": BINARY, "a": INT, "Topic": STRING, "value": None},
            "columns 'vlaue', 'a', 'Topic' are unknown to the sink, and column 'value' is missing; did you mean "
            "'value', 'topic'? The sink accepts value",
        ),
        ({"inlong_grup": STRING}, "column 'inlong_grup' is unknown to the sink; did you mean 'inlong_group'? The"),
        ({"broker_id": INT}, "column 'broker_id' comes without column 'partition'; a target needs both, or neither"),
        ({"partition": INT}, "column 'partition' comes without column 'broker_id'; a target needs both, or neither"),
        ({"inlong_group": STRING}, "column 'inlong_group' is accepted only with messageFormat=inlongmsg; set that"),
        (
            {"inlong_time": TIMESTAMP, "inlong_attributes": TEXTS},
            "columns 'inlong_time', 'inlong_attributes' are accepted",
        ),
    ],
    ids=str,
)
def test_columns_that_the_sink_cannot_write_are_refused(kinds: Mapping[str, DataType | None], sentence: str) -> None:
    names: dict[str, DataType | None] = {"value": BINARY, **kinds}
    columns = StructType()
    for name, kind in names.items():
        if kind is not None:
            columns.add(name, kind)
    assert problem(columns).startswith(sentence)


def test_a_column_comes_once() -> None:
    twice = StructType().add("value", STRING).add("value", STRING)
    assert problem(twice).startswith("column 'value' is present more than once")


@pytest.mark.column("inlong_group", "inlong_stream")
@pytest.mark.parametrize("name", ["inlong_group", "inlong_stream"])
def test_packs_need_group_and_stream(cluster: Cluster, demo: str, name: str) -> None:
    (other,) = {"inlong_group", "inlong_stream"} - {name}
    with pytest.raises(ConfigError, match=f"^column '{name}' is missing; messageFormat=inlongmsg needs inlong_group a"):
        save(cluster, [{"value": b"a", other: "x"}], demo, **PACKS)
    assert bodies(cluster, demo) == []


@pytest.mark.column("value")
def test_a_value_is_required() -> None:
    assert problem(StructType().add("key", BINARY)) == "column 'value' (binary or string) is missing; the frame has key"


def test_tubemq_only_appends() -> None:
    assert problem(schema(), overwrite=True).startswith(
        "TubeMQ only appends: write with mode('append'), or stream with outp"
    )
