"""What the sink is told: its options, one table, and the plain values that come of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tubemq_spark.client.settings import CLIENT_OPTIONS, ClientSettings
from tubemq_spark.options import Option, Planned, check_names, not_blank, whole_number

TOPIC = Option("topic", not_blank, "the name of a topic", "the topic of rows without the column `topic`")
MAX_IN_FLIGHT = Option(
    "tubemq.producer.maxInFlight",
    whole_number(1, 1_000_000),
    "a number, 1 to 1000000",
    "unanswered sends per connection",
    1000,
)

# A configuration is often shared by a query's source and its sink: what only the source reads is not wrong here.
_OF_THE_SOURCE = ("tubemq.group", "tubemq.claim.timeoutMs")

SINK_OPTIONS: tuple[Option[Any] | Planned, ...] = (
    *CLIENT_OPTIONS,
    TOPIC,
    MAX_IN_FLIGHT,
    Planned("failedRows", "what becomes of rows that can never be sent", "fail"),
    Planned("deadLetterTopic", "where such rows go"),
    Planned("stampRows", "each message carries where it came from", "false"),
    Planned("effectivelyOnce", "a batch or task tried again sends only what is missing", "false"),
    Planned("receipts", "a folder: one Parquet file per batch says where each row landed"),
    Planned("messageFormat", "the form of messages", "raw"),
    Planned("compression", "of each payload", "none"),
)


@dataclass(frozen=True)
class SinkOptions:
    """Plain values, for they travel to the executors."""

    client: ClientSettings
    topic: str | None = None
    max_in_flight: int = 1000

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> SinkOptions:
        """`ConfigError` for an option that cannot be used, is not there yet, or is unknown."""
        check_names(raw, SINK_OPTIONS, _OF_THE_SOURCE)
        return cls(client=ClientSettings.from_options(raw), topic=TOPIC.read(raw), max_in_flight=MAX_IN_FLIGHT.get(raw))
