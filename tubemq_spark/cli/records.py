# SPDX-License-Identifier: Apache-2.0
"""Records that `produce` sends: lines, files, and JSON lines as `consume` prints them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timezone
from typing import Any, BinaryIO

from tubemq_spark.cli.messages import FIELDS
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import format_msg_time, parse_moment, parse_msg_time


@dataclass(frozen=True)
class Record:
    """A message to send. `msg_time` is `yyyyMMddHHmm` in UTC."""

    value: bytes
    key: bytes | None = None
    msg_type: str | None = None
    msg_time: str | None = None
    attributes: Mapping[str, str] | None = None


_OWN = [field.name for field in fields(Record)]
_TEXTS = (*(name for name in _OWN if name != "attributes"), "value_base64")
_IGNORED = {*FIELDS, "corrupt"}.difference(_OWN)  # where `consume` found it


def line_records(file: BinaryIO, template: Record, key_separator: str | None) -> Iterator[Record]:
    """Yield one record for each line, without its end; the key is what precedes the separator."""
    separator = None if key_separator is None else key_separator.encode()
    for number, line in enumerate(file, 1):
        text = line.rstrip(b"\r\n")
        if separator is None:
            yield replace(template, value=text)
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise ConfigError(f"line {number} has no key: {key_separator!r} of --key-separator is missing")
        yield replace(template, value=value, key=key)


def json_records(file: BinaryIO, template: Record) -> Iterator[Record]:
    """Yield one record for each JSON line; what a line leaves out comes from the template."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("it is not a JSON object")
            yield _record(found, template)
        except ValueError as error:
            raise ConfigError(f"line {number}: {error}") from None


def _record(found: dict[str, Any], template: Record) -> Record:
    if unknown := sorted(set(found) - {*_TEXTS, *_IGNORED, "attributes"}):
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join((*_TEXTS, 'attributes'))}")
    for name in _TEXTS:
        if not isinstance(found.get(name), str | None):
            raise ValueError(f"{name} is not text")
    if ("value" in found) == ("value_base64" in found):
        raise ValueError("it needs either value or value_base64")
    value = (
        found["value"].encode()
        if found.get("value") is not None
        else b64decode(found.get("value_base64") or "", validate=True)
    )
    attributes = found.get("attributes")
    if attributes is not None and not all(isinstance(one, str) for one in dict(attributes).values()):
        raise ValueError("attributes are not an object of texts")
    key, time = found.get("key"), found.get("msg_time")
    return Record(
        value,
        template.key if key is None else key.encode(),
        found.get("msg_type") or template.msg_type,
        template.msg_time if time is None else minute_of(time),
        {**(template.attributes or {}), **attributes} if attributes else template.attributes,
    )


def minute_of(text: str) -> str:
    """Return a `yyyyMMddHHmm`, or the text of `parse_moment`, as the former in UTC. Raises as `parse_moment`."""
    if parse_msg_time(text) is not None:
        return text
    moment = parse_moment(text)
    return format_msg_time(moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc))


def parse_attributes(texts: Iterable[str], name: str) -> dict[str, str]:
    """Return `KEY=VALUE` texts as attributes; raise `ConfigError` that names the option."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"{name} {text!r} is not KEY=VALUE")
        found[key] = value
    return found
