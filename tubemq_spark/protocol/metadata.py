# SPDX-License-Identifier: Apache-2.0
"""Metadata of the cluster: brokers, topics and partitions, and their text forms on the wire.

    broker                      brokerId:host:port            a blank port means 8123 (wire: BrokerInfo)
    topics, for producers       topic#brokerId:partitions:stores,…[#maxMessageSize]
    topics, for consumers (V2)  topic#brokerId:stores:partitions:status,…
    claims, in heartbeats       brokerId:host:port#topic:partitionId

The two topic lists differ in the order of partitions and stores (wire: TopicInfo, ConsumeGroupInfo).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import BROKER_PORT, MASTER_PORT, STORE_PARTITION_BASE

# Limits on a master's lists. The largest known clusters have 1500 brokers, and a topic of 1000 partitions is large.
# A master that lists more is broken, or no master: its lists would fill the memory of this process.
MAX_BROKERS = 10_000
MAX_PARTITIONS_ON_BROKER = 10_000  # of one topic
MAX_PARTITIONS_OF_TOPIC = 100_000
MAX_PARTITIONS = 200_000  # of all topics that one reader or writer uses

TOPIC_NAME = re.compile(r"[a-zA-Z]\w{0,63}", re.ASCII)  # masters also refuse one letter (wire: WebParameterUtils)
_MAX_HOST = 255  # characters, as in the domain name system
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Partition(NamedTuple):
    """A partition of a topic on one broker. `str()` returns TubeMQ's partition key."""

    broker_id: int
    topic: str
    partition_id: int

    @property
    def store_id(self) -> int:
        return self.partition_id // STORE_PARTITION_BASE

    @property
    def store(self) -> tuple[int, str, int]:
        """Broker, topic and store id. The partitions of a store share one index, with one beginning and one end."""
        return self.broker_id, self.topic, self.store_id

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.topic}:{self.partition_id}"


class Broker(NamedTuple):
    broker_id: int
    address: Address

    def __str__(self) -> str:
        return f"broker {self.broker_id} at {self.address}"


@dataclass(frozen=True)
class TopicOnBroker:
    """A topic on one broker: `stores` stores of `partitions` partitions each.

    `max_message_size` is in bytes, None if the master does not report it.
    """

    topic: str
    broker_id: int
    stores: int
    partitions: int
    available: bool = True
    max_message_size: int | None = None

    def all_partitions(self) -> list[Partition]:
        return [partition for store_id in range(self.stores) for partition in self.store_partitions(store_id)]

    def store_partitions(self, store_id: int) -> list[Partition]:
        """Return the partitions of one store, none if the topic does not have it."""
        first = store_id * STORE_PARTITION_BASE
        ids = range(first, first + self.partitions) if store_id < self.stores else ()
        return [Partition(self.broker_id, self.topic, number) for number in ids]


_ADDRESS = re.compile(r"(?:([\w.-]+)|\[([0-9A-Fa-f:.]+(?:%\w+)?)\])(?::(.+))?")


def parse_addresses(text: str, default_port: int = MASTER_PORT) -> tuple[Address, ...]:
    """Return the addresses in `host:port,host`; an IPv6 address stands in brackets. Raise `ValueError` for any other
    text."""
    addresses = []
    for part in text.split(","):
        if (found := _ADDRESS.fullmatch(part.strip())) is None or not _is_host(found):
            raise ValueError(f"{part.strip()!r} is not host:port, with an IPv6 address as [::1]:port")
        name, ipv6, port = found.groups()
        addresses.append(Address(name or ipv6, default_port if port is None else _port(port)))
    return tuple(addresses)


def _is_host(found: re.Match[str]) -> bool:
    if found[2] is None:
        return True
    try:
        return ipaddress.ip_address(found[2]).version == 6
    except ValueError:
        return False


def parse_broker_addresses(text: str) -> tuple[Broker, ...]:
    """Return the brokers in `brokerId=host:port,…`. Raise `ValueError` for any other text, and for a broker that is
    named twice.
    """
    brokers: dict[int, Broker] = {}
    for part in text.split(","):
        number, _, address = (field.strip() for field in part.partition("="))
        if not (number.isascii() and number.isdigit()) or ":" not in address.rpartition("]")[2]:
            raise ValueError(f"{part.strip()!r} is not brokerId=host:port")
        (reached,) = parse_addresses(address)
        if int(number) in brokers:
            raise ValueError(f"it names broker {number} twice")
        brokers[int(number)] = Broker(int(number), reached)
    return tuple(brokers.values())


def parse_broker(text: str, default_port: int = BROKER_PORT) -> Broker | None:
    """Return the broker in `brokerId:host:port`, or None if it is not completely configured (`1::-2`). A blank port
    means `default_port`: over TLS, release 2.5 omits 8124.
    """
    fields = [field.strip() for field in text.split(":")]
    if len(fields) < 3:
        raise ProtocolError(f"'{shown(text)}' is not brokerId:host:port")
    broker_id = parse_number(fields[0], text)
    if len(fields[1]) > _MAX_HOST or not fields[1].isprintable() or " " in fields[1]:
        raise ProtocolError(f"'{shown(text)}' contains an impossible host name")
    try:
        port = _port(fields[2]) if fields[2] else default_port
    except ValueError:
        return None
    return Broker(broker_id, Address(fields[1], port)) if fields[1] else None


