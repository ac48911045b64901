# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark redrive`: write dead letters to the topics that they were meant for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.local_checks import require_spark
from tubemq_spark.cli.moments import EARLIEST, EXPECTED, Place, parse_place
from tubemq_spark.cli.new_group import Create, is_new
from tubemq_spark.cli.offsets import held, move
from tubemq_spark.cli.output import confirm, note, print_json, print_plan, print_result
from tubemq_spark.cli.parameters import Json, Topic, Yes, check_group, check_topic, check_topics, connected
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.probe import PartitionPosition
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import values_to_json


@connected(admin=True)
def redrive(
    connection: Connection,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", show_default="a temporary group", callback=check_group,
            help="Begin at this group's position, and move it to the end afterwards: the next call goes on there.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", "-o", metavar="PLACE", show_default="earliest, or the group's position",
                     help=f"Where to begin: {EXPECTED}."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", show_default="each letter's own topic", callback=check_topic,
                     help="Write all to this topic, as ordinary rows, which are no dead letters there."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only-topic", metavar="TOPIC", show_default="with --to any topic", callback=check_topics,
                     help="Only dead letters for this topic; may be repeated."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL",
                     help="Only dead letters with this condition, e.g. \"attributes.dead_reason LIKE '%unknown%'\"."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Rows that still cannot be sent become dead letters of the topic again.")
    ] = False,
    message_format: Annotated[
        str, typer.Option("--message-format", metavar="FORMAT",
        help="Format of the sink that wrote them: raw or inlongmsg.")
    ] = "raw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and end.")] = False,
    create: Create = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write the rows of dead letters again. Needs pyspark and Java; runs a local Spark.

    Whoever can write to the dead letter topic chooses the topic that a letter names, and this command writes with your
    rights: so --only-topic or --to must name the allowed topics. --dry-run shows what the letters name.

    Nothing is removed from the dead letter topic: with --group, the next call begins where this one ended, and no other
    client can use the group meanwhile. It writes nothing if it would have to leave out letters that the group would
    then skip. Without --again, a row that still cannot be sent fails the command, and other rows may be written then.
    """
    place = None if start is None else parse_place(start, "--from")
    if message_format not in ("raw", "inlongmsg"):
        raise ConfigError(f"--message-format is {message_format!r}; expected raw or inlongmsg")
    if not (to or only or dry_run):
        raise ConfigError("name the topics that may be written: --only-topic or --to. --dry-run shows them")
    if topic == to or (to is None and topic in (only or ())):
        raise ConfigError(
            f"topic {topic} is the dead letter topic that is read. Name another one: --only-topic or --to"
        )
    if where is not None and not where.strip():
        raise ConfigError("--where is blank. Leave it out for all letters")
    if as_json and not (yes or dry_run):  # Spark's log has the standard error, where a question would be
        raise ConfigError("--json shows no targets and asks nothing: give --yes or --dry-run, too")
    require_spark()
    settings = connection.settings
    if group is not None and is_new(connection, group, create=create or dry_run, yes=yes) and dry_run:
        note(f"no broker knows group {group}, so it would begin at the earliest letter")
        group = None  # looking creates no group
    from tubemq_spark.cli.stream import local_session, spark_errors
    from tubemq_spark.sink.dead_letter import ADVICE
    from tubemq_spark.sink.restore import restore

    has_begun = False  # to write
    with held(GroupMember(settings, group, topic)) as member:
        positions = member.positions
        groups = {one: at.group for one, at in positions.items()}  # a new group stands at the earliest message
        ends = {one: at.end for one, at in positions.items()}
        starts = _starts(member, positions, place, group, dry_run)
        starts = {one: min(at, ends[one]) for one, at in starts.items()}  # letters may have come meanwhile
        last = [(one, end - UNIT) for one, end in ends.items() if starts[one] < end]
        first_ids = member.first_ids([*starts.items(), *last])
        try:
            note("starting Spark ...")
            with (
                tempfile.TemporaryDirectory(prefix="tubemq-redrive-", ignore_cleanup_errors=True) as folder,
                local_session(Path(folder), "tubemq-spark redrive") as spark,
                spark_errors(),
            ):
                begin = values_to_json(starts)
                source = {
                    **connection.options,
                    "tubemq.group": member.session.group,
                    "assign": json.dumps({topic: list(begin.get(topic, ()))}),  # the topic may get more meanwhile
                    "startingOffsets": json.dumps(begin),
                    "endingOffsets": json.dumps(values_to_json(ends)),
                }
                dead = spark.read.format("tubemq").options(**source).load().persist()
                chosen = dead.where(where).persist() if where else dead  # kept, because `where` may have a rand()
                rows = restore(chosen, message_format).persist()
                targets = [
                    (one["topic"], one["count"], (to or one["topic"]) if not only or one["topic"] in only else None)
                    for one in rows.groupBy("topic").count().orderBy("topic").collect()
                ]
                count = sum(rows for _, rows, target in targets if target is not None)
                if not as_json:
                    print_plan(("topic of the letters", "rows", "written to"), targets)
                elif dry_run:
                    print_json(*({"topic": name, "rows": rows, "written_to": target} for name, rows, target in targets))
                left_out = sum(rows for _, rows, _ in targets) - count
                if where:
                    left_out += dead.count() - chosen.count()
                if group is not None and left_out and not dry_run:
                    raise TubeMQError(
                        f"nothing is written: {left_out} dead letters would be left out, and group {group} would skip "
                        "them. Leave out --group, or allow all with --only-topic or --to and without --where"
                    )
                if count and not dry_run:
                    if not yes:
                        confirm(f"Write {count} rows?")
                    if group is not None:
                        check_unchanged(member, groups, first_ids)
                    has_begun = True
                    options = {**connection.options, "messageFormat": message_format}
                    options |= {"topic": to} if to else {}
                    options |= {"failedRows": "deadLetter", "deadLetterTopic": topic} if again else {}
                    # Spark looks a sink up in the thread's active session; another thread has created it.
                    spark.createDataFrame([], "value INT")
                    allowed = rows.where(rows.topic.isin(only)) if only else rows
                    allowed.write.format("tubemq").options(**options).mode("append").save()
            if group is not None and not dry_run:
                check_unchanged(member, groups, first_ids)
                move(member, ends)
            if not count:  # said here, because Spark's log has the standard error above
                note(f"nothing of topic {topic} {'would be' if dry_run else 'was to be'} written")
            if not dry_run:
                text = f"wrote {count} rows of dead letters of topic {topic}"
                print_result(text, {"topic": topic, "rows": count}, as_json=as_json)
        except BaseException as error:
            if has_begun:
                then = "" if group is None else f". Where group {group} was not moved, the next call writes them again"
                note(f"rows may be written already{then}")
            if str(error).endswith(ADVICE):
                again_text = "; with --again, such rows become dead letters again, and the others are written"
                raise ConfigError(str(error).removesuffix(ADVICE) + again_text) from None
            raise


def _starts(
    member: GroupMember,
    positions: Mapping[Partition, GroupPosition],
    place: Place | None,
    group: str | None,
    dry_run: bool,
) -> dict[Partition, int]:
    """Return where to begin: at `place`, by default at the group's positions. Raise `TubeMQError` if one of these is
    beyond the end of its store. Raise it also if `group`, which the user has named, would skip letters, but not in a
    `dry_run`."""
    beyond = sorted(one for one, at in positions.items() if at.group > at.end)
    if beyond and place is None:
        raise TubeMQError(
            f"nothing is written: group {group} stands beyond the end of {', '.join(map(str, beyond))}, because a "
            "broker lost messages, or the topic was created anew. Move the group with offsets set, or give --from "
            "earliest, which writes all letters that the topic has"
        )
    begins = member.resolve(EARLIEST)  # the group may stand before it
    # A group beyond the end was there with other letters, and has reached none of these.
    reached = {one: begins[one] if one in beyond else max(at.group, begins[one]) for one, at in positions.items()}
    starts = reached if place is None else member.resolve(place)
    if group is None:
        return starts
    if expired := sorted(one for one in begins if positions[one].group < starts[one] == begins[one]):
        note(f"retention has removed messages of {', '.join(map(str, expired))} that group {group} had not reached")
    skipped = [one for one, start in starts.items() if start > reached[one]]
    if skipped and not dry_run:
        raise TubeMQError(
            f"nothing is written: --from lies behind the position of group {group} in "
            f"{', '.join(map(str, skipped))}, and the group would skip the dead letters before it. Leave out "
            "--group, or --from"
        )
    return starts


def check_unchanged(
    member: GroupMember, before: Mapping[Partition, int], first_ids: Mapping[PartitionPosition, int]
) -> None:
    """Raise `TubeMQError` if the group has moved, because somebody else may have written its letters, too, or if the
    topic has other letters now. Retention may move the group to the first message that is left."""
    if changed := member.changed(first_ids):
        raise TubeMQError(
            f"other letters than a moment ago are in {', '.join(map(str, changed))}: a broker lost some, or the topic "
            f"was created anew. Group {member.session.group} stays where it is"
        )
    member.claims.take(dict.fromkeys(member.positions))  # if the claims were lost meanwhile, somebody may have read
    begins = member.resolve(EARLIEST)
    moved = [one for one, at in before.items() if member.positions[one].group not in (at, max(at, begins[one]))]
    if moved:
        raise TubeMQError(
            f"another client has moved group {member.session.group} in {', '.join(map(str, moved))} meanwhile, and it "
            "stays there"
        )
