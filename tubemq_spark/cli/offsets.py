# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark offsets`: change the positions of an idle group.

A command claims the group's partitions, shows what would change, and moves the group while it holds them. Nobody else
can read in the group, or move it, in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from tubemq_spark.cli.checkpoint import committed_positions
from tubemq_spark.cli.commands import Commands
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.consume import TimeZone, parse_zone
from tubemq_spark.cli.moments import EARLIEST, EXPECTED, LATEST, Place, parse_partition, parse_place, place_of
from tubemq_spark.cli.new_group import Create, is_new
from tubemq_spark.cli.output import confirm, note, print_line, print_plan, print_result
from tubemq_spark.cli.parameters import Group, Json, Topic, Yes, check_topic, connected
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.errors import ConfigError, PartitionOccupiedError, TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

app = Commands(
    help="Change the positions of a group. The command lag shows them. A Spark query continues from its checkpoint.",
)

_BEYOND = "give an earlier place, or latest"

Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="Seconds to wait for partitions that another client holds."),
]


@app.command("set")
@connected(admin=True)
def set_offsets(
    connection: Connection,
    group: Group,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="The name of the topic.",
            show_default="with --checkpoint all of its source",
            callback=check_topic,
        ),
    ] = None,
    positions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BROKER:PARTITION=PLACE", help=f"A partition and where: {EXPECTED}.", show_default=False
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            show_default=False,
            help="Instead of positions: the checkpoint of a stopped query, a path or a URI. The group moves to the end "
            "of the last batch that the query has committed.",
        ),
    ] = None,
    wait: Wait = 0.0,
    time_zone: TimeZone = "UTC",
    create: Create = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a group in some partitions, for example 1:0=earliest 1:1=280, or with --checkpoint to where a stopped query
    has committed. Refuses while another client reads there."""
    if (checkpoint is None) == (not positions) or (topic is None and positions):
        raise ConfigError("give TOPIC and BROKER:PARTITION=PLACE, or --checkpoint FOLDER")
    committed = {} if checkpoint is None else dict(committed_positions(checkpoint, topic))
    places: dict[Partition, Place] = {**committed}
    for text in positions or ():
        where, separator, what = text.partition("=")
        if not separator:
            raise ConfigError(f"{text!r} is not BROKER:PARTITION=PLACE, for example 1:0=earliest")
        partition = parse_partition(where, topic or "", "the partition")
        if partition in places:
            raise ConfigError(f"{partition} is given twice")
        places[partition] = parse_place(what, "the place")

    def find(member: GroupMember) -> dict[Partition, int]:
        if checkpoint is not None:  # the query may have committed more while the command waited
            committed.update(committed_positions(checkpoint, topic))
            places.update(committed)
        member.check(places)
        return _targets(
            member,
            places,
            "the checkpoint is of another cluster, or the broker lost messages. Give the positions instead: "
            "BROKER:PARTITION=PLACE" if committed else _BEYOND,
        )  # fmt: skip

    topics = sorted({one.topic for one in places})
    member = GroupMember(connection.settings, group, *topics, claim_timeout=wait, zone=parse_zone(time_zone))
    _move(connection, member, find, create, yes, as_json)


@app.command("reset")
@connected(admin=True)
def reset_offsets(
    connection: Connection,
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help=f"Where to: {EXPECTED}.", show_default=False)],
    wait: Wait = 0.0,
    time_zone: TimeZone = "UTC",
    create: Create = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a group in all partitions of a topic. Refuses while another client reads there.

    With a time, each partition moves to its first message whose msg_time is not earlier. A group without a position
    counts as one at the earliest.
    """
    place = parse_place(to, "--to")
    member = GroupMember(connection.settings, group, topic, claim_timeout=wait, zone=parse_zone(time_zone))
    places = partial(_targets, beyond=_BEYOND)
    _move(connection, member, lambda one: places(one, dict.fromkeys(one.partitions, place)), create, yes, as_json)