def parse_brokers(texts: Sequence[str], default_port: int = BROKER_PORT) -> dict[int, Broker]:
    """Return the brokers by id. Raise `ProtocolError` for a text that is not a broker, or more than `MAX_BROKERS`."""
    check_brokers(len(texts), texts[0] if texts else "")
    found = (parse_broker(text, default_port) for text in texts)
    return {broker.broker_id: broker for broker in found if broker is not None}


def check_brokers(count: int, example: str) -> None:
    """Raise `ProtocolError` if a master lists too many brokers. `example` is one of them, for the error."""
    if count > MAX_BROKERS:
        raise ProtocolError(f"it lists {count} brokers, such as '{shown(example)}'; at most {MAX_BROKERS} are accepted")


def parse_producer_topic(text: str) -> list[TopicOnBroker]:
    """Return the layouts in `topic#brokerId:partitions:stores,…[#maxMessageSize]`, one for each broker."""
    topic, layouts, limit = _segments(text)
    size = parse_number(limit, text) if limit else None
    numbers = (_numbers(layout, 3, text) for layout in layouts)
    return [TopicOnBroker(topic, one, stores, partitions, max_message_size=size) for one, partitions, stores in numbers]


def parse_consumer_topic(text: str) -> list[TopicOnBroker]:
    """Return the layouts in `topic#brokerId:stores:partitions:status,…`, one for each broker."""
    topic, layouts, _ = _segments(text)
    numbers = (_numbers(layout, 4, text) for layout in layouts)
    return [TopicOnBroker(topic, one, stores, partitions, status == 1) for one, stores, partitions, status in numbers]


def parse_layouts(texts: Iterable[str], parse: Callable[[str], list[TopicOnBroker]]) -> list[TopicOnBroker]:
    """Return all layouts of a master's reply; `parse` reads one text."""
    found: list[TopicOnBroker] = []
    for text in texts:
        found += parse(text)
        _check_total(len(found), text)  # a layout without partitions counts, too
    check_sizes(found)
    return found


def check_sizes(layouts: Iterable[TopicOnBroker]) -> None:
    """Raise `ProtocolError` above `MAX_PARTITIONS_OF_TOPIC` partitions of a topic, or `MAX_PARTITIONS` of all."""
    of_topic: dict[str, int] = {}
    for layout in layouts:
        of_topic[layout.topic] = of_topic.get(layout.topic, 0) + layout.stores * layout.partitions
    for topic, count in of_topic.items():
        if count > MAX_PARTITIONS_OF_TOPIC:
            raise ProtocolError(
                f"it lists {count} partitions of topic {shown(topic)}; at most {MAX_PARTITIONS_OF_TOPIC} are accepted"
            )
    _check_total(sum(of_topic.values()), ", ".join(list(of_topic)[:5]))


def _check_total(count: int, example: str) -> None:
    if count > MAX_PARTITIONS:
        raise ProtocolError(
            f"it lists {count} partitions, such as '{shown(example)}'; at most {MAX_PARTITIONS} are accepted"
        )


def partition_info(broker: Broker, partition: Partition) -> str:
    """Return a claim in the form of heartbeats."""
    return f"{broker.broker_id}:{broker.address}#{partition.topic}:{partition.partition_id}"


def parse_failure_info(text: str) -> tuple[int, str, int]:
    """Return error code, topic and partition id of `errCode:brokerId:host:port#topic:partitionId` (heartbeats)."""
    head, hash_, tail = text.partition("#")
    topic, colon, partition_id = tail.rpartition(":")
    if not hash_ or not colon:
        raise ProtocolError(f"'{shown(text)}' is not errCode:brokerId:host:port#topic:partitionId")
    return parse_number(head.partition(":")[0], text), topic, parse_number(partition_id, text)


def _segments(text: str) -> tuple[str, list[str], str]:
    topic, layouts, rest = (segment.strip() for segment in (text + "##").split("#", 2))
    if not topic or "#" not in text:
        raise ProtocolError(f"'{shown(text)}' is not a description of a topic")
    check_brokers(layouts.count(",") + 1, text)
    return topic, [layout for layout in layouts.split(",") if layout.strip()], rest.strip("#").strip()


def _numbers(layout: str, at_least: int, text: str) -> list[int]:
    fields = layout.split(":", at_least)
    if len(fields) < at_least:
        raise ProtocolError(f"'{shown(layout)}' in '{shown(text)}' has {len(fields)} fields, not {at_least}")
    numbers = [parse_number(field, text) for field in fields[:at_least]]
    one, other = numbers[1:3]
    if not (0 <= one <= STORE_PARTITION_BASE and 0 <= other <= STORE_PARTITION_BASE):
        raise ProtocolError(f"'{shown(layout)}' in '{shown(text)}' has an impossible number of stores or partitions")
    if one * other > MAX_PARTITIONS_ON_BROKER:
        raise ProtocolError(
            f"'{shown(layout)}' in '{shown(text)}' has {one * other} partitions of a topic on one broker; at most "
            f"{MAX_PARTITIONS_ON_BROKER} are accepted"
        )
    return numbers


def parse_number(field: str, text: str) -> int:
    if _NUMBER.fullmatch(field) is None:  # int() also accepts blanks, underscores and digits of all scripts
        raise ProtocolError(f"'{shown(field)}' in '{shown(text)}' is not a number")
    return int(field)


def _port(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port")
    return int(text)
