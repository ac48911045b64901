# SPDX-License-Identifier: Apache-2.0
"""Check `options`: names and values of the source's and the sink's options. Each bad one is a result of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

from tubemq_spark.checks.result import CheckResult, failed, ok, split_advice, warning
from tubemq_spark.client.settings import MASTER, ClientSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import Option, check_names
from tubemq_spark.sink.options import DEAD_LETTER_TOPIC, SINK_OPTIONS, TOPIC, SinkOptions
from tubemq_spark.source.option_parsers import Filters

T = TypeVar("T")

_REMEDY = "correct the option; docs/options.md lists all of them"


@dataclass(frozen=True)
class CheckSettings:
    """What the checks are about.

    `topics`, or those that match `pattern`, are read in `group`; without a group the checks use a new name. `filters`
    are the message types by topic, with None for all topics. `long_topics` are those of option `longMessageTopics`.
    `written` are the topics that a sink writes. Both may be empty: then only servers are checked.
    """

    client: ClientSettings
    topics: tuple[str, ...] = ()
    group: str | None = None
    filters: Filters = field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    written: tuple[str, ...] = ()
    long_topics: tuple[str, ...] = ()


def check_settings(raw: Mapping[str, str]) -> tuple[list[CheckResult], CheckSettings | None]:
    """Return the results, and the settings if enough of the options can be used: those of the client.

    The options may be those of a source, of a sink, of both, or the client's alone (`tubemq.…`).
    """
    try:
        from tubemq_spark.source import options as source
    except ModuleNotFoundError as error:  # pyspark or pyarrow, whose versions are results of their own
        return _client_alone(raw, f"the options of the source cannot be checked: {error}")
    known = (*source.SOURCE_OPTIONS, *SINK_OPTIONS)
    problems = list(_single(raw, known)) or list(_together(raw, source))
    results = [failed("options", subject, *split_advice(error, _REMEDY)) for subject, error in problems]
    if not results:
        results = [ok("options", f"{len(raw)} options", "names and values are valid")]
    try:
        client = ClientSettings.from_options(raw)
    except ConfigError:
        return results, None
    assigned = _value(source.ASSIGN, raw) or ()
    topics = _value(source.SUBSCRIBE, raw) or tuple(sorted({partition.topic for partition in assigned}))
    pattern, filters = _value(source.SUBSCRIBE_PATTERN, raw), _value(source.FILTERS, raw) or {}
    written = tuple(topic for option in (TOPIC, DEAD_LETTER_TOPIC) if (topic := _value(option, raw)))
    long_topics = _value(source.LONG_MESSAGE_TOPICS, raw) or ()
    group = _value(source.GROUP_NAME, raw)
    return results, CheckSettings(client, topics, group, filters, pattern, written, long_topics)


def _client_alone(raw: Mapping[str, str], why: str) -> tuple[list[CheckResult], CheckSettings | None]:
    results = [warning("options", "source", why, "install pyspark and pyarrow for this Python")]
    try:
        client = ClientSettings.from_options(raw)
    except ConfigError as error:
        return [*results, failed("options", "options", *split_advice(error, _REMEDY))], None
    return results, CheckSettings(client)


def _single(raw: Mapping[str, str], known: Sequence[Option[Any]]) -> Iterator[tuple[str, ConfigError]]:
    """Yield the name and the error of each option that is bad by itself."""
    for key, value in raw.items():
        named = [option for option in known if option.name.lower() == key.lower()]
        try:
            check_names({key: value}, known)
            for option in named:
                option.read({key: value})
        except ConfigError as error:
            yield (named[0].name if named else key), error


def _together(raw: Mapping[str, str], source: ModuleType) -> Iterator[tuple[str, ConfigError]]:
    """Yield the first error of options that are good by themselves and do not fit together."""
    keys = {key.lower() for key in raw}
    try:
        MASTER.get(raw)
        ClientSettings.from_options(raw)
        if keys & {"subscribe", "subscribepattern", "assign"}:
            source.SourceOptions.read(raw, streaming=not keys & {"endingoffsets", "endingtimestamp", "pushfilters"})
        if keys & {"topic", "deadlettertopic", "failedrows", "effectivelyonce"}:
            SinkOptions.from_options(raw)
    except ConfigError as error:
        yield "options", error


def _value(option: Option[T], raw: Mapping[str, str]) -> T | None:
    """Return the option's value; None if it is not set or bad."""
    try:
        return option.read(raw)
    except ConfigError:
        return None
