# SPDX-License-Identifier: Apache-2.0
"""The options of the source."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timezone, tzinfo
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.types import StructType

from tubemq_spark.client.consumer.loss_policy import BATCH_ADVICE, STREAM_ADVICE, LossPolicy
from tubemq_spark.client.settings import CLIENT_OPTIONS, ClientSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_builder import SINK_ONLY
from tubemq_spark.option_definition import Option, check_names, choice, defined, duration, flag, listed, number
from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source import option_parsers as parsers
from tubemq_spark.source.bound import EARLIEST, GROUP, LATEST, Bound
from tubemq_spark.source.option_parsers import Filters
from tubemq_spark.source.row_format import MAX_UNPACKED, RowFormat
from tubemq_spark.source.schema import with_columns

_log = logging.getLogger(__name__)

_POSITIONS = '{"topic":{"brokerId:partitionId":position}}'
_TIMES = '{"topic":{"brokerId:partitionId":time}}, times as those of startingTimestamp'
_TIME = "milliseconds since 1970 or a time as 2026-01-31T12:00:00+01:00"


SUBSCRIBE = Option("subscribe", parsers.topics, "topic[,topic…]", "the topics to read, separated by commas")
SUBSCRIBE_PATTERN: Option[re.Pattern[str]] = Option(
    "subscribePattern",
    parsers.pattern,
    "a regular expression of Python, as orders_.*",
    "instead of `subscribe`: all topics whose whole names match. A stream reads topics that are created later from "
    "their beginning. Needs `tubemq.admin.address` if its default does not fit",
)
ASSIGN = Option(
    "assign", parsers.assigned, '{"topic":["brokerId:partitionId",…]}', "instead of `subscribe`: only these partitions"
)
GROUP_NAME = Option(
    "tubemq.group",
    parsers.group,
    parsers.GROUP_NAME,
    "the consumer group, which belongs to this query ([limit 23](limits.md#limit-23))",
    required=True,
)
CLAIM_TIMEOUT_MS = number(
    "tubemq.claim.timeoutMs",
    "milliseconds",
    0,
    "how long to wait for a partition that another consumer of the group holds",
    45_000,
)
FILTERS = Option(
    "filters",
    parsers.filters,
    'type[,type…] or {"topic":["type",…]}, at most 500 of 256 characters, without , = and #',
    "read only messages of these types, which are values of column `msg_type`; see [Filters](howto/filters.md)",
)
STARTING_OFFSETS = Option(
    "startingOffsets",
    parsers.bound("startingOffsets", EARLIEST, LATEST, GROUP),
    f"earliest, latest, group or {_POSITIONS}, with -2 for earliest and -1 for latest",
    "where a new query begins. `group` is the group's position, or the earliest for a new group. A topic may have one "
    "of the words instead of positions. A batch read cannot begin at `latest`",
    shown_default="stream `latest`, batch `earliest`",
)
STARTING_TIMESTAMP = Option(
    "startingTimestamp",
    parsers.moment_bound("startingTimestamp"),
    _TIME,
    "begin at the first message whose `$msgTime$` is not earlier, to the minute; see "
    "[Start or end at a time](howto/start-times.md)",
)
STARTING_OFFSETS_BY_TIMESTAMP = Option(
    "startingOffsetsByTimestamp",
    parsers.moment_bounds("startingOffsetsByTimestamp"),
    _TIMES,
    "as `startingTimestamp`, with a time for each partition",
)
STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY = choice(
    "startingOffsetsByTimestampStrategy",
    ("error", "latest"),
    "what happens if no message of a partition is late enough: the query fails, or begins at the end of the partition. "
    "If no message has a time, only a `latest` that you set begins at the end; otherwise see "
    "[Messages without a time](howto/start-times.md#messages-without-a-time)",
    shown_default="`error`; `latest` with `startingTimestamp`",
)
ENDING_OFFSETS = Option(
    "endingOffsets",
    parsers.bound("endingOffsets", LATEST),
    f"latest or {_POSITIONS}, with -1 for latest",
    "where to end. A topic may have `latest` instead of positions",
    shown_default="`latest`",
)
ENDING_TIMESTAMP = Option(
    "endingTimestamp",
    parsers.moment_bound("endingTimestamp"),
    _TIME,
    "end before the first message whose `$msgTime$` is not earlier, to the minute; see "
    "[Start or end at a time](howto/start-times.md)",
)
ENDING_OFFSETS_BY_TIMESTAMP = Option(
    "endingOffsetsByTimestamp",
    parsers.moment_bounds("endingOffsetsByTimestamp"),
    _TIMES,
    "as `endingTimestamp`, with a time for each partition",
)
LONG_MESSAGE_TOPICS = Option(
    "longMessageTopics",
    parsers.topics,
    "topic[,topic…]",
    "topics, separated by commas, whose maximum message size is, or was, above the cluster's. Set it where no master "
    "tells the limit: before release 1.4, or if the log has `[topic-limits-unknown]`. Such topics are read from the "
    "brokers' files only ([limit 10](limits.md#limit-10))",
)
FAIL_ON_DATA_LOSS = flag(
    "failOnDataLoss",
    True,
    "whether to fail when messages that should be read are gone. With false, the loss is logged and the query goes on "
    "([limit 11](limits.md#limit-11))",
)
MAX_OFFSETS_PER_TRIGGER = number(
    "maxOffsetsPerTrigger",
    "a number of index entries",
    1,
    "how many index entries one micro-batch reads at most, of all partitions together: 500000 are at most 500000 "
    "messages, and fewer rows with `filters`, or if the query reads only some partitions of a store",
    most=2**63 - 1,
)
MAX_BYTES_PER_TRIGGER = number(
    "maxBytesPerTrigger",
    "a number of bytes",
    1,
    "how many bytes one micro-batch reads at most, as the brokers store them: with attributes, compressed if they are, "
    "and with messages of other types and of other partitions of the store. This is an estimate, by the mean size of a "
    "partition's next messages or of all that wait, whichever is greater. A micro-batch is larger only where long "
    "messages stand behind many short ones; it has at least one message",
    most=2**63 - 1,
)
MIN_OFFSETS_PER_TRIGGER = number(
    "minOffsetsPerTrigger",
    "a number of index entries",
    1,
    "wait for so many new index entries, but not longer than `maxTriggerDelay`",
    most=2**63 - 1,
)
MAX_TRIGGER_DELAY = Option(
    "maxTriggerDelay",
    duration,
    "milliseconds, or a number with us, ms, s, m, h or d after it",
    "how long `minOffsetsPerTrigger` may delay a micro-batch",
    900.0,
    shown_default="`15m`",
)
MAX_PARTITIONS_PER_TASK = number(
    "maxPartitionsPerTask",
    "a number",
    1,
    f"how many partitions with at most {ENTRIES_PER_READ} new index entries may share one Spark task; by default, at "
    "most 64 tasks share all of them",
)
COMMIT_OFFSETS = flag(
    "commitOffsets",
    True,
    "whether the group's position follows the micro-batches that a stream commits",
)
HEADS_INTERVAL_MS = number(
    "headsIntervalMs",
    "milliseconds",
    0,
    "the minimum time between two requests for the ends of the partitions while Spark does nothing else. While nothing "
    "arrives, it grows to a tenth of the idle time, at most to 1000: the first message after an idle time waits for so "
    "long. With 0, the source does not make Spark wait",
    100,
)
PUSH_FILTERS = flag(
    "pushFilters",
    False,
    "read only what the query's conditions need. Requires Spark 4.1 and `spark.sql.python.filterPushdown.enabled=true`",
)
CORRUPT_MESSAGES = choice(
    "corruptMessages",
    ("fail", "skip", "keep"),
    "what to do with messages with a wrong check sum, attribute header or compressed body. `keep` returns their bytes "
    "as received and adds the column `corrupt`",
    "fail",
)
MSG_TIME_ZONE: Option[tzinfo] = Option(
    "msgTimeZone",
    parsers.zone,
    "a time zone as UTC or Asia/Shanghai",
    "the zone of the producers' `$msgTime$`, and of times in options that name none",
    timezone.utc,
    shown_default="`UTC`",
)
METADATA_INTERVAL_MS = number(
    "metadataIntervalMs", "milliseconds", 100, "how often to look for new partitions and brokers", 30_000
)
MESSAGE_FORMAT = choice(
    "messageFormat",
    ("raw", "inlongmsg", "inlong"),
    "`inlongmsg`: messages are packs of InLong's DataProxy (V0). Each message inside becomes a row with more columns, "
    "and a message that is not a pack counts as corrupt. `inlong`: the attributes of each message say whether it is a "
    "plain body, InLongMsg (V0) or protobuf (V1)",
    "raw",
)
INLONG_DEFAULT_FORMAT = choice(
    "inlongDefaultFormat",
    ("inlongmsg", "raw"),
    "for `messageFormat=inlong`: the format of messages without the attributes `version` and `msgEnType`. With `raw` "
    "they are plain bodies, as DataProxy 1.2 and 1.3 sent them; packs without these attributes are not opened then",
    "inlongmsg",
)

MAX_UNPACKED_BYTES = number(
    "maxUnpackedBytes",
    "a number of bytes",
    1,
    "the maximum size of a decompressed message, or of all messages of an InLong pack with their attributes. A longer "
    "one counts as corrupt",
    MAX_UNPACKED,
    most=1 << 30,
)

# A query has one of these
_TOPICS: tuple[Option[Any], ...] = (SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)
# The first one that is set counts
_STARTINGS = (STARTING_TIMESTAMP, STARTING_OFFSETS_BY_TIMESTAMP, STARTING_OFFSETS)
_ENDINGS = (ENDING_TIMESTAMP, ENDING_OFFSETS_BY_TIMESTAMP, ENDING_OFFSETS)
_LIMITS = (MAX_OFFSETS_PER_TRIGGER, MAX_BYTES_PER_TRIGGER, MIN_OFFSETS_PER_TRIGGER, MAX_TRIGGER_DELAY)

SOURCE_OPTIONS = CLIENT_OPTIONS + defined(vars())


@dataclass(frozen=True)
class SourceOptions:
    """The user's choices. Durations are in seconds, moments have a zone, limits are in index entries."""

    client: ClientSettings
    topics: tuple[str, ...]  # with a pattern, none before `of_topics`
    pattern: re.Pattern[str] | None
    group: str
    starting: Bound
    ending: Bound
    assigned: frozenset[Partition] | None
    filters: Mapping[str, tuple[str, ...]]
    given_filters: Filters
    long_topics: frozenset[str]
    late_start: str
    skips_untimed: bool
    loss_policy: LossPolicy
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay: float
    partitions_per_task: int | None
    commit_offsets: bool
    push_filters: bool
    rows: RowFormat
    claim_timeout: float
    poll_interval: float
    metadata_interval: float

    @property
    def has_limits(self) -> bool:
        return any(limit is not None for limit in (self.max_offsets, self.max_bytes, self.min_offsets))

    def of_topics(self, topics: tuple[str, ...]) -> SourceOptions:
        """Return the options with these topics, which match the pattern; without a pattern, the options as they are."""
        if self.pattern is None:
            return self
        filters = parsers.types_of(topics, self.given_filters)
        rows = replace(self.rows, msg_types={topic: frozenset(types) for topic, types in filters.items()})
        return replace(self, topics=topics, filters=filters, rows=rows)

    @classmethod
    def read(cls, raw: Mapping[str, str], *, streaming: bool, schema: StructType | None = None) -> SourceOptions:
        """Return the options. `schema` has the columns to make, None for all.

        Raise `ConfigError` for a value or column that cannot be used.
        """
        check_options(raw)
        has_limits = _has_read_limits()
        starting = _first(raw, _STARTINGS) or Bound(STARTING_OFFSETS.name, LATEST if streaming else EARLIEST)
        if streaming:
            if PUSH_FILTERS.get(raw):
                _log.warning("[push-filters-ignored] option 'pushFilters' is for batch reads: a stream ignores it")
            for option in _set(raw, _ENDINGS):
                raise ConfigError(f"option '{option.name}' is for batch reads: a stream has no end, leave it out")
            for option in _set(raw, () if has_limits else _LIMITS):
                _log.warning(
                    "[read-limits-missing] option '%s' is ignored: this Spark has no read limits, they came with Spark "
                    "4.2. Each micro-batch reads all that is there, with trigger availableNow the whole backlog in one",
                    option.name,
                )
        else:
            for option in _set(raw, (*_LIMITS, COMMIT_OFFSETS) if COMMIT_OFFSETS.get(raw) else _LIMITS):
                _log.warning("[read-limit-ignored] option '%s' is for streams: a batch read ignores it", option.name)
            if LATEST in starting.places:
                raise ConfigError(
                    "option 'startingOffsets' is latest (-1), where a batch read would read nothing: leave it out to "
                    "begin at the earliest message, or give group, positions, or option 'startingTimestamp'"
                )
        assigned, pattern = ASSIGN.read(raw), SUBSCRIBE_PATTERN.read(raw)
        given_filters = FILTERS.read(raw) or {}
        topics = SUBSCRIBE.read(raw) or tuple(sorted({partition.topic for partition in assigned or ()}))
        filters = filters_of(topics, given_filters, pattern)
        long_topics = frozenset(LONG_MESSAGE_TOPICS.read(raw) or ())
        _check_named(LONG_MESSAGE_TOPICS, long_topics, topics, pattern)
        rows = row_format(raw, filters)
        late_start = STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY.read(raw)
        default_strategy = "latest" if starting.option == STARTING_TIMESTAMP.name else "error"
        return cls(
            client=ClientSettings.from_options(raw),
            topics=topics,
            pattern=pattern,
            group=GROUP_NAME.get(raw),
            starting=starting.in_zone(rows.zone),
            late_start=late_start or default_strategy,
            skips_untimed=late_start == "latest",
            ending=(_first(raw, _ENDINGS) or Bound(ENDING_OFFSETS.name, LATEST)).in_zone(rows.zone),
            assigned=assigned,
            filters=filters,
            given_filters=given_filters,
            long_topics=long_topics,
            loss_policy=LossPolicy(FAIL_ON_DATA_LOSS.get(raw), STREAM_ADVICE if streaming else BATCH_ADVICE),
            max_offsets=MAX_OFFSETS_PER_TRIGGER.read(raw) if has_limits else None,
            max_bytes=MAX_BYTES_PER_TRIGGER.read(raw) if has_limits else None,
            min_offsets=MIN_OFFSETS_PER_TRIGGER.read(raw) if has_limits else None,
            max_delay=MAX_TRIGGER_DELAY.get(raw),
            partitions_per_task=MAX_PARTITIONS_PER_TASK.read(raw),
            commit_offsets=COMMIT_OFFSETS.get(raw),
            push_filters=PUSH_FILTERS.get(raw),
            rows=rows if schema is None else with_columns(rows, schema),
            claim_timeout=CLAIM_TIMEOUT_MS.get(raw) / 1000,
            poll_interval=HEADS_INTERVAL_MS.get(raw) / 1000,
            metadata_interval=METADATA_INTERVAL_MS.get(raw) / 1000,
        )


