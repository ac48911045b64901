"""How an option is declared, read and refused.

Spark hands the options over as text under lower-cased keys. A value that cannot be used, a required option that is not
there and an unknown `tubemq.*` key are `ConfigError`s that say what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tubemq_spark.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option: its name as documented, how its text becomes a value, what is expected of the text, and what it means.

    `parse` raises `ValueError` for a text it cannot use, in words for the user. `default` is the value
    without the option; `shown_default` is how the documentation writes it where `default` itself does not tell.
    `secret` values are not shown in errors. `expects` and `meaning` are what users read, in errors and in the
    documentation.
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
        """The value in `raw` (keys in any case), the default when it is not there."""
        text = _lower(raw).get(self.name.lower())
        if text is None:
            if self.required:
                raise ConfigError(f"option '{self.name}' is required: {self.expects}")
            return self.default
        try:
            return self.parse(text)
        except ValueError as cause:
            shown = "***" if self.secret else repr(text)
            raise ConfigError(f"option '{self.name}' is {shown}; expected {self.expects} ({cause})") from None

    def get(self, raw: Mapping[str, str]) -> T:
        """As `read`, for options that have a default or are required."""
        value = self.read(raw)
        if value is None:
            raise ConfigError(f"option '{self.name}' is required: {self.expects}")
        return value


# What users of Spark's Kafka source may type out of habit, and what to type here.
_KAFKAS: Mapping[str, str] = {
    "subscribepattern": "name the topics in option 'subscribe'",
    "startingoffsetsbytimestamp": "use option 'startingTimestamp'",
    "endingoffsetsbytimestamp": "use option 'endingTimestamp'",
    "startingoffsetsbytimestampstrategy": "where no message is late enough, reading starts at the latest",
    "groupidprefix": "use option 'tubemq.group'",
    "minpartitions": "a TubeMQ partition cannot be split: more partitions of the topic give more tasks",
    "maxrecordsperpartition": "a TubeMQ partition cannot be split: more partitions of the topic give more tasks",
    "includeheaders": "the column 'attributes' is always there",
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
    "kafka.acks": "a TubeMQ broker acknowledges from its memory, and there is no other choice",
}
_ALIKE = 0.6  # of difflib's ratio: from here on a name is worth a proposal
_MISSPELLED = 0.845  # from here on a name is ours, though it has another namespace


def check_names(raw: Mapping[str, str], known: Iterable[Option[Any]], elsewhere: Iterable[str] = ()) -> None:
    """`ConfigError` for a key that is none of `known`. `elsewhere` names options that are known, but not read here:
    programs give one set of options to a query's source and to its sink.

    Accepted besides are what Spark itself hands over, names that begin with `__`, and names in a namespace of their own
    (`spark.…`, and `option.…` of `CREATE TABLE`), except `tubemq.…`, `kafka.…` and what looks like a misspelling."""
    names = {option.name.lower(): option.name for option in known}
    accepted = {*names, *(name.lower() for name in elsewhere), *_OF_SPARK}
    for key in raw:
        if key.lower() not in accepted and not key.startswith("__"):
            _check_unknown(key, names.values())


def _check_unknown(key: str, names: Collection[str]) -> None:
    name = key.lower()
    if name in _KAFKAS:
        raise ConfigError(f"option '{key}' is of Spark's Kafka source, not of tubemq: {_KAFKAS[name]}")
    if name.startswith("kafka."):
        raise ConfigError(f"option '{key}' is of Spark's Kafka source; TubeMQ's client has options 'tubemq.…'")
    nearest = max(names, key=lambda known: _likeness(known, key))
    likeness = _likeness(nearest, key)
    if "." in name and not name.startswith("tubemq.") and likeness < _MISSPELLED:
        return
    if name.startswith("tubemq.") or likeness >= _ALIKE:
        raise ConfigError(f"option '{key}' is unknown; did you mean '{nearest}'?")
    raise ConfigError(f"option '{key}' is unknown to tubemq; leave it out, or look for its name in docs/options.md")


# What the source reads and the sink does not, and the other way round: neither imports the other.
ONLY_OF_THE_SOURCE = (
    "subscribe",
    "assign",
    "tubemq.group",
    "tubemq.claim.timeoutMs",
    "filters",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxPartitionsPerTask",
    "commitOffsets",
    "headsIntervalMs",
    "pushFilters",
    "corruptMessages",
    "msgTimeZone",
    "metadataIntervalMs",
    "maxUnpackedBytes",
)
ONLY_OF_THE_SINK = (
    "topic",
    "tubemq.producer.maxInFlight",
    "tubemq.producer.maxInFlightBytes",
    "failedRows",
    "deadLetterTopic",
    "stampRows",
    "effectivelyOnce",
    "effectivelyOnceGroup",
    "effectivelyOnceMaxOffsets",
    "effectivelyOnceUncertain",
    "receipts",
    "compression",
)

# Options that Spark itself hands to any source or sink: of readers and writers, and of `CREATE TABLE`.
_OF_SPARK = frozenset(
    {"path", "paths", "checkpointlocation", "mode", "numpartitions", "queryname", "outputmode"}
    | {"comment", "collation", "external", "is_managed_location", "location", "owner", "provider", "table_type"}
)


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is no whole number") from None
        if not least <= number <= most:
            raise ValueError(f"{number} is not within {least} and {most}")
        return number

    return parse


_UNITS: Mapping[str, float] = {
    "": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400,
}  # fmt: skip
_DURATION = re.compile(r"\s*([0-9]{1,12})\s*([a-z]*)\s*")


def duration(text: str) -> float:
    """Seconds of a text as Spark takes it: a number of milliseconds, or of the unit behind it (us, ms, s, m, min, h,
    d)."""
    found = _DURATION.fullmatch(text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no number with a unit")
    return int(found[1]) * _UNITS[found[2]]


def boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        choice = text.strip().lower()
        if choice not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return choice

    return parse


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return text.strip()


def _likeness(name: str, key: str) -> float:
    """How alike two names are, 0 to 1, with the prefix or without: that may be what is wrong."""
    pairs = (_bare(name), _bare(key)), (name.lower(), key.lower())
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def _bare(name: str) -> str:
    return name.lower().removeprefix("tubemq.")


def _lower(raw: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in raw.items()}
