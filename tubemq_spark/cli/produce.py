# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark produce`: send lines, files, or JSON lines as `consume` prints them."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.messages import FIELDS
from tubemq_spark.cli.moments import parse_attributes, parse_partition, parse_time
from tubemq_spark.cli.output import print_result, progress
from tubemq_spark.cli.parameters import Json, Topic, connected
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.message import encode_attributes, format_msg_time, parse_msg_time
from tubemq_spark.source.option_parsers import without_repeats

_PART = 1 << 16  # bytes of the input that are read at a time
_LONGEST = 64 << 20  # bytes of a line: no message is so long, not even as JSON


T = TypeVar("T")


class InputError(TubeMQError):
    """A line of the input is not a message that can be sent."""

    cause = "A line of the input of `produce` is not a message, or is one that the topic does not take."
    remedy = "Correct the line that the text names, and send it and the lines behind it. Those before it are stored."


class Record(NamedTuple):
    """A message to send. `msg_time` is `yyyyMMddHHmm` in UTC."""

    value: bytes
    key: bytes | None = None
    msg_type: str | None = None
    msg_time: str | None = None
    attributes: Mapping[str, str] | None = None


_TEXTS = (*Record._fields[:-1], "value_base64")
_IGNORED = {*FIELDS, "corrupt", "problem"}.difference(Record._fields)  # where `consume` found it


