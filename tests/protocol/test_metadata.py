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
    parse_broker,
    parse_brokers,
    parse_consumer_topic,
    parse_failure_info,
    parse_master_addresses,
    parse_producer_topic,
    partition_info,
)
from tubemq_spark.testing.master.text_forms import (
    SubscribeInfo,
    format_broker,
    format_consumer_topic,
    format_producer_topic,
    parse_held_partitions,
    parse_subscribe_info,
)

names = st.from_regex(r"[a-zA-Z]\w{0,9}", fullmatch=True)
hosts = st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True)
ports = st.integers(1, 65535)
ids = st.integers(0, 2**31 - 1)
counts = st.integers(1, 100)
brokers = st.builds(Broker, ids, st.builds(Address, hosts, ports))
# Client ids and groups, without the separators of the text forms
members = st.from_regex(r"[^@#\s]{1,9}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h", [("h", 8715)]),
        ("h:1", [("h", 1)]),
        ("10.0.0.1:8715,10.0.0.2", [("10.0.0.1", 8715), ("10.0.0.2", 8715)]),
        (" a:1 , b ", [("a", 1), ("b", 8715)]),
    ],
)
def test_master_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_master_addresses(text) == tuple(Address(*address) for address in addresses)


NO_ADDRESSES = (
    "|h:|:1|h,|h:0|h:65536|h:-1|h:x|h:1_0|h:+1|h:１|h: 1|a b|http://h:1|tubemq://h|h:1:2|::1|[::1]:80|h:1;g:2"
)


@pytest.mark.parametrize("text", NO_ADDRESSES.split("|"))
def test_refuses_invalid_master_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (host:port|port)"):
        parse_master_addresses(text)


@given(st.lists(st.tuples(hosts, ports), min_size=1, max_size=4))
def test_master_addresses_round_trip(addresses: list[tuple[str, int]]) -> None:
    expected = tuple(Address(*address) for address in addresses)
    assert parse_master_addresses(",".join(map(str, expected))) == expected


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
    with pytest.raises(ProtocolError, match="is no"):
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


@given(brokers, st.sampled_from([8123, 8124]), st.booleans())
def test_brokers_round_trip(broker: Broker, default_port: int, usual: bool) -> None:
    if usual:
        broker = Broker(broker.broker_id, Address(broker.address.host, default_port))
    text = format_broker(broker, default_port)
    assert parse_broker(text, default_port) == broker
    assert parse_brokers([text], default_port) == {broker.broker_id: broker}


@pytest.mark.parametrize(("port", "text"), [(8123, "1:h: "), (8124, "1:h:8124"), (9000, "1:h:9000")])
def test_the_default_port_of_a_broker_is_blank(port: int, text: str) -> None:
    assert format_broker(Broker(1, Address("h", port))) == text


def test_the_default_port_is_a_parameter() -> None:
    assert format_broker(Broker(1, Address("h", 8124)), 8124) == "1:h: "
    assert format_broker(Broker(1, Address("h", 8123)), 8124) == "1:h:8123"


layouts_of_a_topic = st.lists(st.tuples(ids, counts, counts, st.booleans()), min_size=1, max_size=4)


@given(names, layouts_of_a_topic, st.none() | ids)
def test_topics_for_producers_round_trip(topic: str, found: list[tuple[int, int, int, bool]], size: int | None) -> None:
    layouts = [TopicOnBroker(topic, broker, stores, parts, max_message_size=size) for broker, stores, parts, _ in found]
    assert parse_producer_topic(format_producer_topic(layouts, with_size=True)) == layouts


@given(names, layouts_of_a_topic)
def test_topics_for_consumers_round_trip(topic: str, found: list[tuple[int, int, int, bool]]) -> None:
    layouts = [TopicOnBroker(topic, *one) for one in found]
    assert parse_consumer_topic(format_consumer_topic(layouts)) == layouts


@pytest.mark.parametrize(
    ("size", "with_size", "text"),
    [(None, False, "demo#1:3:2"), (None, True, "demo#1:3:2#"), (9, False, "demo#1:3:2"), (9, True, "demo#1:3:2#9")],
)
def test_the_message_size_of_a_topic_for_producers(size: int | None, with_size: bool, text: str) -> None:
    layout = TopicOnBroker("demo", 1, stores=2, partitions=3, max_message_size=size)
    assert format_producer_topic([layout], with_size=with_size) == text


