# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark redrive`: write dead letters to the topics that they were meant for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.group_moves import move_group
from tubemq_spark.cli.moments import EXPECTED, parse_place
from tubemq_spark.cli.output import note, print_json, print_table
from tubemq_spark.cli.parameters import Json, Topic, Yes, connected
from tubemq_spark.cli.reading import GroupMember, temporary_group
from tubemq_spark.cli.requirements import require_spark
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.metadata import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Range = Mapping[Partition, tuple[int, int]]


@connected()
def redrive(
    connection: Connection,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", show_default="a temporary group",
            help="Begin at this group's position, and move it to the end afterwards: the next call goes on there.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", "-o", metavar="PLACE", show_default="earliest, or the group's position",
                     help=f"Where to begin: {EXPECTED}."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Write to this topic.", show_default="each row's own")
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
        str, typer.Option("--message-format", help="Format of the sink that wrote them: raw or inlongmsg.")
    ] = "raw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and end.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write the rows of dead letters again. Needs pyspark and Java; runs a local Spark.

    Nothing is removed from the dead letter topic: with --group, the next call begins where this one ended. Without
    --again, a row that still cannot be sent fails the command, and other rows may be written then.
    """
    require_spark()
    place = None if start is None else parse_place(start, "--from")
    if message_format not in ("raw", "inlongmsg"):
        raise ConfigError(f"--message-format is {message_format!r}; expected raw or inlongmsg")
    reader = group or temporary_group()
    with GroupMember(connection.settings, reader, topic) as member:
        # A new group stands at the earliest message.
        starts = {one: at.group for one, at in member.positions.items()} if place is None else member.resolve(place)
        found = {one: (starts[one], end) for one, (_, end) in member.positions.items()}
    from tubemq_spark.cli.stream import local_session

    with tempfile.TemporaryDirectory(prefix="tubemq-redrive-", ignore_cleanup_errors=True) as folder:
        note("starting Spark ...")
        with local_session(Path(folder), Path(folder) / "spark.log", "tubemq-spark redrive") as spark:
            count = _redrive(
                spark, connection, topic, reader, found, to, where, again, message_format,
                is_asked=not (yes or dry_run), dry_run=dry_run,
            )  # fmt: skip
    if dry_run:
        return
    if group is not None:
        ends = {one: end for one, (_, end) in found.items()}
        move_group(GroupMember(connection.settings, group, topic), lambda _: ends, lambda _: True)
    if as_json:
        print_json({"topic": topic, "rows": count})
    else:
        print(f"wrote {count} rows of dead letters of topic {topic}")


def _redrive(
    spark: SparkSession, connection: Connection, topic: str, group: str, found: Range, to: str | None,
    where: str | None, again: bool, message_format: str, *, is_asked: bool, dry_run: bool,
) -> int:  # fmt: skip
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    import tubemq_spark
    from tubemq_spark.cli.stream import first_line

    try:
        dead = _dead_letters(spark, connection, topic, group, found)
        rows = tubemq_spark.restore(dead.where(where) if where else dead, message_format).persist()
        targets = rows.groupBy("topic").count().orderBy("topic").collect()
        count = int(sum(row["count"] for row in targets))
        print_table(("topic", "rows"), [(to or row["topic"], row["count"]) for row in targets])
        if dry_run or not count:
            return 0
        if is_asked:
            typer.confirm(f"Write {count} rows?", abort=True)
        options = {**connection.options, "messageFormat": message_format}
        options |= {"topic": to} if to else {}
        options |= {"failedRows": "deadLetter", "deadLetterTopic": topic} if again else {}
        # Spark looks a sink up in the thread's active session, and `local_session` created it in another thread.
        spark.createDataFrame([], "value INT")
        rows.write.format("tubemq").options(**options).mode("append").save()
        return count
    except (PySparkException, Py4JError) as error:
        raise TubeMQError(f"Spark failed: {first_line(error)}") from None


def _dead_letters(spark: SparkSession, connection: Connection, topic: str, group: str, found: Range) -> DataFrame:
    def bound(index: int) -> str:
        positions = {f"{one.broker_id}:{one.partition_id}": at[index] for one, at in found.items()}
        return json.dumps({topic: positions})

    return (
        spark.read.format("tubemq")
        .options(**connection.options)
        .option("tubemq.group", group)
        .option("subscribe", topic)
        .option("startingOffsets", bound(0))
        .option("endingOffsets", bound(1))
        .load()
    )