@connected()
def produce(
    connection: Connection,
    topic: Topic,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Files to send; - is the standard input.", show_default="-"
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send each file as one message, not each line.")] = False,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="The input is JSON lines as consume prints them: value or value_base64, and key, msg_type, msg_time, "
            "attributes. Where a message came from is ignored, so this copies a topic. Messages without msg_time get "
            "--time.",
        ),
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY",
        help="The key: messages of one key go to one partition, in order.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="The key of a line ends at this text.")
    ] = None,
    msg_type: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE",
        help="The type (msg_type), for filters.")] = None,
    msg_time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The time (msg_time), UTC.", show_default="now")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="KEY=VALUE", help="An attribute; may be repeated.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", metavar="BROKER:PARTITION", help="Send all to this partition."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Send messages to a topic: the lines of the standard input, or of files. Ends when all are stored.

    What a live input has written so far is stored whenever it pauses. A line that cannot be sent ends the command with
    status 1; the lines before it are stored.
    """
    if from_json and (whole or key_separator is not None):
        raise ConfigError("--from-json excludes --whole and --key-separator")
    if key is not None and key_separator is not None:
        raise ConfigError("give --key or --key-separator, not both")
    try:
        minute = None if msg_time is None else _minute_of(msg_time, "--time")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    key_bytes = None if key is None else key.encode()
    template = Record(b"", key_bytes, msg_type, minute, parse_attributes(attribute) or None)
    target = None if partition is None else parse_partition(partition, topic, "--partition")
    for path in files or ():
        if str(path) != "-" and (path.is_dir() or not os.access(path, os.R_OK)):
            raise ConfigError(f"{path} is not a file that can be read")
    separator = None if key_separator is None else key_separator.encode()
    if separator == b"":
        raise ConfigError("--key-separator is empty")
    parse: Callable[[bytes], Record | None]
    parse = partial(_json_record, template) if from_json else partial(_record, template, separator)
    stop: BaseException | None = None
    with Producer(connection.settings, rows_of="of the input") as producer, progress(f"sending to {topic}") as advance:
        try:
            producer.check(topic, target)
        except ConfigError as error:  # there is no message yet
            raise ConfigError(str(error).removeprefix("a message: ")) from None
        rows = 0
        try:
            parts = chain.from_iterable(_lines(path, whole=whole) for path in files or [Path("-")])
            for place, line in _interruptible(parts):
                if line is None:  # the input pauses
                    producer.flush()
                    continue
                try:
                    if (record := parse(line)) is None:
                        continue
                    rows += 1
                    time = record.msg_time or format_msg_time(datetime.now(timezone.utc))
                    producer.send(
                        topic,
                        record.value,
                        encode_attributes(record.attributes, record.msg_type, time),
                        record.msg_type,
                        time,
                        rows,
                        key=record.key,
                        target=None if target is None else (target.broker_id, target.partition_id),
                    )
                except (ValueError, RecursionError, ConfigError) as error:
                    if producer.has_failed:
                        raise
                    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                    text = text.removeprefix(f"row {rows} of the input: ")  # the place says that
                    raise InputError(f"{place}: {text}") from None
                advance(1)
        except (InputError, KeyboardInterrupt) as error:
            stop = error
        stored = producer.flush()
    counts = {f"{one.broker_id}:{one.partition_id}": count for one, count in sorted(stored.items())}
    try:
        total, places = sum(counts.values()), ", ".join(f"{place} {count}" for place, count in counts.items())
        print_result(
            f"stored {total} messages in topic {topic}" + (f" ({places})" if places else ""),
            {"topic": topic, "stored": total, "partitions": counts},
            as_json=as_json,
        )
    finally:  # also if nobody reads that
        if stop is not None:
            raise stop


def _lines(path: Path, *, whole: bool) -> Iterator[tuple[str, bytes | None]]:
    """Yield each line, without its end, or the whole file, and its place for errors. Yield None instead of a line
    before waiting for more input, for example of a pipe. Raise `InputError` if the input cannot be read."""
    is_file = str(path) != "-"
    name = str(path) if is_file else "the standard input"
    if not is_file and sys.stdin is None:
        raise InputError("the standard input is closed")
    number, kept = 1, bytearray()

    def place() -> str:
        return name if whole else f"{name}, line {number}"

    try:
        with open(path if is_file else sys.stdin.fileno(), "rb", buffering=0, closefd=is_file) as file:
            while True:
                if not whole and not select.select([file], [], [], 0)[0]:
                    yield place(), None
                part: bytes | None = file.read(_PART)
                if part is None:  # somebody who shares the input has made it non-blocking
                    select.select([file], [], [])
                    continue
                if not part:
                    break
                *lines, rest = [part] if whole else part.split(b"\n")
                for line in lines:
                    yield place(), (bytes(kept) + line).removesuffix(b"\r")
                    number, kept = number + 1, bytearray()
                kept += rest
                if len(kept) > _LONGEST:
                    raise InputError(f"{place()}: it is longer than any message")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if whole or kept:
        yield place(), bytes(kept) if whole else bytes(kept).removesuffix(b"\r")


def _interruptible(parts: Iterable[T]) -> Iterator[T]:
    """Yield them. From now on Ctrl-C and SIGTERM are raised while the next one is awaited, because they would break a
    producer that sends; a second one is raised at once."""
    is_waiting, is_interrupted = True, False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_second, is_interrupted = is_interrupted, True
        if is_waiting or is_second:
            raise KeyboardInterrupt

    with suppress(ValueError):  # outside of the main thread, which alone receives signals
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as for a command in the background of a script
                signal.signal(number, interrupt)
    try:
        for part in parts:
            is_waiting = False
            yield part
            is_waiting = True
            if is_interrupted:
                raise KeyboardInterrupt
    finally:
        is_waiting = False


def _record(template: Record, separator: bytes | None, line: bytes) -> Record:
    """Return the record of a line; with a separator, its key is what precedes it. Raise `ValueError` without a key."""
    if separator is None:
        return template._replace(value=line)
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError("it has no key, because the text of --key-separator is missing")
    return template._replace(value=value, key=key)


def _json_record(template: Record, line: bytes) -> Record | None:
    """Return the record of a JSON line, None for a blank one; what it leaves out comes from the template. Raise
    `ValueError` or `RecursionError` for a wrong one."""
    if not line.strip():
        return None
    try:
        found: Any = json.loads(line, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as cause:
        raise ValueError(f"it is not JSON ({cause}); leave --from-json out to send lines as they are") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if unknown := sorted(set(found) - {*_TEXTS, *_IGNORED, "attributes"}):
        raise ValueError(f"unknown fields {', '.join(unknown)}; known are {', '.join((*_TEXTS, 'attributes'))}")
    if found.get("corrupt"):
        raise ValueError("it is corrupt: `consume` could not decode the message, so its bytes are not a body")
    for name in _TEXTS:
        if not isinstance(found.get(name), str | None):
            raise ValueError(f"{name} is not text")
    values = [name for name in ("value", "value_base64") if name in found]
    if len(values) != 1 or found[values[0]] is None:
        raise ValueError("it needs either value or value_base64, and a text in it")
    attributes = {} if found.get("attributes") is None else found["attributes"]
    if not (isinstance(attributes, dict) and all(isinstance(one, str) for one in attributes.values())):
        raise ValueError("attributes are not an object of texts")
    key, time = found.get("key"), found.get("msg_time")
    return Record(
        _bytes_of(values[0], found[values[0]]),
        template.key if key is None else _bytes_of("key", key),
        found.get("msg_type") or template.msg_type,
        template.msg_time if time is None else _minute_of(time, "msg_time"),
        {**(template.attributes or {}), **attributes} or None,
    )


def _bytes_of(name: str, text: str) -> bytes:
    """Return the bytes that the text of a field means. Raise `ValueError` that names the field if it means none."""
    try:
        return b64decode(text, validate=True) if name == "value_base64" else text.encode()
    except ValueError as cause:
        raise ValueError(f"{name} cannot be sent: {cause}") from None


def _minute_of(text: str, name: str) -> str:
    """Return a `yyyyMMddHHmm`, or the text of `parse_time`, as the former in UTC. Raise `ValueError` that names
    the time for another text."""
    try:
        return text if parse_msg_time(text) is not None else format_msg_time(parse_time(text))
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected a time such as 2026-11-22T10:00") from None
