# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.metadata import (
    Address,
    Broker,
    Partition,
    TopicOnBroker,
    parse_addresses,
    parse_broker,
    parse_brokers,
    parse_consumer_topic,
    parse_failure_info,
    parse_producer_topic,
    partition_info,
)

hosts = st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True) | st.ip_addresses(v=6).map(str)
ports = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h", [("h", 8715)]),
        ("[::1]:8716, [fe80::1%eth0]", [("::1", 8716), ("fe80::1%eth0", 8715)]),
        ("h:1", [("h", 1)]),
        ("10.0.0.1:8715,10.0.0.2", [("10.0.0.1", 8715), ("10.0.0.2", 8715)]),
        (" a:1 , b ", [("a", 1), ("b", 8715)]),
    ],
)
def test_master_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == tuple(Address(*address) for address in addresses)


NO_ADDRESSES = "|h:|:1|h,|h:0|h:65536|h:-1|h:x|h:1_0|h:+1|h:１|h: 1|a b|http://h:1|tubemq://h|h:1:2|::1|[::1]:|[::1]80|[h]:80|[1.2.3.4]:80|[::g]:1|[]:80|h:1;g:2"


@pytest.mark.parametrize("text", NO_ADDRESSES.split("|"))
def test_refuses_invalid_master_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not (host:port|a port)"):
        parse_addresses(text)


@given(st.lists(st.tuples(hosts, ports), min_size=1, max_size=4))
def test_master_addresses_round_trip(addresses: list[tuple[str, int]]) -> None:
    expected = tuple(Address(*address) for address in addresses)
    assert parse_addresses(",".join(map(str, expected))) == expected


@pytest.mark.parametrize(
    ("text", "broker"),
    [
        ("1:127.0.0.1: ", Broker(1, Address("127.0.0.1", 8123))),
        ("1:127.0.0.1:", Broker(1, Address("127.0.0.1", 8123))),
        ("2:10.0.0.7:8200", Broker(2, Address("10.0.0.7", 8200))),
        (" 2 : h : 8200 ", Broker(2, Address("h", 8200))),
        ("1::-2", None),
        ("1::8123", None),
        ("1:h:-2", None),
        ("1:h:0", None),
        ("1:h:65536", None),
        ("1:h:x", None),
    ],
)
def test_brokers(text: str, broker: Broker | None) -> None:
    assert parse_broker(text) == broker


@pytest.mark.parametrize("text", ["", "1", "1:h", "x:h:1", ":h:1", "1_0:h:1", "٣:h:1"])
def test_refuses_invalid_brokers(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not "):
        parse_broker(text)


def test_a_list_of_brokers_omits_incompletely_configured_ones() -> None:
    assert parse_brokers(["2:h:1", "1::-2", "3:g: "]) == {
        2: Broker(2, Address("h", 1)),
        3: Broker(3, Address("g", 8123)),
    }
    assert parse_brokers([]) == {}


@pytest.mark.parametrize(
    ("text", "layouts"),
    [
        ("demo#1:3:1", [TopicOnBroker("demo", 1, stores=1, partitions=3)]),
        ("demo#1:3:1#", [TopicOnBroker("demo", 1, stores=1, partitions=3)]),
        ("demo#", []),
        (
            "demo#1:3:1,2:3:2#1048576",
            [
                TopicOnBroker("demo", 1, stores=1, partitions=3, max_message_size=1_048_576),
                TopicOnBroker("demo", 2, stores=2, partitions=3, max_message_size=1_048_576),
            ],
        ),
    ],
)
def test_topics_for_producers_have_partitions_before_stores(text: str, layouts: list[TopicOnBroker]) -> None:
    assert parse_producer_topic(text) == layouts


@pytest.mark.parametrize(
    ("text", "layouts"),
    [
        ("demo#1:1:3:1", [TopicOnBroker("demo", 1, stores=1, partitions=3)]),
        (
            "demo#1:2:3:0,2:2:3:1",
            [
                TopicOnBroker("demo", 1, stores=2, partitions=3, available=False),
                TopicOnBroker("demo", 2, stores=2, partitions=3),
            ],
        ),
    ],
)
def test_topics_for_consumers_have_stores_before_partitions(text: str, layouts: list[TopicOnBroker]) -> None:
    assert parse_consumer_topic(text) == layouts


NO_TOPICS = "|demo|#1:3:1:1|demo#1|demo#1:3|demo#x:3:1:1|demo#1:-1:1:1|demo#1:3:10001:1|demo#1:²:1:1|demo#1: 3:1:1"


@pytest.mark.parametrize("parse", [parse_producer_topic, parse_consumer_topic])
@pytest.mark.parametrize("text", NO_TOPICS.split("|"))
def test_refuses_invalid_topics(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ProtocolError):
        parse(text)


def test_refuses_a_message_size_that_is_no_number() -> None:
    with pytest.raises(ProtocolError, match="'x' in 'demo#1:3:1#x' is not a number"):
        parse_producer_topic("demo#1:3:1#x")


def test_partition_ids_count_by_store() -> None:
    partitions = TopicOnBroker("demo", 7, stores=2, partitions=3).all_partitions()
    assert [partition.partition_id for partition in partitions] == [0, 1, 2, 10_000, 10_001, 10_002]
    assert [partition.store_id for partition in partitions] == [0, 0, 0, 1, 1, 1]
    assert str(partitions[4]) == "7:demo:10001"


def test_a_claim_in_a_heartbeat_and_in_its_failure_info() -> None:
    info = partition_info(Broker(1, Address("127.0.0.1", 8123)), Partition(1, "demo", 10_002))
    assert info == "1:127.0.0.1:8123#demo:10002"
    assert parse_failure_info(f"411:{info}") == (411, "demo", 10_002)


@pytest.mark.parametrize(
    "text", ["", "411", "411:1:h:1", "411:1:h:1#demo", "x:1:h:1#demo:1", "411:1:h:1#demo:x", "#demo:1"]
)
def test_refuses_invalid_failure_infos(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not "):
        parse_failure_info(text)


@given(st.text() | st.text("0123456789:, h.", max_size=30))
def test_any_text_gives_addresses_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        for address in parse_addresses(text):
            assert address.host
            assert 0 < address.port < 65536
