# SPDX-License-Identifier: Apache-2.0
"""The application: all commands, with their help, as typer sees them."""

from __future__ import annotations

from typing import Annotated

import typer

from tubemq_spark.cli import broker, consume, demo, doctor, groups, lag, offsets, produce, redrive, topics
from tubemq_spark.cli.commands import Commands

app = Commands(
    name="tubemq-spark",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import tubemq_spark as package

        print(f"tubemq-spark {package.__version__}")
        raise typer.Exit


@app.callback()
def tubemq_spark(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Apache TubeMQ and Spark from the command line.

    The exit status is 0 for success, 1 if the work failed, 2 for wrong usage or a wrong name, such as an unknown
    topic, and 130 after Ctrl-C or SIGTERM; a command that runs until Ctrl-C ends with 0. An error is one line.
    """


for _command in (demo.demo, broker.broker, consume.consume, produce.produce, consume.find, lag.lag, redrive.redrive):
    app.command()(_command)
app.command()(doctor.doctor)
app.add_typer(topics.app, name="topics")
app.add_typer(offsets.app, name="offsets")
app.add_typer(groups.app, name="groups")
