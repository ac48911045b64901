# SPDX-License-Identifier: Apache-2.0
"""Validation of the parameters of requests (wire: PBParameterUtils).

Each function returns the cleaned value, or raises `DeclinedError` with the server's own text. For texts of
a wrong shape some raise `RefusalError`, as a handler that threw. `protocol.metadata` has the forms that a client reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from tubemq_spark.protocol.constants import MAX_CLIENT_ID, OFFSET_HISTORY
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.dispatch import DeclinedError, bad_request, bad_shape
from tubemq_spark.testing.java import is_blank, parse_long, set_text, split, trim

_MAX_TOPICS = 1024
_PARTITION_OFFSETS = "[Parameter error] unformatted Partition-Offset value : {} must be aa:bbb:ccc=val1,ddd:eee:ff=val2"


class Field(Enum):
    """A required text field and its maximum length."""

    CLIENT_ID = "clientId", MAX_CLIENT_ID
    GROUP_NAME = "groupName", MAX_CLIENT_ID
    HOST_NAME = "hostName", 256
    TOPIC_NAME = "topicName", 64


def required_text(field: Field, value: str, release: Release) -> str:
    """Return `value` without surrounding blanks."""
    name, limit = field.value
    if is_blank(value):
        raise bad_request(f"Request miss necessary {name} data!")
    text = trim(value)
    if len(text) > limit:
        word = "required" if release is Release.V1_2 else "allowed"
        raise bad_request(f"{name}'s length over max value, {word} max length is {limit}")
    return text


def producer_topics(names: Iterable[str]) -> tuple[str, ...]:
    topics = _names(names)
    if OFFSET_HISTORY in topics:
        raise bad_request(f"System Topic {OFFSET_HISTORY} does not allow client produce data!")
    if len(topics) > _MAX_TOPICS:
        raise bad_request(f"Booked topic's count over max value, required max count is {_MAX_TOPICS}")
    return topics


def consumer_topics(names: Collection[str], deployed: Collection[str] | None) -> tuple[str, ...]:
    """Return the topic names. `deployed` is None where the server does not check that topics exist."""
    if not names:
        raise bad_request("Request miss necessary subscribed topicList data!")
    topics = _names(names)
    if not topics:
        raise bad_request("Request subscribed topicList data must not Blank!")
    if len(topics) > _MAX_TOPICS:
        raise bad_request(f"Subscribed topicList size over max value, required max count is {_MAX_TOPICS}")
    missing = [] if deployed is None else [topic for topic in topics if topic not in deployed]
    if missing:
        raise DeclinedError(ErrCode.TOPIC_NOT_DEPLOYED, f"Requested topic [{set_text(missing)}] not deployed!")
    return topics


def topic_filters(conditions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the sorted filters by topic, from texts `topic#condition,condition`; `RefusalError` for other shapes."""
    found: dict[str, set[str]] = {}
    for text in conditions:
        if is_blank(text):
            continue
        parts = split(text, "#")
        if len(parts) < 2:
            raise bad_shape()
        if is_blank(parts[0]) or is_blank(parts[1]):
            continue
        of_topic = found.setdefault(trim(parts[0]), set())
        of_topic.update(trim(item) for item in split(parts[1], ",") if not is_blank(item))
    return {topic: tuple(sorted(items, key=lambda item: item.encode("utf-16-be"))) for topic, items in found.items()}


def required_partitions(text: str, topics: Collection[str]) -> dict[str, int]:
    """Return offsets by partition key, from `brokerId:topic:partitionId=offset,…`; `RefusalError` for a lone `=`."""
    offsets: dict[str, int] = {}
    if is_blank(text):
        return offsets
    for item in split(trim(text), ","):
        parts = split(item, "=")
        if not parts:
            raise bad_shape()
        key = trim(parts[0])
        names = split(key, ":")
        if len(parts) == 1 or len(names) != 3:
            raise bad_request(_PARTITION_OFFSETS.format(item))
        if trim(names[1]) not in topics:
            raise bad_request(
                f"[Parameter error] wrong offset reset for unsubscribed topic: reset item is {item}, "
                f"request topicList are {set_text(topics)}"
            )
        try:
            offsets[key] = parse_long(trim(parts[1]))
        except ValueError:
            raise bad_request(f"[Parameter error] required long type value of {item}' Offset!") from None
    return offsets


def parse_partition_info(text: str) -> tuple[Broker, Partition]:
    """Parse `brokerId:host:port#topic:partitionId`; `RefusalError` for other shapes, as from a handler that threw."""
    try:
        at, claim = text.split("#")[:2]
        broker_id, host, port = at.split(":")[:3]
        topic, partition_id = claim.split(":")[:2]
        broker = Broker(parse_long(broker_id), Address(host, parse_long(port)))
        return broker, Partition(broker.broker_id, topic, parse_long(partition_id))
    except ValueError as error:
        raise bad_shape() from error


def parse_subscribe_info(text: str) -> tuple[Broker, Partition]:
    """Parse `clientId@group#brokerId:host:port#topic:partitionId` (wire: SubscribeInfo)."""
    member, _, info = text.partition("#")
    if "@" not in member:
        raise bad_shape()
    return parse_partition_info(info)


def parse_held_partitions(text: str) -> list[Partition]:
    """Parse `topic#brokerId:partitionId,…` of a V2 report."""
    try:
        topic, items = text.split("#")[:2]
        pairs = [item.split(":")[:2] for item in items.rstrip(",").split(",")]
        return [Partition(parse_long(broker_id), topic, parse_long(partition_id)) for broker_id, partition_id in pairs]
    except ValueError as error:
        raise bad_shape() from error


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(trim(name) for name in names if not is_blank(name)))
