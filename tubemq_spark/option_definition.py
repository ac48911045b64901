# SPDX-License-Identifier: Apache-2.0
"""The class `Option`, with which all options are declared, parsed and checked.

`client.settings`, `source.options` and `sink.options` declare options with it.

Spark passes options as text under lower-cased keys. An invalid value, a missing required option and an unknown
`tubemq.*` key raise a `ConfigError` that names what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.similar_names import did_you_mean, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option. Errors and the documentation show `expects` (the valid texts) and `meaning` to users.

    `parse` returns the value of a text, or raises `ValueError` with words for the user. `default` is the value without
    the option; the documentation shows `shown_default` instead if it is set. Errors do not show `secret` values.
    """

    name: str
    parse: Callable[[str], T]
    expects: str
    meaning: str
    default: T | None = None
    required: bool = False
    secret: bool = False
    shown_default: str | None = None

    def read(self, raw: Mapping[str, str]) -> T | None:
        """Return the value in `raw` (keys in any case) or the default; raise `ConfigError` if it is unusable."""
        text = {key.lower(): value for key, value in raw.items()}.get(self.name.lower())
        if text is None:
            if self.required:
                raise ConfigError(f"option '{self.name}' is required: {self.expects}")
            return self.default
        try:
            return self.parse(text)
        except ValueError as cause:
            shown = "***" if self.secret else repr(text)
            raise ConfigError(f"option '{self.name}' is {shown}; expected {self.expects} ({cause})") from None

    @property
    def preset(self) -> T:
        """The default of an option that has one."""
        assert self.default is not None, self.name
        return self.default

    def get(self, raw: Mapping[str, str]) -> T:
        """Return the same as `read`, for options that have a default or are required."""
        value = self.read(raw)
        if value is None:
            raise ConfigError(f"option '{self.name}' is required: {self.expects}")
        return value


def defined(names: Mapping[str, object]) -> tuple[Option[Any], ...]:
    """Return the options among a module's `names`, in the order of their definitions: the documentation has it too."""
    return tuple(one for one in tuple(names.values()) if isinstance(one, Option))


# Options of Spark's Kafka source that users may type out of habit, and what to type instead.
_KAFKA_OPTIONS: Mapping[str, str] = {
    "groupIdPrefix": "use option 'tubemq.group'",
    "minPartitions": "a TubeMQ partition cannot be split: more partitions of the topic give more tasks",
    "maxRecordsPerPartition": "a TubeMQ partition cannot be split: more partitions of the topic give more tasks",
    "auto.offset.reset": "use option 'startingOffsets'",
    "kafkaConsumer.pollTimeoutMs": "use option 'tubemq.rpc.timeoutMs'",
    "fetchOffset.numRetries": "use option 'tubemq.retry.maxElapsedMs'",
    "fetchOffset.retryIntervalMs": "use option 'tubemq.retry.maxElapsedMs'",
    "includeHeaders": "the column 'attributes' is always there",
    "kafka.bootstrap.servers": "use option 'tubemq.master' with the addresses of TubeMQ's masters",
    "kafka.group.id": "use option 'tubemq.group'",
    "kafka.security.protocol": "use option 'tubemq.tls.enabled', or 'tubemq.user' and 'tubemq.password'",
    "kafka.ssl.truststore.location": "use option 'tubemq.tls.ca' with a PEM file",
    "kafka.ssl.keystore.location": "use options 'tubemq.tls.cert' and 'tubemq.tls.key' with PEM files",
    "kafka.ssl.key.password": "use option 'tubemq.tls.keyPassword'",
    "kafka.ssl.endpoint.identification.algorithm": "use option 'tubemq.tls.verifyHostname'",
    "kafka.sasl.jaas.config": "use options 'tubemq.user' and 'tubemq.password'",
    "kafka.request.timeout.ms": "use option 'tubemq.rpc.timeoutMs'",
    "kafka.delivery.timeout.ms": "use option 'tubemq.retry.maxElapsedMs'",
    "kafka.retries": "use option 'tubemq.retry.maxElapsedMs'",
    "kafka.connections.max.idle.ms": "use option 'tubemq.connections.idleMs'",
    "kafka.max.in.flight.requests.per.connection": "use option 'tubemq.producer.maxInFlight'",
    "kafka.compression.type": "use option 'compression'",
    "kafka.acks": "a TubeMQ broker always acknowledges from its memory",
}


