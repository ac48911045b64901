# SPDX-License-Identifier: Apache-2.0
"""Bounds of a read: where it begins or ends in each partition, as the user's options say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from typing import Any

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import parse_moment
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.similar_names import did_you_mean
from tubemq_spark.source.offset import position_from_json, values_from_json

EARLIEST, LATEST, GROUP = "earliest", "latest", "group"

Place = str | int | datetime
"""EARLIEST, LATEST or GROUP, a position, or a moment."""

_NUMBERS = {EARLIEST: -2, LATEST: -1}  # instead of a position, as in Kafka's options


@dataclass(frozen=True)
class Bound:
    """A place for all topics, or one for each partition or topic. `option` is the name in errors."""

    option: str
    place: Place | None = None
    topics: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[Partition, Place] = field(default_factory=dict)

    @property
    def places(self) -> set[Place]:
        """All places that the bound names."""
        return {*([] if self.place is None else [self.place]), *self.topics.values(), *self.partitions.values()}

    def of(self, partitions: Collection[Partition]) -> dict[Partition, Place]:
        """Return the place of each of `partitions`. Raise `ConfigError` if the bound names others, or misses some."""
        if self.place is not None:
            return dict.fromkeys(partitions, self.place)
        topics = {partition.topic for partition in partitions}
        named = {partition: self.topics[partition.topic] for partition in partitions if partition.topic in self.topics}
        unknown = [*sorted(self.topics.keys() - topics), *map(str, sorted(self.partitions.keys() - set(partitions)))]
        if unknown:
            raise ConfigError(
                f"option '{self.option}' names {', '.join(unknown)} (brokerId:topic:partitionId), which the "
                f"subscribed topics do not have: they have {', '.join(map(str, sorted(partitions)))}"
            )
        if missing := sorted(set(partitions) - named.keys() - self.partitions.keys()):
            raise ConfigError(
                f"option '{self.option}' must name all partitions of the subscribed topics, "
                f"{', '.join(map(str, missing))} (brokerId:topic:partitionId) are missing"
            )
        return {partition: named.get(partition, self.partitions.get(partition, LATEST)) for partition in partitions}

    def in_zone(self, zone: tzinfo) -> Bound:
        """Return the bound with `zone` for moments that have none."""
        return replace(
            self,
            place=None if self.place is None else _in_zone(self.place, zone),
            partitions={partition: _in_zone(place, zone) for partition, place in self.partitions.items()},
        )


def _in_zone(place: Place, zone: tzinfo) -> Place:
    return place.replace(tzinfo=zone) if isinstance(place, datetime) and place.tzinfo is None else place


def bound_from_json(option: str, data: Any, words: Collection[str]) -> Bound:
    """Parse `{"topic": {"brokerId:partitionId": position}}`, where one of `words` may stand for the positions of a
    topic, and its number for a position. Raise `ValueError` for any other shape."""
    numbers = {_NUMBERS[word]: word for word in words if word in _NUMBERS}
    topics: dict[str, str] = {}
    if isinstance(data, dict):
        topics = {topic: word for topic, word in data.items() if isinstance(word, str) and word.lower() in words}
        data = {topic: keys for topic, keys in data.items() if topic not in topics}
        for topic, word in data.items():
            if isinstance(word, str) and (meant := did_you_mean(word, words)):
                raise ValueError(f"topic {topic} has {word!r}{meant}")

    def place_of(partition: Partition, value: Any) -> Place:
        word = numbers.get(value) if type(value) is int else None
        return position_from_json(partition, value) if word is None else word

    partitions = values_from_json(data, place_of)
    return Bound(option, None, {topic: word.lower() for topic, word in topics.items()}, partitions)


def moments_from_json(option: str, data: Any) -> Bound:
    """Parse `{"topic": {"brokerId:partitionId": time}}`; raise `ValueError` for any other shape."""

    def moment_of(partition: Partition, value: Any) -> Place:
        if type(value) not in (int, str):
            raise ValueError(f"the value of {partition} is neither a number nor a text")
        try:
            return parse_moment(str(value))
        except ValueError as error:
            raise ValueError(f"{partition}: {error}") from None

    return Bound(option, partitions=values_from_json(data, moment_of))
