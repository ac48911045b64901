# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark consume`: print the messages of a topic."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from datetime import timezone, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.messages import FIELDS, Format, Message
from tubemq_spark.cli.moments import EARLIEST, EXPECTED, LATEST, Place, parse_partition, parse_place
from tubemq_spark.cli.output import progress
from tubemq_spark.cli.parameters import Topic, connected, ends_with_interrupt
from tubemq_spark.cli.reading import TopicReader, read_range
from tubemq_spark.client.retries import Deadline
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition

_POLL = 0.2  # seconds between two questions for new messages

ReadGroup = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", show_default="a temporary group",
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
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.", show_default="no limit")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="TEXT", show_default="JSON lines",
            help=r"How to print a message, for example '{partition} {attributes.site} {value}\n'. Fields: "
            f"{', '.join(FIELDS)}.",
        ),
    ] = None,
    group: ReadGroup = None,
    time_zone: TimeZone = "UTC",
) -> None:  # fmt: skip
    """Print messages of a topic as JSON lines or in a format. No group of yours moves.

    A value that is not UTF-8 text is printed as value_base64. Without --follow it ends at the present end of the topic.
    """
    write = _writer(text)
    begin = parse_place(start or ("latest" if follow else "earliest"), "--from")
    until = parse_place(end, "--to")
    if follow and until != LATEST:
        raise ConfigError("--follow has no end: leave --to out")
    member = TopicReader(connection.settings, group, topic, filters=filters or (), zone=parse_zone(time_zone))
    chosen = [parse_partition(one, topic, "--partition") for one in partition or ()]
    with ends_with_interrupt(follow), member:
        member.check(chosen)
        if follow:
            found = _follow(member, chosen, begin, filters or (), refresh)
        else:
            partitions = chosen or member.partitions
            found = read_range(
                member, member.resolve(begin, partitions), member.resolve(until, partitions, is_end=True), filters or ()
            )
        with closing(found), progress(f"reading {topic}", count, prints_lines=True) as advance:
            for message in itertools.islice(found, count):
                write(message)
                advance(1)
        sys.stdout.flush()


def _follow(
    member: TopicReader, chosen: Sequence[Partition], begin: Place, filters: Sequence[str], refresh: float
) -> Generator[Message, None, None]:
    """Yield messages without end. Every `refresh` seconds look for new partitions, unless the user chose some."""
    clock = member.session.settings.clock
    reached = member.resolve(begin, chosen or member.partitions)
    next_look = Deadline(refresh, clock)
    while True:
        present = member.ends
        ends = {one: max(position, present[one]) for one, position in reached.items()}
        if reached != ends:
            yield from read_range(member, reached, ends, filters)
            reached = ends
            sys.stdout.flush()
        else:
            time.sleep(_POLL)
        if next_look.passed and not chosen:
            reached |= member.resolve(EARLIEST, member.look_for_partitions())
            next_look = Deadline(refresh, clock)


def _writer(text: str | None) -> Callable[[Message], None]:
    out = sys.stdout
    if text is None:
        return lambda message: print(json.dumps(message.as_json(), ensure_ascii=False), file=out)
    form = Format(text)
    buffer = getattr(out, "buffer", None)

    def write(message: Message) -> None:
        if buffer is None:  # a stream of text, as in tests
            out.write(form(message).decode("utf-8", "replace"))
        else:
            buffer.write(form(message))

    return write


def parse_zone(name: str) -> tzinfo:
    """Return the time zone; raise `ConfigError` if this machine does not know it."""
    if name.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ConfigError(
            f"--time-zone {name!r} is unknown on this machine; expected a name as Asia/Shanghai"
        ) from None
