# SPDX-License-Identifier: Apache-2.0
"""A topic stores messages as producers send them, and brokers filter them by type."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.clusters.servers import EACH_FRAMING
from tests.inlong_packs import message_obj, message_objs, snappy
from tests.messages import settings
from tests.stored import stored_in
from tests.without_spark.sink import read_back, save
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.compression import CODECS
from tubemq_spark.protocol.message import Attributes, encode_attributes, parse_msg_time

pytestmark = pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)

TIME = "202402292359"
SAME_HASH = ("Aa", "BB")  # to the brokers, which compare Java's hash codes
MESSAGES: list[tuple[bytes, Mapping[str, str] | None, str | None, str | None]] = [
    (b"plain", None, None, None),
    (b"attributes", {"city": "Zürich", "empty": "", "日本": "語"}, None, None),
    (b"a type", None, "news", None),
    (b"type and time", {"a": "1"}, "news", TIME),
    (b"other type", {"a": "2"}, SAME_HASH[0], TIME),
    (b"same hash", None, SAME_HASH[1], TIME),
    (b"", {"only": "attributes"}, None, None),
    (bytes(range(256)), None, None, None),
    (b"m" * (1 << 20), {"a": "3"}, "long", TIME),
    (b"l" * (1 << 20), {"k": "v" * (10_240 - 52 - 4 - 2)}, None, None),  # the longest that brokers return from memory
]


def send(cluster: Cluster, topic: str) -> None:
    with Producer(settings(cluster)) as producer:
        for body, own, msg_type, msg_time in MESSAGES:
            producer.send(topic, body, encode_attributes(own, msg_type, msg_time), msg_type, msg_time)


def test_messages_of_all_shapes_are_stored_as_sent(cluster: Cluster) -> None:
    topic = cluster.new_topic("three")
    send(cluster, topic)
    stored = {message.body: message.attributes for message in stored_in(cluster, topic)}
    assert stored == {
        body: Attributes(own, msg_type, parse_msg_time(msg_time) if msg_time else None)
        for body, own, msg_type, msg_time in MESSAGES
    }


@pytest.mark.parametrize(
    ("filters", "types"),
    [
        (["news"], {"news"}),
        (["news", "long"], {"news", "long"}),
        ([" news "], {"news"}),
        ([SAME_HASH[0]], set(SAME_HASH)),
        (["nothing"], set()),
    ],
    ids=["one", "two", "spaces", "same hash", "none"],
)
def test_brokers_filter_messages_by_type(cluster: Cluster, filters: list[str], types: set[str]) -> None:
    topic = cluster.new_topic("three")
    send(cluster, topic)
    found = Counter(message.body for message in stored_in(cluster, topic, filters=filters))
    assert found == Counter(body for body, _, msg_type, _ in MESSAGES if msg_type in types)


def test_all_formats_of_inlong_are_read_from_one_topic(cluster: Cluster) -> None:
    topic, objs = (
        cluster.new_topic("one"),
        message_objs([message_obj(1_709_251_140_123, b"v1 a"), message_obj(0, b"v1 b")]),
    )
    of_v1 = {"version": "1", "inlongGroupId": "g", "inlongStreamId": "s"}
    plain: list[dict[str, Any]] = [
        {"value": objs, "attributes": of_v1},
        {"value": snappy(objs), "attributes": {**of_v1, "compressType": "INLONG_SNAPPY"}},
        {"value": b"plain", "attributes": {**of_v1, "version": "0"}},
    ]
    save(cluster, plain, topic)
    packed = {"value": b"v0", "inlong_group": "g", "inlong_stream": "s"}
    save(cluster, [packed] * 3, topic, messageFormat="inlongmsg", inlongPackRows=3, inlongPackCompression="snappy")
    found = read_back(cluster, topic, messageFormat="inlong")
    values = Counter(row["value"] for row in found)
    assert values == {b"v1 a": 2, b"v1 b": 2, b"plain": 1, b"v0": 3}
    assert {(row["inlong_group"], row["inlong_stream"]) for row in found} == {("g", "s")}


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize(
    ("form", "codec", "inside"),
    [
        *(("inlongmsg", codec, "none") for codec in CODECS),
        *(("inlongmsg", codec, "snappy") for codec in ("none", "snappy")),
        *(("protobuf", "none", inside) for inside in ("none", "gzip", "snappy")),
    ],
)
def test_packs_that_do_not_compress_are_stored(
    cluster: Cluster, rng: random.Random, form: str, codec: str, inside: str, keys: int
) -> None:
    """Their compression makes them longer, also those that are nearly as long as the topic allows."""
    topic, limit = cluster.new_topic("stores"), 1 << 20
    values: list[bytes] = []
    for _ in range(3):  # each time enough short ones to fill the pack of the long one
        values += [rng.randbytes(limit - 4000), *(rng.randbytes(rng.randrange(20, 30)) for _ in range(160))]
    rows = [
        {"value": value, "inlong_group": "g", "inlong_stream": "s", "key": b"%d" % key}
        for value in values
        for key in range(keys)
    ]
    packs: dict[str, Any] = {
        "messageFormat": "inlongmsg",
        "inlongPackRows": 1000,
        "inlongPackBytes": 10 * limit,
        "inlongPackFormat": form,
        "inlongPackCompression": inside,
        "compression": codec,
    }
    written = save(cluster, rows, topic, failedRows="drop", **packs)
    found = [row["value"] for row in read_back(cluster, topic, messageFormat="inlong")]
    assert sorted(found) == sorted(value for value in values for _ in range(keys))
    assert sum(written.rows.values()) < 12 * keys
