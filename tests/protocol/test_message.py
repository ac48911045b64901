# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.auth import Credentials, broker_authorization
from tubemq_spark.protocol.message import (
    MILLIS_KEY,
    NO_ATTRIBUTES,
    Attributes,
    check_sum,
    decode_attributes,
    encode_attributes,
    encode_content,
    encode_payload,
    encode_target,
    format_msg_time,
    parse_msg_time,
    parse_zone,
    split_payload,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.testing.java import (
    filter_code,
)

RESERVED = ("$msgType$", "$msgTime$")
plain_text = st.text(st.characters(exclude_characters=",=", exclude_categories=["Cs"]), max_size=12)
keys = plain_text.filter(lambda key: key and key not in RESERVED)
types = plain_text.map(str.strip).filter(bool)
minutes = st.datetimes(timezones=st.just(timezone.utc)).map(lambda moment: moment.replace(second=0, microsecond=0))

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(("payload", "crc"), [(b"", 0), (b"123456789", 0x4BF43926), (b"a", 0x68B7BE43)])
def test_check_sum_is_31_bits_of_crc32(payload: bytes, crc: int) -> None:
    """CRC-32 of 123456789 is CBF43926, the published check value."""
    assert check_sum(payload) == crc


@pytest.mark.parametrize(
    ("body", "attributes", "payload", "flag"),
    [
        (b"body", b"", b"body", 0),
        (b"body", b"k=v", b"\0\0\0\3k=vbody", 1),
        (b"", b"k=v", b"\0\0\0\3k=v", 1),
    ],
)
def test_payload(body: bytes, attributes: bytes, payload: bytes, flag: int) -> None:
    assert encode_payload(body, attributes) == (payload, flag)
    assert split_payload(payload, flag) == (attributes, body)


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\5abcd", b"\x7f\xff\xff\xffabcd"])
def test_refuses_attributes_longer_than_the_payload(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"a message of {len(payload)} bytes"):
        split_payload(payload, 1)


@pytest.mark.parametrize("body", [b"\xff\xff\xff\xffabcd", b"\x80\0\0\0"])
def test_a_payload_with_cleared_attributes_keeps_its_whole_body(body: bytes) -> None:
    assert split_payload(body, 1) == (b"", body)


NEW_YEAR = micros(datetime(2024, 1, 1, 0, 5, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        (b"", NO_ATTRIBUTES),
        (b"k=v", Attributes({"k": "v"})),
        (b"k=v,n=", Attributes({"k": "v", "n": ""})),
        (b"k", Attributes({"k": ""})),
        (b",,k=v,", Attributes({"k": "v"})),
        (b"k=1,k=2", Attributes({"k": "1"})),
        ("größe=½".encode(), Attributes({"größe": "½"})),
        (b"k=\xff", Attributes({"k": "\ufffd"})),
        (b"$msgType$=blue", Attributes(None, "blue")),
        (b"$msgType$=blue,$msgType$=red", Attributes(None, "blue")),
        (b"$msgType$=blue,$msgTime$=202401010005,k=v", Attributes({"k": "v"}, "blue", NEW_YEAR)),
        (b"$msgTime$=202401010005,$msgTime$=202401010006", Attributes(None, None, NEW_YEAR)),
        *(
            (b"$msgTime$=202401010005,spark_msg_millis=" + text, Attributes({MILLIS_KEY: text.decode()}, None, moment))
            for text, moment in [
                (b"59999", NEW_YEAR + 59_999_000),
                (b"00001", NEW_YEAR + 1000),
                *((text, NEW_YEAR) for text in (b"60000", b"", b"-1", b"+1", b" 1", b"1.5", b"1" * 5000)),
            ]
        ),
        (b"spark_msg_millis=5", Attributes({MILLIS_KEY: "5"})),
        (b"$msgTime$=soon", Attributes({"$msgTime$": "soon"})),
        (b"$msgTime$=202413010005", Attributes({"$msgTime$": "202413010005"})),
    ],
)
def test_decodes_attributes(data: bytes, attributes: Attributes) -> None:
    assert decode_attributes(data) == attributes


def test_encodes_tubemqs_own_attributes_first() -> None:
    assert encode_attributes({"a": "1", "b": ""}, "blue", "202401010005") == (
        b"$msgType$=blue,$msgTime$=202401010005,a=1,b="
    )
    assert encode_attributes({"a": "1"}, None, None) == b"a=1"


@pytest.mark.parametrize("own", [None, {}])
def test_no_attributes_encode_to_no_bytes(own: dict[str, str] | None) -> None:
    assert encode_attributes(own, None, None) == b""


@pytest.mark.parametrize("blank", ["", " ", "\t\u2003"])
def test_a_blank_type_is_none(blank: str) -> None:
    assert encode_attributes({"a": "b"}, blank, "202601311205") == b"$msgTime$=202601311205,a=b"


@given(st.none() | st.dictionaries(keys, plain_text, min_size=1), st.none() | types, st.none() | minutes)
def test_attributes_round_trip(own: dict[str, str] | None, msg_type: str | None, moment: datetime | None) -> None:
    text = None if moment is None else format_msg_time(moment)
    decoded = decode_attributes(encode_attributes(own, msg_type, text))
    assert decoded == Attributes(own, msg_type, None if moment is None else micros(moment))


@pytest.mark.parametrize(
    ("own", "msg_type", "msg_time", "reason"),
    [
        ({"a,b": "1"}, None, None, "the attribute key 'a,b' contains"),
        ({"a=b": "1"}, None, None, "the attribute key 'a=b' contains"),
        ({"a": "1,2"}, None, None, "the attribute 'a' '1,2' contains"),
        ({"a": "1=2"}, None, None, "the attribute 'a' '1=2' contains"),
        ({"": "1"}, None, None, "an empty key"),
        ({"$msgType$": "x"}, None, None, "use the columns msg_type and msg_time"),
        ({"$msgTime$": "x"}, None, None, "use the columns msg_type and msg_time"),
        ({"spark_compression": "gzip"}, None, None, "is reserved: leave it out, and use option 'compression'"),
        ({"k" * 100: "a," * 1000}, None, None, r"the attribute 'k{60}'… '(a,){30}'… contains"),
        (None, " a", None, "msg_type ' a' has blanks around it: write trim"),
        (None, "a" * 256, None, "msg_type 'a{60}'… has 256 characters; at most 255 can be sent: write a shorter one"),
        (None, "a,b", None, "msg_type 'a,b' contains"),
        (None, None, "2024010100", "not a time of the form yyyyMMddHHmm: write a timestamp, a text such as"),
    ],
)
def test_refuses_invalid_attributes(
    own: dict[str, str] | None, msg_type: str | None, msg_time: str | None, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason.replace("$", r"\$")):
        encode_attributes(own, msg_type, msg_time)


@pytest.mark.parametrize(
    "text",
    ["", "20240101000", "2024010100055", "202401012400", "202402300000", "000001010000", "2024-1-10005", "２" * 12],
)
def test_texts_that_are_no_time(text: str) -> None:
    assert parse_msg_time(text) is None


@pytest.mark.parametrize(("text", "zone"), [("000101010000", "Asia/Shanghai"), ("999912312359", "America/New_York")])
def test_a_time_whose_year_utc_does_not_have_is_no_time(text: str, zone: str) -> None:
    assert parse_msg_time(text) is not None
    assert parse_msg_time(text, parse_zone(zone)) is None


@given(minutes)
def test_times_round_trip(moment: datetime) -> None:
    text = format_msg_time(moment)
    assert len(text) == 12
    assert parse_msg_time(text) == micros(moment)


@given(st.datetimes(min_value=datetime(1900, 1, 2), max_value=datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_encodes_times_in_utc(naive: datetime, offset: int) -> None:
    assume(naive.second or naive.microsecond or offset)
    there = naive.replace(tzinfo=timezone(timedelta(minutes=offset)))
    utc = there.astimezone(timezone.utc)
    assert format_msg_time(there) == format_msg_time(utc) == utc.strftime("%Y%m%d%H%M")


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("abc", 96354), ("Aa", 2112), ("BB", 2112), ("é", 233), ("😀", 1772899)],
)
def test_filter_codes(text: str, code: int) -> None:
    assert filter_code(text) == code


def test_filter_codes_are_java_ints() -> None:
    assert filter_code("polygenelubricants") == -(1 << 31)


@given(
    payload=st.binary(max_size=300),
    flag=st.sampled_from([0, 1]),
    msg_type=st.none() | st.text(max_size=20),
    msg_time=st.none() | st.just("202611210830"),
    partition_id=st.sampled_from([0, 2, 10_001]),
    token=st.integers(-2, 2**63 - 1),
    credentials=st.none() | st.just(Credentials("me", "secret")),
)
def test_target_and_content_are_one_request(
    payload: bytes,
    flag: int,
    msg_type: str | None,
    msg_time: str | None,
    partition_id: int,
    token: int,
    credentials: Credentials | None,
) -> None:
    authorization = broker_authorization(credentials, token, 1_700_000_000_000, 17)
    target = encode_target("client", Partition(3, "demo", partition_id), authorization, "192.168.0.7")
    content = encode_content(payload, flag, msg_type, msg_time)

    request = broker_pb.SendMessageRequestP2B.FromString(target + content)

    assert request == broker_pb.SendMessageRequestP2B(
        clientId="client",
        topicName="demo",
        partitionId=partition_id,
        data=payload,
        flag=flag,
        checkSum=zlib.crc32(payload) & 0x7FFFFFFF,
        sentAddr=0xC0A80007 - (1 << 32),
        msgType=msg_type,
        msgTime=msg_time,
        authInfo=authorization,
    )
