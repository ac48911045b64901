# SPDX-License-Identifier: Apache-2.0
"""Stream offset: what Spark stores in the checkpoint of a streaming query.

    {"v": 1, "query": "id", "offsets": {"topic": {"brokerId:partitionId": position}},
     "marks": {"topic": {"brokerId:storeId": [[position, partitionId, messageId, seconds], ...]}},
     "counted": {"topic": [brokerId, ...]}, "empty": {"topic": ["brokerId:partitionId", ...]},
     "left": {"topic": {"brokerId:partitionId": position}}}

A position is the next one to read, in bytes of the index of the partition's store (28 a message); at the end of a range
it is exclusive. `query` is a random id, made with the first offset; the query claims its partitions under it. The end
of the first batch also has `initial`, the offset at which that batch began: Spark does not store that offset, and asks
a restarted query for a new one. `marks` are the fingerprints of the stores, see
`protocol.log_fingerprint`; they may be missing. `counted` names the brokers where each partition of a topic has its
store for itself; only there, rows of the batch that ends here have an offset. That is decided once, because a topic
may get partitions before the batch is repeated. Initial offsets and offsets of older releases do not have it. `empty`
names the partitions that have no message in the batch that ends here, as far as that is proven: no task reads them, so
that a repeated batch has the same tasks with the same numbers. `left` has the positions of partitions that the query
does not read any more, because the options do not name them or the cluster does not have them: it goes on there if they
come back.

All keys but `v`, `query` and `offsets` are optional, and unknown keys are ignored. So a new key that may be missing
keeps `v`. Raise `v` only if an older release would read wrong rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.log_fingerprint import Fingerprint, Fingerprints
from tubemq_spark.protocol.metadata import Partition

T = TypeVar("T")

VERSION = 1

_MAX_INT, _MAX_LONG = 2**31 - 1, 2**63 - 1  # of ids and of positions on the wire

Positions = Mapping[Partition, int]
ExclusiveStores = Mapping[str, frozenset[int]]
"""By topic, the ids of the brokers where each partition has its store for itself."""


@dataclass(frozen=True)
class StreamOffset:
    """The next position to read of each partition."""

    query: str
    positions: Positions
    initial: Positions | None = None
    fingerprints: Fingerprints = field(default_factory=dict)
    exclusive: ExclusiveStores | None = None
    empty: frozenset[Partition] = frozenset()
    left: Positions = field(default_factory=dict)

    def left_without(self, present: Positions) -> Positions:
        """Return `left`, and the positions of partitions that are not `present` any more."""
        return {**self.left, **{partition: at for partition, at in self.positions.items() if partition not in present}}

    def to_json(self) -> dict[str, Any]:
        """Return JSON that is always in the same order, because Spark compares offsets as text.

        Raise `ProtocolError` for a position that `from_json` would refuse: it would spoil the checkpoint for ever.
        """
        for partition, position in [*self.positions.items(), *(self.initial or {}).items(), *self.left.items()]:
            if not _is_position(position):
                raise ProtocolError(
                    f"the query cannot begin or end at {position} of {partition}, where its broker says it stands: "
                    f"positions are multiples of {INDEX_MSG_UNIT_SIZE}. Check the broker and the group's position"
                )
        data: dict[str, Any] = {"v": VERSION, "query": self.query, "offsets": values_to_json(self.positions)}
        if self.initial is not None:
            data["initial"] = values_to_json(self.initial)
        if found := {store: [list(one) for one in several] for store, several in self.fingerprints.items() if several}:
            data["marks"] = values_to_json(found)
        if self.exclusive is not None:
            data["counted"] = {topic: sorted(self.exclusive[topic]) for topic in sorted(self.exclusive)}
        if self.empty:
            data["empty"] = {topic: list(keys) for topic, keys in values_to_json(dict.fromkeys(self.empty)).items()}
        if self.left:
            data["left"] = values_to_json(self.left)
        return data

    @classmethod
    def from_json(cls, data: Any) -> StreamOffset:
        """Parse the checkpoint's JSON, or its text. Raise `ConfigError` for any other format or version."""
        if isinstance(data, str):
            with suppress(ValueError, RecursionError):
                data = json.loads(data)
        if not isinstance(data, dict) or type(data.get("v")) is not int:
            raise ConfigError(
                f"the checkpoint holds {_quoted(data)}, which is not an offset of the tubemq source. Check that option "
                "'checkpointLocation' is this query's own"
            )
        if data["v"] != VERSION:
            raise ConfigError(
                f"the checkpoint holds an offset of version {shown(data['v'], 20)}, this release of tubemq-spark reads "
                f"{VERSION}: use the release that wrote it, or a newer one"
            )
        initial = data.get("initial")
        try:
            if not isinstance(data["query"], str):
                raise ValueError(f"{_quoted(data['query'])} is not the id of a query")
            return cls(
                data["query"],
                positions_from_json(data["offsets"]),
                None if initial is None else positions_from_json(initial),
                _fingerprints_from_json(data.get("marks", {})),
                _exclusive_from_json(data.get("counted")),
                frozenset(
                    partition_from_text(topic, key) for topic, keys in data.get("empty", {}).items() for key in keys
                ),
                positions_from_json(data.get("left", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as cause:
            raise ConfigError(
                f"the checkpoint holds an offset that cannot be read ({shown(cause)}): {_quoted(data)}. Check that "
                "option 'checkpointLocation' is this query's own"
            ) from None


def _quoted(data: object) -> str:
    """Return part of a checkpoint's text or JSON, for an error."""
    try:
        return shown(json.dumps(data, ensure_ascii=False, default=str))
    except RecursionError:
        return "JSON that is nested too deeply"


def values_to_json(values: Mapping[Any, T]) -> dict[str, dict[str, T]]:
    """Return the values of partitions or of stores, by topic and `brokerId:partitionId` or `brokerId:storeId`."""
    topics: dict[str, dict[str, T]] = {}
    for (broker_id, topic, number), value in sorted(values.items(), key=lambda item: (item[0][1], item[0])):
        topics.setdefault(topic, {})[f"{broker_id}:{number}"] = value
    return topics


def positions_from_json(data: Any) -> dict[Partition, int]:
    """Parse `{"topic": {"brokerId:partitionId": position}}`; raise `ValueError` for any other shape."""
    return values_from_json(data, position_from_json)


def values_from_json(data: Any, value_of: Callable[[Partition, Any], T]) -> dict[Partition, T]:
    """Return what `value_of` makes of the values in `{"topic": {"brokerId:partitionId": value}}`; raise `ValueError`
    for any other shape."""
    if not isinstance(data, dict) or not all(isinstance(keys, dict) for keys in data.values()):
        raise ValueError('its form is not {"topic":{"brokerId:partitionId":position}}')
    values: dict[Partition, T] = {}
    for topic, keys in data.items():
        for key, value in keys.items():
            partition = partition_from_text(topic, key)
            if partition in values:
                raise ValueError(f"it names partition {partition} twice")
            values[partition] = value_of(partition, value)
    return values


def position_from_json(partition: Partition, position: Any) -> int:
    """Return the position; raise `ValueError` if it is not a multiple of 28."""
    if type(position) is not int:
        raise ValueError(f"{_quoted(position)} of {partition} is not a whole number")
    if not _is_position(position):
        raise ValueError(
            f"{shown(position)} of {partition} is not a position: positions are multiples of {INDEX_MSG_UNIT_SIZE}"
        )
    return position


def _is_position(number: int) -> bool:
    return 0 <= number <= _MAX_LONG and number % INDEX_MSG_UNIT_SIZE == 0


def partition_from_text(topic: str, key: Any) -> Partition:
    """Return the partition of `topic` that `brokerId:partitionId` names; raise `ValueError` if it names none."""
    broker_id, colon, partition_id = key.partition(":") if isinstance(key, str) else ("", "", "")
    if not (colon and broker_id.isdecimal() and partition_id.isdecimal()):
        raise ValueError(f"{_quoted(key)} of topic {shown(topic)} is not a brokerId:partitionId")
    if re.search("[\ud800-\udfff]", topic):  # JSON can name half a character
        raise ValueError(f"topic {shown(topic)} is not text that a server can get")
    numbers = int(broker_id), int(partition_id)
    if max(numbers) > _MAX_INT:
        raise ValueError(f"{_quoted(key)} of topic {shown(topic)} has a number above {_MAX_INT}")
    return Partition(numbers[0], topic, numbers[1])


def _fingerprints_from_json(data: Any) -> Fingerprints:
    """Parse the value of `marks`; raise `ValueError` for any other shape."""
    try:
        fingerprints: dict[tuple[int, str, int], tuple[Fingerprint, ...]] = {}
        for topic, keys in data.items():
            for key, listed in keys.items():
                store = partition_from_text(topic, key)  # a store is written like a partition
                found = tuple(Fingerprint(*mark) for mark in listed)
                if not isinstance(listed, list) or any(
                    type(number) is not int or number < 0 for mark in found for number in mark
                ):
                    raise ValueError(f"{_quoted(listed)} is not a list of marks")
                fingerprints[store.broker_id, topic, store.partition_id] = found
    except (AttributeError, TypeError) as cause:
        raise ValueError(f"its marks cannot be read ({cause})") from None
    return fingerprints


def _exclusive_from_json(data: Any) -> ExclusiveStores | None:
    """Parse `{"topic": [brokerId, ...]}` or None; raise `ValueError` for any other shape."""
    if data is None:
        return None
    if not isinstance(data, dict) or not all(isinstance(brokers, list) for brokers in data.values()):
        raise ValueError(f"{_quoted(data)} does not name brokers by topic")
    if any(type(broker) is not int or broker < 0 for brokers in data.values() for broker in brokers):
        raise ValueError(f"{_quoted(data)} does not name brokers by their ids")
    return {topic: frozenset(brokers) for topic, brokers in data.items()}
