# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.message import decode_attributes, encode_attributes
from tubemq_spark.protocol.stamp import RESERVED, Origin, Stamp, encode, parse

plain_text = st.text(st.characters(exclude_characters=",=", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(10**18) + 1, 10**18 - 1)
origins = st.builds(Origin, plain_text.filter(bool), numbers, numbers)
digests = st.none() | st.text("0123456789abcdef", min_size=16, max_size=16)
own = st.dictionaries(
    plain_text.filter(lambda key: key and key not in RESERVED | {"$msgType$", "$msgTime$"}), plain_text
)
ORIGIN = Origin("q", 7, 2)


def stamped(origin: Origin, row: int, digest: str | None) -> bytes:
    return encode(origin) + str(row).encode() + (b"" if digest is None else b",spark_digest=" + digest.encode())


def test_a_stamp_in_bytes() -> None:
    assert stamped(ORIGIN, 9, None) == b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=9"
    assert stamped(ORIGIN, 9, "0123456789abcdef").endswith(b",spark_row=9,spark_digest=0123456789abcdef")


@given(origins, numbers, digests, own, st.none() | st.just("kind"))
def test_stamps_round_trip_behind_other_attributes(
    origin: Origin, row: int, digest: str | None, own: dict[str, str], msg_type: str | None
) -> None:
    others = encode_attributes(own, msg_type, None)
    attributes = others + b"," * bool(others) + stamped(origin, row, digest)
    assert parse(attributes) == Stamp(origin, row, digest)


@given(origins, numbers, digests)
def test_readers_get_stamps_as_attributes_with_reserved_names(origin: Origin, row: int, digest: str | None) -> None:
    own = decode_attributes(stamped(origin, row, digest)).own
    assert own is not None
    assert dict(own) == {
        "spark_id": origin.id,
        "spark_batch": str(origin.batch),
        "spark_partition": str(origin.partition),
        "spark_row": str(row),
    } | ({} if digest is None else {"spark_digest": digest})
    assert set(own) <= RESERVED


@pytest.mark.parametrize(
    "attributes",
    [
        b"",
        b"spark_id=q",
        b"spark_id=q,spark_batch=7,spark_partition=2",
        b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=",
        b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=x",
        b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=9x",
        b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=9\n",
        b"spark_id=q,spark_batch=7,spark_partition=2,spark_row=1234567890123456789",
        b"spark_id=,spark_batch=7,spark_partition=2,spark_row=9",
        b"spark_id=\xff,spark_batch=7,spark_partition=2,spark_row=9",
        b"spark_id=q,spark_batch=7,other=1,spark_partition=2,spark_row=9",
        b"my_spark_id=q,spark_batch=7,spark_partition=2,spark_row=9",
        b"note=spark_id=q,spark_batch=7,spark_partition=2,spark_row=9",
        b"note=1\nspark_id=q,spark_batch=7,spark_partition=2,spark_row=9",
    ],
)
def test_incomplete_stamps_are_none(attributes: bytes) -> None:
    assert parse(attributes) is None


@pytest.mark.parametrize("digest", [b"", b"0123", b"0123456789abcdef0", b"0123456789ABCDEF"])
def test_an_invalid_digest_is_omitted(digest: bytes) -> None:
    assert parse(encode(ORIGIN) + b"9,spark_digest=" + digest) == Stamp(ORIGIN, 9, None)


@pytest.mark.parametrize("name", ["", "a,b", "a=b"])
def test_refuses_an_id_that_cannot_be_in_a_stamp(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the id of a stamp"):
        encode(Origin(name, 0, 0))
