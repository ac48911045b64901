# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark doctor`: check the installation and the cluster, with a remedy for each problem."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from tubemq_spark.checks import FAILED, OK, CheckResult, CheckState, count_states, driver_checks
from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.local_checks import local_checks
from tubemq_spark.cli.output import console, is_wide_terminal, print_json, print_line
from tubemq_spark.cli.parameters import Json, connected
from tubemq_spark.cli.reading import temporary_group
from tubemq_spark.cli.words import of_options
from tubemq_spark.errors import TubeMQError

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


class UnhealthyError(TubeMQError):
    """A check failed."""

    cause = "At least one check of `doctor` failed."
    remedy = "Do what the lines of the failed checks say, and run `doctor` again."


@connected()
def doctor(
    connection: Connection,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="A topic to read; may be repeated.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group of the query.")
    ] = None,
    write: Annotated[str | None, typer.Option("--write", metavar="TOPIC", help="A topic to write.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out the checks that passed.")] = False,
    as_json: Json = False,
) -> None:
    """Check versions, Java, the workers' Python, Spark's look-up, the servers, topics, the group and clocks.

    Nothing is moved, claimed or sent. Status 1 if a check failed. In a notebook, tubemq_spark.check(spark, options)
    checks the executors, too.
    """
    reader = group or (temporary_group() if topic else "")  # the options of a source need a group
    more = {"subscribe": ",".join(topic or ()), "tubemq.group": reader, "topic": write or ""}
    given = {**connection.options, **{name: text for name, text in more.items() if text}}
    states: list[CheckState] = []
    try:
        for result in chain(local_checks(), driver_checks(given)):
            states.append(result.state)
            if not quiet or result.state != OK:
                _print(result, as_json)
        if not as_json:
            print_line(count_states(states))
    except BrokenPipeError:
        raise UnhealthyError("the reader of the output has ended before the checks, which may have failed") from None
    if count := states.count(FAILED):
        what = "1 check failed; it says" if count == 1 else f"{count} checks failed; each says"
        raise UnhealthyError(f"{what} what to do")


def _in_own_words(text: str) -> str:
    """Return `text` with the flags of this command. It leaves options that only a query has as they are."""
    for option, flag in (("option 'subscribe'", "--topic"), ("option 'topic'", "--write")):
        text = text.replace(option, flag)
    return of_options(text)


def _print(result: CheckResult, as_json: bool) -> None:
    """Print a result; a terminal wraps its long lines between words."""
    out = console()
    subject = of_options(f"option '{result.subject}'") if result.subject.startswith("tubemq.") else result.subject
    result = result._replace(subject=subject, detail=_in_own_words(result.detail), remedy=_in_own_words(result.remedy))
    what, remedy = f"{result.subject}: {result.detail}", result.remedy and f"what to do: {result.remedy}"
    if as_json:
        print_json(result._asdict())
    elif is_wide_terminal(out):
        made = Table.grid(Column(width=8), Column(width=13), Column(overflow="fold"))
        made.add_row(Text(result.state, _STYLES[result.state]), result.check, Text(what))
        if remedy:
            made.add_row("", "", Text(remedy, "yellow"))
        out.print(made, soft_wrap=False)
    else:
        print_line(f"{result.state:<8}{result.check:<12} {what}")
        if remedy:
            print_line(f"{'':8}{remedy}")
