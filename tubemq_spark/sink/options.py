# SPDX-License-Identifier: Apache-2.0
"""The options of the sink, in one table, and the plain values that result from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tubemq_spark.client.producer.send_queue import DEFAULT_LIMITS, SendLimits
from tubemq_spark.client.settings import CLIENT_OPTIONS, ClientSettings
from tubemq_spark.compression import CODECS, is_available
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_builder import SOURCE_ONLY
from tubemq_spark.option_definition import (
    OneOf,
    Option,
    check_names,
    choice,
    defined,
    flag,
    listed,
    not_blank,
    number,
)
from tubemq_spark.protocol.constants import MAX_TOPICS

TOPIC = Option("topic", not_blank, "the name of a topic", "the topic of all rows; wins over the column `topic`")


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise ValueError("a name is empty")
    if len(names) > MAX_TOPICS:
        raise ValueError(f"{len(names)} topics, and a master takes {MAX_TOPICS} of a client")
    return names


MAX_IN_FLIGHT = number(
    "tubemq.producer.maxInFlight",
    "a number",
    1,
    "unanswered sends per connection",
    DEFAULT_LIMITS.in_flight,
    most=1_000_000,
)
MAX_IN_FLIGHT_BYTES = number(
    "tubemq.producer.maxInFlightBytes",
    "a number of bytes",
    1,
    "how many bytes of messages a task may have sent without an answer, each counted with 500 more",
    DEFAULT_LIMITS.size,
)
FAIL, DROP, DEAD_LETTER = "fail", "drop", "deadletter"
FAILED_ROWS = choice(
    "failedRows",
    (FAIL, DROP, "deadLetter"),
    "rows that can never be sent (too long, unknown topic, bad attribute) fail the task, are dropped and logged, or go "
    "to `deadLetterTopic`: [Dead letters](dead-letters.md)",
    FAIL,
)
DEAD_LETTER_TOPIC = Option("deadLetterTopic", not_blank, "the name of a topic", "the topic of such rows")
SHOW_FAILED_ROWS = flag(
    "showFailedRows",
    True,
    "whether errors and log lines about such a row show the first bytes of its key, or else of its value, and the text "
    "that is wrong. With false, they name only its number and its column",
)
STAMP_ROWS = flag(
    "stampRows",
    False,
    "whether each message names its row, in the attributes `spark_id` (query or write), `spark_batch`, "
    "`spark_partition` and `spark_row`: [Stamps](sink.md#stamps)",
)
EFFECTIVELY_ONCE = flag(
    "effectivelyOnce",
    False,
    "for streams: a repeated batch or task sends only the rows that are not stored yet. Rows are stamped, and have the "
    "attribute `spark_digest`: [Effectively once](sink.md#effectively-once)",
)
EFFECTIVELY_ONCE_LOCATION = Option(
    "effectivelyOnceLocation",
    not_blank,
    "a folder: a path of the driver's machine, or a URI such as s3://bucket/folder",
    "the folder of its state file; no other query may use it",
    shown_default="`tubemq` in `checkpointLocation`",
)
EFFECTIVELY_ONCE_TOPICS = Option(
    "effectivelyOnceTopics",
    _topics,
    "names of topics, separated by commas",
    "without option `topic`: the topics that rows may name. A row for another one cannot be sent",
)
EFFECTIVELY_ONCE_MAX_OFFSETS = number(
    "effectivelyOnceMaxOffsets",
    "a number",
    1,
    "how many messages a task reads at most to find its stored rows",
    10_000_000,
    most=2**63 - 1,
)
EFFECTIVELY_ONCE_UNCERTAIN = choice(
    "effectivelyOnceUncertain",
    (FAIL, "sendAgain"),
    "if it is unknown which rows are stored, the task fails, or sends them again, which may store some twice",
    FAIL,
)
RECEIPTS = Option(
    "receipts",
    not_blank,
    "a folder: a path of the driver's machine, or a URI such as s3://bucket/folder",
    "the folder of the [receipts](sink.md#receipts): one Parquet file per batch says where each row is stored",
)


class _Formats(OneOf):
    def __call__(self, text: str) -> str:
        if text.strip().lower() == "inlong":
            raise ValueError("inlong is for the source: inlongmsg writes packs in either inlongPackFormat")
        return super().__call__(text)


MESSAGE_FORMAT = Option(
    "messageFormat",
    _Formats(("raw", "inlongmsg")),
    "raw or inlongmsg",
    "`inlongmsg`: each row becomes an InLong pack, and needs the columns `inlong_group` and `inlong_stream`",
    "raw",
)

INLONG_PACK_ROWS = number(
    "inlongPackRows",
    "a number",
    1,
    "how many rows a pack has at most ([many rows](inlong.md#many-rows-in-a-pack)). With more than 1, `stampRows`, "
    "`effectivelyOnce` and `receipts` cannot be used",
    1,
    most=100_000,
)
INLONG_PACK_BYTES = number(
    "inlongPackBytes",
    "a number of bytes",
    1,
    "how many bytes a pack has at most before compression, and never more than the topic allows",
    100_000,
)
INLONG_PACK_MS = number(
    "inlongPackMs",
    "milliseconds",
    0,
    "a pack whose first row has waited for so long is sent when the task gets its next rows",
    1000,
)
PROTOBUF = "protobuf"
INLONG_PACK_FORMAT = choice(
    "inlongPackFormat",
    ("inlongmsg", PROTOBUF),
    "InLongMsg (V0), or protobuf, DataProxy's `MessageObjs` (V1), which the source reads with `messageFormat=inlong`",
    "inlongmsg",
)
PACK_CODECS = ("none", "gzip", "snappy")  # by DataProxy's number
INLONG_PACK_COMPRESSION = choice(
    "inlongPackCompression",
    PACK_CODECS,
    "compresses the bodies in a pack, or a whole pack of protobuf. InLong's own readers read both. gzip is for "
    "protobuf only",
    "none",
)


def _codec(text: str) -> str:
    choice = OneOf(("none", *CODECS))(text)
    if choice in CODECS and not is_available(choice):
        raise ValueError(f"pyarrow was built without {choice} here")
    return choice


COMPRESSION = Option(
    "compression",
    _codec,
    listed(("none", *CODECS)),
    "compresses each body. The source decompresses it; other readers see the attribute `spark_compression` and "
    + listed(codec.form for codec in CODECS.values()),
    "none",
)

SINK_OPTIONS = CLIENT_OPTIONS + defined(vars())

_FOLDER = "tubemq"  # in that of a checkpoint

_NEED_EFFECTIVELY_ONCE: tuple[Option[Any], ...] = (
    EFFECTIVELY_ONCE_LOCATION,
    EFFECTIVELY_ONCE_TOPICS,
    EFFECTIVELY_ONCE_MAX_OFFSETS,
    EFFECTIVELY_ONCE_UNCERTAIN,
)
_NEED_PACK_ROWS: tuple[Option[Any], ...] = (INLONG_PACK_BYTES, INLONG_PACK_MS)


@dataclass(frozen=True)
class EffectivelyOnceOptions:
    """The options of `effectivelyOnce`.

    `location` is the folder of the state file, `option` the one that named it, and `checkpoint` Spark's folder if the
    file is in it. Rows go to `topics` only.
    """

    location: str = field(repr=False)  # a URI may have a password in it
    option: str
    topics: tuple[str, ...]
    checkpoint: str | None = field(default=None, repr=False)
    max_offsets: int = EFFECTIVELY_ONCE_MAX_OFFSETS.preset
    fails_when_uncertain: bool = True


@dataclass(frozen=True)
class PackLimits:
    """What a pack of InLong has at most: rows, and bytes. `wait` is in seconds."""

    rows: int
    size: int = INLONG_PACK_BYTES.preset
    wait: float = INLONG_PACK_MS.preset / 1000


@dataclass(frozen=True)
class SinkOptions:
    """The values of all options: plain, because they travel to the executors."""

    client: ClientSettings
    topic: str | None = None
    limits: SendLimits = DEFAULT_LIMITS
    stamp_rows: bool = STAMP_ROWS.preset
    effectively_once: EffectivelyOnceOptions | None = None
    message_format: str = MESSAGE_FORMAT.preset
    packs: PackLimits | None = None  # None if each row is a message
    pack_format: str = INLONG_PACK_FORMAT.preset
    pack_compression: str = INLONG_PACK_COMPRESSION.preset
    compression: str = COMPRESSION.preset
    receipts: str | None = field(default=None, repr=False)  # a URI may have a password in it
    failed_rows: str = FAILED_ROWS.preset
    dead_letter_topic: str | None = None
    show_failed_rows: bool = SHOW_FAILED_ROWS.preset

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> SinkOptions:
        """Return the values of `raw`; raise `ConfigError` for an option that is unknown or cannot be used."""
        check_names(raw, SINK_OPTIONS, SOURCE_ONLY)
        return cls(
            client=ClientSettings.from_options(raw),
            topic=TOPIC.read(raw),
            limits=SendLimits(MAX_IN_FLIGHT.get(raw), MAX_IN_FLIGHT_BYTES.get(raw)),
            stamp_rows=STAMP_ROWS.get(raw) or EFFECTIVELY_ONCE.get(raw),
            effectively_once=_effectively_once(raw),
            message_format=MESSAGE_FORMAT.get(raw),
            pack_format=INLONG_PACK_FORMAT.get(raw),
            pack_compression=INLONG_PACK_COMPRESSION.get(raw),
            packs=_packs(raw),
            compression=COMPRESSION.get(raw),
            receipts=RECEIPTS.read(raw),
            failed_rows=FAILED_ROWS.get(raw),
            dead_letter_topic=_dead_letter_topic(raw),
            show_failed_rows=SHOW_FAILED_ROWS.get(raw),
        )


def _dead_letter_topic(raw: Mapping[str, str]) -> str | None:
    topic, wanted = DEAD_LETTER_TOPIC.read(raw), FAILED_ROWS.get(raw) == DEAD_LETTER
    if wanted and topic is None:
        raise ConfigError("option 'failedRows' is deadLetter, which needs option 'deadLetterTopic'")
    if topic is not None and topic == TOPIC.read(raw):
        raise ConfigError(
            "option 'deadLetterTopic' is also the topic of the other rows: dead letters need a topic of their own"
        )
    _require(raw, wanted, "failedRows=deadLetter", DEAD_LETTER_TOPIC)
    return topic


def _require(raw: Mapping[str, str], is_met: bool, needed: str, *options: Option[Any]) -> None:
    """Raise `ConfigError` if one of `options` is given without what it needs."""
    given = {name.lower() for name in raw}
    for option in options:
        if not is_met and option.name.lower() in given:
            raise ConfigError(f"option '{option.name}' needs {needed}: set that too, or leave it out")


def _packs(raw: Mapping[str, str]) -> PackLimits | None:
    rows = INLONG_PACK_ROWS.get(raw)
    limits = PackLimits(rows, INLONG_PACK_BYTES.get(raw), INLONG_PACK_MS.get(raw) / 1000)
    of_packs = (INLONG_PACK_ROWS, *_NEED_PACK_ROWS, INLONG_PACK_FORMAT, INLONG_PACK_COMPRESSION)
    _require(raw, MESSAGE_FORMAT.get(raw) == "inlongmsg", "messageFormat=inlongmsg", *of_packs)
    is_gzip = INLONG_PACK_COMPRESSION.get(raw) == "gzip"
    is_protobuf = INLONG_PACK_FORMAT.get(raw) == PROTOBUF
    _require(raw, is_protobuf or not is_gzip, "inlongPackFormat=protobuf for gzip", INLONG_PACK_COMPRESSION)
    _require(raw, rows > 1, "'inlongPackRows' above 1", *_NEED_PACK_ROWS)
    if rows == 1:
        return None
    alone: tuple[Option[Any], ...] = (EFFECTIVELY_ONCE, STAMP_ROWS, RECEIPTS)
    for option in alone:
        if option.read(raw):
            raise ConfigError(
                f"option '{option.name}' needs a message for each row, and with 'inlongPackRows' above 1 many rows "
                "share one: leave one of the two out"
            )
    return limits


def _effectively_once(raw: Mapping[str, str]) -> EffectivelyOnceOptions | None:
    given = {name.lower(): text for name, text in raw.items()}
    for option in _NEED_EFFECTIVELY_ONCE:
        option.read(raw)
    _require(raw, EFFECTIVELY_ONCE.get(raw), "effectivelyOnce=true", *_NEED_EFFECTIVELY_ONCE)
    if not EFFECTIVELY_ONCE.get(raw):
        return None
    if STAMP_ROWS.name.lower() in given and not STAMP_ROWS.get(raw):
        raise ConfigError("option 'effectivelyOnce' needs stamped rows: leave 'stampRows' out, or set it to true")
    topic, topics = TOPIC.read(raw), EFFECTIVELY_ONCE_TOPICS.read(raw)
    if topic is not None and topics is not None:
        raise ConfigError("option 'effectivelyOnceTopics' is for rows with a column topic: leave it or 'topic' out")
    if topic is None and topics is None:
        raise ConfigError(
            "option 'effectivelyOnce' needs option 'topic', or the topics that rows name in column topic: "
            ".option('effectivelyOnceTopics', 'first,second')"
        )
    location, checkpoint = EFFECTIVELY_ONCE_LOCATION.read(raw), given.get("checkpointlocation", "").strip()
    named_by = EFFECTIVELY_ONCE_LOCATION.name
    if location is None:
        if not checkpoint:
            raise ConfigError(
                "option 'effectivelyOnce' keeps a file in the folder of the checkpoint, and the writer does not name "
                "it: add .option('checkpointLocation', '/path/of/the/checkpoint'), or 'effectivelyOnceLocation'"
            )
        location, named_by = f"{checkpoint.rstrip('/')}/{_FOLDER}", "checkpointLocation"
    return EffectivelyOnceOptions(
        location,
        named_by,
        topics or (topic or "",),
        checkpoint if named_by == "checkpointLocation" else None,
        EFFECTIVELY_ONCE_MAX_OFFSETS.get(raw),
        EFFECTIVELY_ONCE_UNCERTAIN.get(raw) == FAIL,
    )