def row_format(raw: Mapping[str, str], filters: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> RowFormat:
    """Return how messages become rows, with all columns. `filters` are the message types to read of each topic."""
    return RowFormat(
        MSG_TIME_ZONE.get(raw),
        CORRUPT_MESSAGES.get(raw),
        {topic: frozenset(types) for topic, types in filters.items()},
        MESSAGE_FORMAT.get(raw),
        MAX_UNPACKED_BYTES.get(raw),
        INLONG_DEFAULT_FORMAT.get(raw),
    )


def _first(raw: Mapping[str, str], options: tuple[Option[Bound], ...]) -> Bound | None:
    """Return the bound of the first of `options` that is set."""
    return next((found for option in options if (found := option.read(raw)) is not None), None)


def check_options(raw: Mapping[str, str]) -> None:
    """Raise `ConfigError` for options that neither a batch read nor a stream can use."""
    check_names(raw, SOURCE_OPTIONS, SINK_ONLY)
    ClientSettings.from_options(raw)
    for option in SOURCE_OPTIONS:
        option.read(raw)
    given = [f"'{option.name}'" for option in _set(raw, _TOPICS)]
    if not given:
        others = [f"or option '{option.name}': {option.expects}" for option in _TOPICS[1:]]
        raise ConfigError(f"option '{SUBSCRIBE.name}' is required: {', '.join([SUBSCRIBE.expects, *others])}")
    if len(given) > 1:
        raise ConfigError(f"give option {listed(given)}, not {'both' if len(given) == 2 else 'all'}")
    least, most = MIN_OFFSETS_PER_TRIGGER.read(raw), MAX_OFFSETS_PER_TRIGGER.read(raw)
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' is {least}, more than 'maxOffsetsPerTrigger', which is {most}: make it less"
        )
    if _set(raw, (INLONG_DEFAULT_FORMAT,)) and MESSAGE_FORMAT.get(raw) != "inlong":
        raise ConfigError("option 'inlongDefaultFormat' needs option 'messageFormat' with the value inlong")
    if PUSH_FILTERS.get(raw) and not hasattr(datasource, "Filter"):
        raise ConfigError("option 'pushFilters' needs Spark 4.1 or later: leave it out")


def _has_read_limits() -> bool:
    return find_spec("pyspark.sql.streaming.datasource") is not None


def _set(raw: Mapping[str, str], options: tuple[Option[Any], ...]) -> list[Option[Any]]:
    return [option for option in options if option.name.lower() in {key.lower() for key in raw}]


def filters_of(
    topics: tuple[str, ...], filters: Filters, pattern: re.Pattern[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the message types to read of each topic. Raise `ConfigError` if `filters` names another topic."""
    _check_named(FILTERS, {topic for topic in filters if topic is not None}, topics, pattern)
    return parsers.types_of(topics, filters)


def _check_named(
    option: Option[Any], named: Iterable[str], topics: tuple[str, ...], pattern: re.Pattern[str] | None
) -> None:
    """Raise `ConfigError` if the option names a topic that is not read."""
    unknown = sorted(set(named).difference(topics))
    if unknown and not (pattern and all(map(pattern.fullmatch, unknown))):
        raise ConfigError(f"option '{option.name}' names {', '.join(unknown)}, which is not one of the topics to read")
