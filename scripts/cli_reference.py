# SPDX-License-Identifier: Apache-2.0
"""The text of docs/reference/cli.md: the commands of `tubemq-spark` with their arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from scripts.markdown import table
from tubemq_spark.cli.app import app

INTRODUCTION = """\
# Command line

<!-- Written by scripts/generate_docs.py from the commands in tubemq_spark/cli: change them there. -->

`pip install 'tubemq-spark[cli]'` installs the program `tubemq-spark`. Its exit status is 0 for success, 1 if the work
failed, and 2 for wrong usage. `tubemq-spark COMMAND --help` shows what this page shows.
"""


# Drawn by scripts/cli_svg.py
_PICTURES = {
    "broker": "An embedded TubeMQ: its address, code to paste, and below it a table of its topics and calls",
    "doctor": "Checks, one a line; broker 2 does not answer, and the line below says what to do",
    "lag": "The lag of a group over time as a line of bars, and a table of its partitions",
    "topics": "A topic is created, then all topics are listed and the new one is described",
}


def document() -> str:
    """Return the text of docs/reference/cli.md."""
    return "\n".join([INTRODUCTION, *_commands("tubemq-spark", typer.main.get_command(app))])


def _commands(path: str, command: Any) -> Iterator[str]:
    """Yield the parts of a command and of the commands below it."""
    below = getattr(command, "commands", {})
    if path != "tubemq-spark" or not below:
        yield from _command(path, command, has_commands=bool(below))
    for name in sorted(below):
        if not below[name].hidden:
            yield from _commands(f"{path} {name}", below[name])


def _command(path: str, command: Any, has_commands: bool) -> Iterator[str]:
    name = path.removeprefix("tubemq-spark ")
    yield f"## {name}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if name in _PICTURES:
        yield f"![{_PICTURES[name]}](../images/cli-{name}.svg)\n"
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if has_commands or not shown:
        return
    yield table(["argument or option", "default", "meaning"], map(_row, shown))


def _row(parameter: Any) -> tuple[str, str, str]:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
    told = getattr(parameter, "show_default", None)  # a text if the default's meaning is not its value
    default = told if isinstance(told, str) else parameter.default
    is_shown = isinstance(default, (str, int, float)) and default is not False and default != ""
    value = default if isinstance(told, str) else f"`{getattr(default, 'value', default)}`"
    shown = "required" if parameter.required else value if is_shown else ""
    meaning = " ".join((getattr(parameter, "help", None) or "").split())
    return ", ".join(f"`{name}`" for name in names), shown, meaning
