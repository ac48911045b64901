# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark doctor`: check the installation and the cluster, with a remedy for each problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tubemq_spark.cli.output import console, print_json, print_line
from tubemq_spark.cli.parameters import Json, with_options
from tubemq_spark.cli.reading import temporary_group
from tubemq_spark.errors import TubeMQError

if TYPE_CHECKING:
    from tubemq_spark.checks import CheckResult

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


class UnhealthyError(TubeMQError):
    """A check failed."""

    cause = "At least one check of `doctor` failed."
    remedy = "Do what the lines of the failed checks say, and run `doctor` again."


@with_options
def doctor(
    options: Mapping[str, str],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="A topic to read; may be repeated.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="The consumer group of the query.")] = None,
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
    given = {**options, **{name: text for name, text in more.items() if text}}
    from tubemq_spark.checks import FAILED, count_states  # imports pyarrow, which takes long

    try:
        states = [result.state for result in _printed(_results(given), quiet=quiet, as_json=as_json)]
        if not as_json:
            print_line(count_states(states))
    except BrokenPipeError:
        raise UnhealthyError("the reader of the output has ended before the checks, which may have failed") from None
    if count := states.count(FAILED):
        what = "1 check failed; it says" if count == 1 else f"{count} checks failed; each says"
        raise UnhealthyError(f"{what} what to do")


def _results(options: Mapping[str, str]) -> Iterator[CheckResult]:
    from tubemq_spark.checks import driver_checks
    from tubemq_spark.cli.local_checks import local_checks

    yield from local_checks()
    yield from driver_checks(options)


def _printed(results: Iterable[CheckResult], *, quiet: bool, as_json: bool) -> Iterator[CheckResult]:
    """Yield the results after each was printed, as soon as it is known."""
    out = console()
    for result in results:
        if quiet and result.state == "ok":
            pass
        elif as_json:
            print_json(result._asdict())
        elif out.is_terminal:
            out.print(_wrapped(result), soft_wrap=False)
        else:
            print_line(f"{result.state:<8}{result.check:<12} {result.subject}: {result.detail}")
            if result.remedy:
                print_line(f"{'':8}what to do: {result.remedy}")
        yield result


def _wrapped(result: CheckResult) -> Table:
    """Return a result whose long lines are wrapped between words."""
    made = Table.grid()
    made.add_column(width=8)
    made.add_column(width=13)
    made.add_column(overflow="fold")
    made.add_row(Text(result.state, _STYLES[result.state]), result.check, Text(f"{result.subject}: {result.detail}"))
    if result.remedy:
        made.add_row("", "", Text(f"what to do: {result.remedy}", "yellow"))
    return made
