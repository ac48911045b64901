# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark find`: look for messages by id, attribute or text within a range of time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Annotated

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.consume import ReadGroup, TimeZone, Types, parse_zone
from tubemq_spark.cli.messages import Message
from tubemq_spark.cli.moments import EXPECTED, parse_place
from tubemq_spark.cli.output import print_json, progress
from tubemq_spark.cli.parameters import Topic, connected
from tubemq_spark.cli.reading import TopicReader, read_range
from tubemq_spark.cli.records import parse_attributes
from tubemq_spark.errors import ConfigError, TubeMQError


class NotFoundError(TubeMQError):
    """No message matches."""

    cause = "The command `find` read the range, and no message in it matches."
    remedy = "Check the range (`--since` and `--until`), the topic, and the id or attribute."


@connected()
def find(
    connection: Connection,
    topic: Topic,
    message_id: Annotated[
        list[int] | None, typer.Option("--id", help="The id (column message_id); may be repeated.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", "-a", metavar="KEY=VALUE", help="An attribute that it has; may be repeated."),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="A text that the value contains.")] = None,
    filters: Types = None,
    since: Annotated[str, typer.Option("--since", metavar="PLACE", help=f"Where to begin: {EXPECTED}.")] = "earliest",
    until: Annotated[str, typer.Option("--until", metavar="PLACE", help="Where to end, as --since.")] = "latest",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.", show_default="no limit")
    ] = None,
    group: ReadGroup = None,
    time_zone: TimeZone = "UTC",
) -> None:
    """Print the messages that match all conditions, as JSON lines. Status 1 if there is none. No group of yours moves.

    All messages of the range are read, so give --since and --until for a large topic; times mean msg_time.
    """
    if not (message_id or attribute or text is not None):
        raise ConfigError("give at least one condition: --id, --attribute or --text")
    begin, end = parse_place(since, "--since"), parse_place(until, "--until")
    matches = _condition(set(message_id or ()), parse_attributes(attribute or (), "--attribute"), text)
    zone = parse_zone(time_zone)
    found = 0
    with TopicReader(connection.settings, group, topic, filters=filters or (), zone=zone) as member:
        starts, ends = member.resolve(begin), member.resolve(end, is_end=True)
        with (
            progress(f"searching {topic}", prints_lines=True) as advance,
            closing(read_range(member, starts, ends, filters or ())) as all_,
        ):
            for message in itertools.islice((one for one in _counted(all_, advance) if matches(one)), count):
                print_json(message.as_json())
                found += 1
    if not found:
        raise NotFoundError(f"no message of topic {topic} matches. Check the range: --since and --until")


def _counted(messages: Iterator[Message], advance: Callable[[int], None]) -> Iterator[Message]:
    for message in messages:
        advance(1)
        yield message


def _condition(ids: set[int], attributes: dict[str, str], text: str | None) -> Callable[[Message], bool]:
    part = None if text is None else text.encode()

    def matches(message: Message) -> bool:
        if ids and message.message_id not in ids:
            return False
        if part is not None and part not in message.value:
            return False
        own = message.attributes or {}
        return all(own.get(key) == value for key, value in attributes.items())

    return matches