def check_names(raw: Mapping[str, str], known: Iterable[Option[Any]], elsewhere: Iterable[str] = ()) -> None:
    """Raise `ConfigError` for a key that is not in `known` or `elsewhere`. `elsewhere` are options of the other side:
    programs pass one set of options to a query's source and to its sink.

    Accept options of Spark itself: those that it adds, names that begin with `__`, `spark.…`, and `option.…` of
    `CREATE TABLE`.
    """
    names = {option.name.lower(): option.name for option in known}
    accepted = {*names, *(name.lower() for name in elsewhere), *_SPARK_OPTIONS}
    for key in raw:
        if key.lower() not in accepted and not key.lower().startswith(("__", "spark.", "option.")):
            _check_unknown(key, names.values())


def _check_unknown(key: str, names: Collection[str]) -> None:
    for option, instead in _KAFKA_OPTIONS.items():
        if option.lower() == key.lower():  # Spark gives names in lower case
            raise ConfigError(f"option '{option}' belongs to Spark's Kafka connector, not to tubemq: {instead}")
    if key.lower().startswith("kafka."):
        raise ConfigError(f"option '{key}' belongs to Spark's Kafka connector; TubeMQ's client has options 'tubemq.…'")
    if key.lower() in ("path", "paths"):
        raise ConfigError(
            f"option '{key}' is set, but TubeMQ has topics, no paths: call load(), save(), start() without, and "
            "name topics with option 'subscribe' to read, 'topic' to write"
        )
    if (meant := nearest(key, names)) is not None:
        raise ConfigError(f"option '{key}' is unknown; did you mean '{meant}'?")
    raise ConfigError(f"option '{key}' is unknown to tubemq; remove it, or look for its name in docs/options.md")


# Options that Spark passes to every source or sink: of readers and writers, and of `CREATE TABLE`.
_SPARK_OPTIONS = frozenset(
    {"checkpointlocation", "mode", "numpartitions", "queryname", "outputmode"}
    | {"comment", "collation", "external", "is_managed_location", "location", "owner", "provider", "table_type"}
)


@dataclass(frozen=True)
class WholeNumber:
    """The parser of whole numbers from `least` to `most`."""

    least: int
    most: int

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not self.least <= number <= self.most:
            raise ValueError(f"{number} is not between {self.least} and {self.most}")
        return number


def number(
    name: str, unit: str, least: int, meaning: str, default: int | None = None, *, most: int = 2**31 - 1
) -> Option[int]:
    """Return an option whose value is a whole number. `unit` says what it counts."""
    to = "or more" if most >= 2**31 - 1 else f"to {most}"
    return Option(name, WholeNumber(least, most), f"{unit}, {least} {to}", meaning, default)


_UNITS: Mapping[str, float] = {
    "": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400,
}  # fmt: skip
_DURATION = re.compile(r"\s*([0-9]{1,12})\s*([a-z]*)\s*")


def duration(text: str) -> float:
    """Return the seconds of a duration in Spark's format: a number of milliseconds, or a number and one of `_UNITS`."""
    found = _DURATION.fullmatch(text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a number with a unit")
    return int(found[1]) * _UNITS[found[2]]


def boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false{did_you_mean(text, ('true', 'false'))}") from None


def listed(texts: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class OneOf:
    """The parser of some texts, in any case. Its value is in lower case."""

    choices: Sequence[str]

    def __call__(self, text: str) -> str:
        choice = text.strip().lower()
        if choice not in (one.lower() for one in self.choices):
            raise ValueError(f"it is none of these{did_you_mean(text, self.choices)}")
        return choice


def choice(
    name: str, choices: Sequence[str], meaning: str, default: str | None = None, shown_default: str | None = None
) -> Option[str]:
    """Return an option whose value is one of `choices`, in lower case."""
    parse = OneOf(choices)
    return Option(name, parse, listed(choices), meaning, default and default.lower(), shown_default=shown_default)


def flag(name: str, default: bool, meaning: str) -> Option[bool]:
    return Option(name, boolean, "true or false", meaning, default)


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return text.strip()
