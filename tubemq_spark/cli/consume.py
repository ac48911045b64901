# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark consume` and `find`: print the messages of a topic, all or those that match."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext, suppress
from datetime import tzinfo
from typing import Annotated

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.messages import FIELDS, Message, formatter
from tubemq_spark.cli.moments import (
    EARLIEST,
    EXPECTED,
    LATEST,
    Place,
    parse_attributes,
    parse_partition,
    parse_place,
)
from tubemq_spark.cli.output import json_text, note, print_json, progress
from tubemq_spark.cli.parameters import Topic, check_group, connected
from tubemq_spark.cli.reading import TopicReader, read_range
from tubemq_spark.client.retries import Deadline
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.message import parse_zone as zone_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.option_parsers import msg_types
from tubemq_spark.source.row_format import MAX_UNPACKED

_POLL = 0.2  # seconds between two questions for new messages

ReadGroup = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", show_default="a temporary group", callback=check_group,
        help="Read in this group, for a topic that admits some groups only. No other client may read in it meanwhile; "
        "its positions stay where they are.",
    ),
]  # fmt: skip
TimeZone = Annotated[
    str,
    typer.Option("--time-zone", metavar="ZONE", help="The zone of the producers' message times, e.g. Asia/Shanghai."),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--filter", "-f", metavar="TYPE", help="Only messages of this type (msg_type); may be repeated."),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        metavar="NUMBER",
        min=1,
        max=10**12,
        help="End after so many messages.",
        show_default="no limit",
    ),
]
MaxUnpacked = Annotated[
    int,
    typer.Option(
        "--max-unpacked-bytes", metavar="NUMBER", min=1,
            help="A message that is longer after decompression is printed as corrupt, with "
        "the bytes as they were received.",
    ),
]  # fmt: skip


@connected()
def consume(
    connection: Connection,
    topic: Topic,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", "-o", metavar="PLACE", show_default="earliest, with --follow latest",
            help=f"Where to begin: {EXPECTED}. A time means msg_time.",
        ),
    ] = None,
    end: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="Where to end, as --from; messages before it are printed.")
    ] = "latest",
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", metavar="BROKER:PARTITION", help="Only this partition; may be repeated."),
    ] = None,
    filters: Types = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Wait for new messages until Ctrl-C; begins at latest by default.")
    ] = False,
    refresh: Annotated[
        float,
        typer.Option("--refresh", min=0.1, metavar="SECONDS", help="With --follow: seconds between two looks for new "
                     "partitions.")
    ] = 30.0,
    count: Count = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="TEXT", show_default="JSON lines",
            help=r"How to print a message, for example '{partition} {attributes.site} {value}\n'. Fields: "
            f"{', '.join(FIELDS)}. A terminal shows them escaped, as in JSON.",
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="With --format: print bytes as they are on a terminal, too. A message can then "
                     "command the terminal."),
    ] = False,
    group: ReadGroup = None,
    time_zone: TimeZone = "UTC",
    max_unpacked: MaxUnpacked = MAX_UNPACKED,
) -> None:  # fmt: skip
    """Print messages of a topic as JSON lines or in a format. No group of yours moves.

    A value that is not UTF-8 text is printed as value_base64. Without --follow it ends at the present end of the topic.
    """
    begin = parse_place(start or ("latest" if follow else "earliest"), "--from")
    until = parse_place(end, "--to")
    if follow and until != LATEST:
        raise ConfigError("--follow has no end: leave --to out")
    chosen = [parse_partition(one, topic, "--partition") for one in partition or ()]
    if raw and text is None:
        raise ConfigError("--raw needs --format: JSON is always escaped")
    form = None if text is None else formatter(text, is_raw=raw or not sys.stdout.isatty())
    with (
        suppress(KeyboardInterrupt) if follow else nullcontext(),
        _reader(connection, group, topic, filters, time_zone, max_unpacked) as reader,
    ):
        reader.check(chosen)
        found = _follow(reader, chosen, begin, refresh) if follow else _range(reader, begin, until, chosen or None)
        message = None
        with closing(found), progress(f"reading {topic}", count, prints_lines=True) as advance:
            for message in itertools.islice(found, count):
                if form is None:
                    print(json_text(message.as_json()))
                else:
                    _report(message)
                    sys.stdout.buffer.write(form(message))
                advance(1)
        sys.stdout.flush()
        if message is None:
            note(f"no message of topic {topic} is in the range" + (" and of these types" if filters else ""))


class NotFoundError(TubeMQError):
    """No message matches."""

    cause = "The command `find` read the range, and no message in it matches."
    remedy = "Check the range (`--since` and `--until`), the topic, and the id or attribute."


