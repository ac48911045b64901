# SPDX-License-Identifier: Apache-2.0
"""Attributes that are decoded as columns are those that `decode_attributes` returns, header by header."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tubemq_spark.protocol.message import decode_attributes
from tubemq_spark.source.arrow_arrays import binaries
from tubemq_spark.source.attribute_columns import AttributeColumns, columns_of, count_attributes, decode_headers

ZONE = ZoneInfo("Asia/Shanghai")
TIME = "$msgTime$=202402292359"

keys = st.sampled_from(["k", "n", "$msgType$", "$msgTime$", "spark_msg_millis", "", "ключ"]) | st.text(max_size=3)
values = st.sampled_from(["a", "b=c", "", "202402292359", "999", "59999", "60000", "٣", "x"]) | st.text(max_size=3)
parts = st.tuples(keys, st.sampled_from(["=", ""]), values).map("".join)
texts = st.lists(parts, max_size=6).map(",".join)


def decoded(headers: Sequence[bytes]) -> AttributeColumns | None:
    found = decode_headers(binaries(headers), ZONE)
    for column in found or ():
        column.validate(full=True)
    return found


@given(st.lists(texts, max_size=5))
@example([f"{TIME},$msgType$=a,k=v", "", "k=v,k=w,k", TIME, ",,", f"{TIME},{TIME},$msgType$=a,$msgType$=b", "=x,=y"])
@example([f"{TIME},spark_msg_millis=7,spark_msg_millis=8", "spark_msg_millis=7", "$msgTime$=20240229235,$msgTime$=x"])
def test_columns_have_what_is_decoded_one_by_one(headers: list[str]) -> None:
    encoded = [header.encode() for header in headers]
    found = decoded(encoded)
    assert found is not None
    expected = columns_of([decode_attributes(header, ZONE) for header in encoded])
    assert [column.to_pylist() for column in found] == [column.to_pylist() for column in expected]
    assert count_attributes(binaries(encoded)).tolist() == [header.count(",") + bool(header) for header in headers]


@pytest.mark.parametrize("special", [b"k=\xff", b"\xc3", b"k=v,spark_compression=zstd", b"spark_compression"])
def test_headers_that_need_more_work(special: bytes) -> None:
    """The last one and the one before make text together."""
    assert decoded([b"k=v", special, b"\xa9=v" if special == b"\xc3" else b"k=v"]) is None