def _targets(member: GroupMember, places: Mapping[Partition, Place], beyond: str) -> dict[Partition, int]:
    """Return the position that each place means, and note where it is not the one that the user named. Raise
    `ConfigError`, which ends with `beyond`, for a position behind the end of its store."""
    extents = member.extents()
    found: dict[Partition, int] = {}
    for place in dict.fromkeys(places.values()):
        found |= member.resolve(place, {one: extents[one] for one, at in places.items() if at == place})
    for one, place in places.items():
        if isinstance(place, int) and extents[one].end < place < LATEST:
            end = extents[one].end
            raise ConfigError(f"the place {place} of {one} lies beyond the end of the store, {end}: {beyond}")
    for one, place in places.items():
        begin, end = extents[one]
        if isinstance(place, datetime):
            if found[one] == end:
                note(f"no message of {one} is as late as {place}, so the group moves to the end")
        elif EARLIEST < place < begin:
            note(f"{one} has no messages before {begin} any more, so the group moves there instead of to {place}")
    return found


def _move(
    connection: Connection,
    member: GroupMember,
    find: Callable[[GroupMember], Mapping[Partition, int]],
    create: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move the group to the positions that `find` returns while the member holds the partitions."""
    group = member.session.group
    is_created = is_new(connection, group, create=create, yes=yes, err=as_json)  # asked before this member creates it
    with held(member):
        before = {one: at.group for one, at in member.positions.items()}
        targets = {one: new for one, new in sorted(find(member).items()) if is_created or new != before[one]}
        entries = {one: (new - before[one]) // UNIT for one, new in targets.items()}
        if targets and not as_json:
            rows = [(str(one), before[one], new, f"{entries[one]:+d}") for one, new in targets.items()]
            print_plan(("partition", "old", "new", "entries"), rows)
        if targets and not yes:
            first_ids = member.first_ids((one, at) for one, new in targets.items() for at in (before[one], new - UNIT))
            confirm(f"Move group {group}?", err=as_json)
            if changed := member.changed(first_ids):
                raise TubeMQError(
                    f"nothing is moved: other messages than a moment ago are in {', '.join(map(str, changed))}. A "
                    "broker lost some, or the topic was created anew"
                )
        move(member, targets)
        if targets:  # said before the partitions are released, which may take long
            print_result(
                f"{'created' if is_created else 'moved'} group {group} in {len(targets)} partitions",
                *({**place_of(p), "old": before[p], "new": new, "entries": entries[p]} for p, new in targets.items()),
                as_json=as_json,
            )
    if not targets:
        (note if as_json else print_line)(f"group {group} is at these positions already")


def move(member: GroupMember, targets: Mapping[Partition, int]) -> None:
    """Move the group to `targets`. If that fails, say where the group is known to be moved."""
    try:
        member.claims.take(targets)
    except BaseException:
        now = member.positions
        moved = [str(one) for one, at in targets.items() if one in now and now[one].group == at]
        where = ", ".join(moved) or "no partition"
        note(f"group {member.session.group} was moved in {where}; maybe also where a broker did not answer")
        raise


class GroupBusyError(TubeMQError):
    """Another client reads in the group."""

    cause = "Another client reads in the group that `offsets` is to move."
    remedy = "Stop the client that the text names. The claim of a client that died ends after about half a minute."


@contextmanager
def held(member: GroupMember) -> Iterator[GroupMember]:
    """Hold the member's partitions while the `with` block runs. Raise `GroupBusyError` if another client holds one."""
    try:
        with member:
            yield member
    except PartitionOccupiedError as error:
        raise GroupBusyError(
            f"group {member.session.group} is in use: {error.holder or 'another client'} holds a partition of "
            f"{', '.join(member.topics)}. Stop it first; the claim of a client that died ends after about half a minute"
        ) from None
    except ConfigError as error:  # the master refuses a member of another kind than those that it has
        if "the group is in use" not in str(error):
            raise
        raise GroupBusyError(f"group {member.session.group} is in use: {error}") from None
