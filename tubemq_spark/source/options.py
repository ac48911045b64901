"""The options of the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tubemq_spark.client.settings import CLIENT_OPTIONS, ClientSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.options import Option, Planned, check_names, not_blank, whole_number
from tubemq_spark.protocol.constants import MAX_CLIENT_ID
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import positions_from_json

EARLIEST, LATEST = -2, -1  # in place of a position
GROUP = "group"

Bound = str | dict[Partition, int]
"""`earliest`, `latest` or `group`, or positions of partitions (EARLIEST and LATEST among them)."""


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
    if not all(topics) or any(c in "#:@" or c.isspace() for topic in topics for c in topic):
        raise ValueError("a topic is blank, or has a character that topics cannot have")
    return topics


def _group(text: str) -> str:
    name = not_blank(text)
    if len(name) > MAX_CLIENT_ID or any(c in "#:@," or c.isspace() for c in name):
        raise ValueError("it is too long, or contains one of # : @ , or blanks")
    return name


def _bound(words: tuple[str, ...], special: frozenset[int]) -> Any:
    def parse(text: str) -> Bound:
        word = text.strip().lower()
        if word in words:
            return word
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            raise ValueError("it is neither one of the words nor JSON") from None
        return positions_from_json(data, special)

    return parse


SUBSCRIBE = Option("subscribe", _topics, "topic[,topic…]", required=True)
GROUP_NAME = Option("tubemq.group", _group, "the name of a consumer group, without # : @ , and blanks", required=True)
CLAIM_TIMEOUT_MS = Option("tubemq.claim.timeoutMs", whole_number(0), "milliseconds", 45_000)
STARTING_OFFSETS: Option[Bound] = Option(
    "startingOffsets",
    _bound(("earliest", "latest", GROUP), frozenset({EARLIEST, LATEST})),
    'earliest, latest, group or {"topic":{"brokerId:partitionId":position}}, with -2 for earliest and -1 for latest',
)
ENDING_OFFSETS: Option[Bound] = Option(
    "endingOffsets",
    _bound(("latest",), frozenset({LATEST})),
    'latest or {"topic":{"brokerId:partitionId":position}}, with -1 for latest',
)
HEADS_INTERVAL_MS = Option("headsIntervalMs", whole_number(0), "milliseconds", 100)
METADATA_INTERVAL_MS = Option("metadataIntervalMs", whole_number(100), "milliseconds, at least 100", 30_000)

# A configuration is often shared by a query's source and its sink: what only the sink reads is not wrong here.
_OF_THE_SINK = (Option("tubemq.producer.maxInFlight", str, "unanswered sends per connection"),)

SOURCE_OPTIONS: tuple[Option[Any] | Planned, ...] = (
    *CLIENT_OPTIONS,
    *_OF_THE_SINK,
    SUBSCRIBE,
    GROUP_NAME,
    CLAIM_TIMEOUT_MS,
    STARTING_OFFSETS,
    ENDING_OFFSETS,
    HEADS_INTERVAL_MS,
    METADATA_INTERVAL_MS,
    Planned("assign"),
    Planned("filters"),
    Planned("startingTimestamp"),
    Planned("endingTimestamp"),
    Planned("failOnDataLoss", "true"),
    Planned("maxOffsetsPerTrigger"),
    Planned("minOffsetsPerTrigger"),
    Planned("maxTriggerDelay"),
    Planned("maxPartitionsPerTask", "1"),
    Planned("commitOffsets", "true"),
    Planned("pushFilters", "false"),
    Planned("corruptMessages", "fail"),
    Planned("msgTimeZone", "utc"),
    Planned("messageFormat", "raw"),
)


@dataclass(frozen=True)
class SourceOptions:
    """What the user chose; times in seconds."""

    client: ClientSettings
    topics: tuple[str, ...]
    group: str
    starting: Bound
    ending: Bound
    claim_timeout: float
    heads_interval: float
    metadata_interval: float

    @classmethod
    def read(cls, raw: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """`ConfigError` for anything that cannot be used."""
        check_options(raw)
        starting = STARTING_OFFSETS.read(raw)
        ending = ENDING_OFFSETS.read(raw)
        if streaming and ending is not None:
            raise ConfigError("option 'endingOffsets' is for batch reads: a stream has no end, leave it out")
        return cls(
            client=ClientSettings.from_options(raw),
            topics=SUBSCRIBE.get(raw),
            group=GROUP_NAME.get(raw),
            starting=("latest" if streaming else "earliest") if starting is None else starting,
            ending="latest" if ending is None else ending,
            claim_timeout=CLAIM_TIMEOUT_MS.get(raw) / 1000,
            heads_interval=HEADS_INTERVAL_MS.get(raw) / 1000,
            metadata_interval=METADATA_INTERVAL_MS.get(raw) / 1000,
        )


def check_options(raw: Mapping[str, str]) -> None:
    """Refuses what no reader, batch or stream, could use."""
    check_names(raw, SOURCE_OPTIONS)
    ClientSettings.from_options(raw)
    for option in SOURCE_OPTIONS:
        if isinstance(option, Option):
            option.read(raw)