@connected()
def find(
    connection: Connection,
    topic: Topic,
    message_id: Annotated[
        list[int] | None, typer.Option("--id", metavar="ID", help="The id (column message_id); may be repeated.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="KEY=VALUE", help="An attribute that it has; may be repeated."),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="A text that the value contains.")] = None,
    filters: Types = None,
    since: Annotated[str, typer.Option("--since", metavar="PLACE", help=f"Where to begin: {EXPECTED}.")] = "earliest",
    until: Annotated[str, typer.Option("--until", metavar="PLACE", help="Where to end, as --since.")] = "latest",
    count: Count = None,
    group: ReadGroup = None,
    time_zone: TimeZone = "UTC",
    max_unpacked: MaxUnpacked = MAX_UNPACKED,
) -> None:
    """Print the messages that match all conditions, as JSON lines. Status 1 if there is none. No group of yours moves.

    All messages of the range are read, so give --since and --until for a large topic; times mean msg_time.
    """
    if not (message_id or attribute or text is not None):
        raise ConfigError("give at least one condition: --id, --attribute or --text")
    begin, end = parse_place(since, "--since"), parse_place(until, "--until")
    wanted = parse_attributes(attribute)
    part = (text or "").encode()

    def matches(message: Message) -> bool:
        own = message.attributes or {}
        return (
            (not message_id or message.message_id in message_id)
            and part in message.value
            and all(own.get(key) == value for key, value in wanted.items())
        )

    found = 0
    with (
        _reader(connection, group, topic, filters, time_zone, max_unpacked) as reader,
        closing(_range(reader, begin, end)) as messages,
        progress(f"searching {topic}", prints_lines=True) as advance,
    ):
        for message in messages:
            advance(1)
            _report(message)
            if matches(message):
                print_json(message.as_json())
                found += 1
            if found == count:
                break
    if not found:
        raise NotFoundError(f"no message of topic {topic} matches. Check the range: --since and --until")


def _reader(
    connection: Connection, group: str | None, topic: str, filters: list[str] | None, zone: str, max_unpacked: int
) -> TopicReader:
    try:
        types = msg_types(filters) if filters else ()
    except ValueError as cause:
        raise ConfigError(f"--filter: {cause}") from None
    return TopicReader(
        connection.settings, group, topic, filters=types, zone=parse_zone(zone), max_unpacked=max_unpacked
    )


def _range(
    reader: TopicReader, begin: Place, end: Place, partitions: Sequence[Partition] | None = None
) -> Generator[Message, None, None]:
    extents = reader.extents(partitions)  # once: messages that come during a search by time may be earlier
    starts, ends = reader.resolve(begin, extents), reader.resolve(end, extents, is_end=True)
    reader.long_messages.wait_until_flushed({one: end for one, end in ends.items() if starts[one] < end})
    return read_range(reader, starts, ends)


def _follow(
    reader: TopicReader, chosen: Sequence[Partition], begin: Place, refresh: float
) -> Generator[Message, None, None]:
    """Yield messages without end. Every `refresh` seconds look for new partitions, unless the user chose some."""
    clock = reader.session.settings.clock
    reached = reader.resolve(begin, reader.extents(chosen or None))
    next_look = Deadline(refresh, clock)
    while True:
        ends = {one: end for one, (_, end) in reader.extents(reached).items()}
        for one, end in ends.items():
            if end < reached[one]:
                note(
                    f"the store of {one} ends at {end} now, before {reached[one]}: its broker lost messages, or the "
                    f"topic was created anew. Following goes on at {end}; `--from earliest` without `--follow` shows "
                    "what is stored before that"
                )
        flushed = reader.long_messages.flushed_ends(reached, ends, {one.store for one in reached})
        ends |= {one: max(reached[one], min(ends[one], at)) for one, at in flushed.items()}
        if reached != ends:
            yield from read_range(reader, reached, ends)
            reached = ends
            sys.stdout.flush()
        else:
            time.sleep(_POLL)
        if next_look.passed and not chosen:
            reached |= reader.resolve(EARLIEST, reader.extents(reader.look_for_partitions()))
            next_look = Deadline(refresh, clock)


def _report(message: Message) -> None:
    """Say that a message is corrupt, where its JSON does not say that."""
    if message.problem is not None:
        note(f"message {message.message_id} is corrupt, so its value are the bytes as received: {message.problem}")


def parse_zone(name: str) -> tzinfo:
    """Return the time zone; raise `ConfigError` if this machine does not know it."""
    try:
        return zone_of(name)
    except ValueError as cause:
        raise ConfigError(f"--time-zone is {name!r}: {cause}; expected a name as Asia/Shanghai") from None