@given(names, st.lists(st.tuples(ids, ids), min_size=1, max_size=5))
def test_held_partitions_round_trip(topic: str, found: list[tuple[int, int]]) -> None:
    partitions = [Partition(broker_id, topic, number) for broker_id, number in found]
    text = f"{topic}#" + ",".join(f"{broker_id}:{number}" for broker_id, number in found)
    assert parse_held_partitions(text) == partitions


@pytest.mark.parametrize("text", ["", "a", "a#", "a#1", "a#1:", "a#:1", "a#1:x", "a#1:0,,2:0"])
def test_refuses_invalid_held_partitions(text: str) -> None:
    with pytest.raises(ProtocolError, match="is no"):
        parse_held_partitions(text)


def test_a_list_of_held_partitions_may_end_in_commas() -> None:
    assert parse_held_partitions("a#1:0,2:10001,,") == [Partition(1, "a", 0), Partition(2, "a", 10_001)]


def test_a_subscribe_info() -> None:
    info = SubscribeInfo("c", "g", Broker(1, Address("127.0.0.1", 8123)), Partition(1, "demo", 10_002))
    assert str(info) == "c@g#1:127.0.0.1:8123#demo:10002"


@given(members, members, brokers, names, ids)
def test_subscribe_infos_round_trip(client_id: str, group: str, broker: Broker, topic: str, number: int) -> None:
    info = SubscribeInfo(client_id, group, broker, Partition(broker.broker_id, topic, number))
    assert parse_subscribe_info(str(info)) == info


@pytest.mark.parametrize("text", ["", "c@g#1:h:1", "c#1:h:1#t:0", "c@g#1:h#t:0", "c@g#1:h:1#t", "c@g#x:h:1#t:0"])
def test_refuses_invalid_subscribe_infos(text: str) -> None:
    with pytest.raises(ProtocolError, match="is no"):
        parse_subscribe_info(text)


NO_TOPICS = "|demo|#1:3:1:1|demo#1|demo#1:3|demo#x:3:1:1|demo#1:-1:1:1|demo#1:3:10001:1|demo#1:²:1:1|demo#1: 3:1:1"


@pytest.mark.parametrize("parse", [parse_producer_topic, parse_consumer_topic])
@pytest.mark.parametrize("text", NO_TOPICS.split("|"))
def test_refuses_invalid_topics(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ProtocolError):
        parse(text)


def test_refuses_a_message_size_that_is_no_number() -> None:
    with pytest.raises(ProtocolError, match="'x' in 'demo#1:3:1#x' is no number"):
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


@given(st.integers(0, 999), ids, hosts, ports, names, ids)
def test_failure_infos_round_trip(code: int, broker: int, host: str, port: int, topic: str, partition: int) -> None:
    info = partition_info(Broker(broker, Address(host, port)), Partition(broker, topic, partition))
    assert parse_failure_info(f"{code}:{info}") == (code, topic, partition)


@pytest.mark.parametrize(
    "text", ["", "411", "411:1:h:1", "411:1:h:1#demo", "x:1:h:1#demo:1", "411:1:h:1#demo:x", "#demo:1"]
)
def test_refuses_invalid_failure_infos(text: str) -> None:
    with pytest.raises(ProtocolError, match="is no"):
        parse_failure_info(text)


@given(
    st.sampled_from(
        [
            parse_broker,
            parse_producer_topic,
            parse_consumer_topic,
            parse_failure_info,
            parse_held_partitions,
            parse_subscribe_info,
        ]
    ),
    st.text() | st.text("0123456789:#,- x@", max_size=30),
)
def test_any_text_gives_values_or_a_protocol_error(parse: Callable[[str], object], text: str) -> None:
    with suppress(ProtocolError):
        parse(text)


@given(st.text() | st.text("0123456789:, h.", max_size=30))
def test_any_text_gives_addresses_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        for address in parse_master_addresses(text):
            assert address.host
            assert 0 < address.port < 65536
