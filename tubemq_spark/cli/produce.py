# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark produce`: send messages from the standard input or from files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.moments import parse_partition
from tubemq_spark.cli.output import print_json, progress
from tubemq_spark.cli.parameters import Json, Topic, connected
from tubemq_spark.cli.records import Record, json_records, line_records, minute_of, parse_attributes
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import encode_attributes, format_msg_time


@connected()
def produce(
    connection: Connection,
    topic: Topic,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files to send; - is the standard input.", show_default="-")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send each file as one message, not each line.")] = False,
    from_json: Annotated[
        bool,
        typer.Option(
            "--from-json",
            help="The input is JSON lines as consume prints them: value or value_base64, and key, msg_type, msg_time, "
            "attributes. Where a message came from is ignored, so this copies a topic.",
        ),
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="The key: messages of one key go to one partition, in order.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="The key of a line ends at this text.")
    ] = None,
    msg_type: Annotated[str | None, typer.Option("--type", "-t", help="The type (msg_type), for filters.")] = None,
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
) -> None:
    """Send messages to a topic: the lines of the standard input, or of files. Ends when all are stored."""
    if from_json and (whole or key_separator is not None):
        raise ConfigError("--from-json excludes --whole and --key-separator")
    try:
        minute = None if msg_time is None else minute_of(msg_time)
    except ValueError:
        raise ConfigError(f"--time is {msg_time!r}; expected a time such as 2026-11-22T10:00") from None
    key_bytes = None if key is None else key.encode()
    template = Record(b"", key_bytes, msg_type, minute, parse_attributes(attribute or (), "--attribute") or None)
    target = None if partition is None else parse_partition(partition, topic, "--partition")
    with Producer(connection.settings, rows_of="of the input") as producer, progress(f"sending to {topic}") as advance:
        for number, record in enumerate(_records(files or [Path("-")], template, whole, from_json, key_separator), 1):
            time = record.msg_time or format_msg_time(datetime.now(timezone.utc))
            attributes = encode_attributes(record.attributes, record.msg_type, time)
            producer.send(
                topic,
                record.value,
                attributes,
                record.msg_type,
                time,
                number,
                key=record.key,
                target=None if target is None else (target.broker_id, target.partition_id),
            )
            advance(1)
        stored = producer.flush()
    counts = {f"{one.broker_id}:{one.partition_id}": count for one, count in sorted(stored.items())}
    if as_json:
        print_json({"topic": topic, "stored": sum(counts.values()), "partitions": counts})
    else:
        where = ", ".join(f"{place} {count}" for place, count in counts.items())
        print(f"stored {sum(counts.values())} messages in topic {topic}" + (f" ({where})" if where else ""))


def _records(
    files: list[Path], template: Record, whole: bool, from_json: bool, key_separator: str | None
) -> Iterator[Record]:
    for path in files:
        with _opened(path) as file:
            if whole:
                yield Record(file.read(), template.key, template.msg_type, template.msg_time, template.attributes)
            elif from_json:
                yield from json_records(file, template)
            else:
                yield from line_records(file, template, key_separator)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield file
