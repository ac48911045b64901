# SPDX-License-Identifier: Apache-2.0
"""Parsers of the source's option values. For an unusable text, they raise `ValueError` in words for the user."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from tubemq_spark.option_definition import not_blank
from tubemq_spark.protocol.constants import MAX_CLIENT_ID
from tubemq_spark.protocol.message import parse_moment, parse_zone
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.similar_names import did_you_mean
from tubemq_spark.source.bound import Bound, bound_from_json, moments_from_json
from tubemq_spark.source.offset import partition_from_text

GROUP_NAME = "the name of a consumer group: a letter, then at least one letter, digit, _ or -"

Filters = Mapping[str | None, tuple[str, ...]]
"""Message types by topic; None stands for all topics."""

MAX_FILTERS = 500  # message types of a topic (wire: TBaseConstants)
_MAX_FILTER_LENGTH = 256  # characters (wire: TBaseConstants)


def topics(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_topic(topic) for topic in text.split(",")))


def _topic(text: str) -> str:
    topic = text.strip()
    if not topic or any(c in "#:@" or c.isspace() for c in topic):
        raise ValueError("a topic is blank, or contains a blank or one of # : @")
    return topic


def pattern(text: str) -> re.Pattern[str]:
    """Return the expression. Refuse what has another meaning in Java's dialect: Python warns of nested sets."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(not_blank(text), re.ASCII)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"Python's `re` refuses it: {error}") from None


def assigned(text: str) -> frozenset[Partition]:
    data = _json(text)
    if not isinstance(data, dict) or not data or not all(isinstance(keys, list) and keys for keys in data.values()):
        raise ValueError('its form is not {"topic":["brokerId:partitionId",…]}')
    return frozenset(partition_from_text(_topic(topic), key) for topic, keys in data.items() for key in keys)


def group(text: str) -> str:
    """Return the name of a consumer group: others cannot be managed (wire: TBaseConstants.META_TMP_GROUP_VALUE)."""
    name = not_blank(text)
    if len(name) > MAX_CLIENT_ID or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]+", name):
        raise ValueError("it is too long, or has another form")
    return name


def filters(text: str) -> Filters:
    if text.strip().startswith("["):
        return {None: msg_types(_json(text))}
    if not text.strip().startswith("{"):
        types = text.split(",")
        if any(re.fullmatch(r"\s*(['\"]).*\1\s*", one, re.DOTALL) for one in types):
            raise ValueError("a message type is in quotes: leave them out, or write JSON")
        return {None: msg_types(types)}
    data = _json(text)
    if not data or not all(isinstance(types, list) for types in data.values()):
        raise ValueError('its form is not {"topic":["type",…]}')
    return {_topic(topic): msg_types(types) for topic, types in data.items()}


def types_of(topics: Iterable[str], filters: Filters) -> dict[str, tuple[str, ...]]:
    """Return the message types to read of each topic that has a filter."""
    for_all = filters.get(None, ())
    return {topic: types for topic in topics if (types := filters.get(topic, for_all))}


def msg_types(types: list[Any]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(one.strip() if isinstance(one, str) else "" for one in types))
    if not found or not all(found) or any(c in one for one in found for c in ",=#"):
        raise ValueError("a message type is blank, or contains one of , = #")
    if len(found) > MAX_FILTERS or any(len(one) > _MAX_FILTER_LENGTH for one in found):
        raise ValueError(
            f"there are more than {MAX_FILTERS} message types, or one is longer than {_MAX_FILTER_LENGTH} characters"
        )
    return found


def bound(option: str, *words: str) -> Callable[[str], Bound]:
    def parse(text: str) -> Bound:
        word = text.strip().lower()
        return Bound(option, word) if word in words else bound_from_json(option, _json(text, words), words)

    return parse


def moment_bound(option: str) -> Callable[[str], Bound]:
    return lambda text: Bound(option, parse_moment(text))


def moment_bounds(option: str) -> Callable[[str], Bound]:
    return lambda text: moments_from_json(option, _json(text))


def _json(text: str, words: Sequence[str] = ()) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError:
        raise ValueError(f"it is neither one of the words nor JSON{did_you_mean(text, words)}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its JSON has a key twice")
    return found


def zone(text: str) -> tzinfo:
    return parse_zone(not_blank(text))
