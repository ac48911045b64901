# SPDX-License-Identifier: Apache-2.0
"""Write the pages and the module that are made from the code: `python scripts/generate_docs.py`.

`--check` writes nothing: it prints the difference and returns status 1 if one is out of date.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from benchmarks import page as performance_page
from scripts import columns_reference, error_reference, option_builder
from scripts.markdown import table
from tubemq_spark.cli.app import app
from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.option_definition import Option
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

ROOT = Path(__file__).resolve().parent.parent

INTRODUCTION = """\
# Options

<!-- Written by scripts/generate_docs.py from the options' declarations: change them there. -->

Options of the TubeMQ client have the prefix `tubemq.`; options of the source and the sink have none.
Names are not case-sensitive. An invalid value or an unknown name is an error that says what was expected: at
`load()`, for a stream with a schema when it starts, or for the sink when the write starts. What only the
servers can tell (unknown topics, partitions and positions), and an option that a stream does not have, fails when the
query runs. A source and a sink may get the same set of options, but `messageFormat=inlong`, which is for the source.
"""

SECRETS = """\
Spark hides the values of `tubemq.password` and `tubemq.tls.keyPassword` in plans, because the default of
`spark.redaction.regex` contains the word `password`. If you change that setting, keep the word, or add it to
`spark.sql.redaction.options.regex`, whose default `(?i)url` does not match these options. `receipts` matches
neither. If its URI contains a password, set `spark.sql.redaction.options.regex` to `(?i)url|receipts`. Plans
or event logs may show SQL as it was written (views, `CACHE TABLE`, `spark-sql`, JDBC), and with Spark Connect all
options. For `tubemq.passwordFile` the path is shown at most."""


def document() -> str:
    """Return the text of docs/options.md."""
    shared = {option.name for option in CLIENT_OPTIONS}
    sections = [
        ("Source and sink", SECRETS, CLIENT_OPTIONS),
        (
            "Source",
            "For streams and batch reads. Set one of `subscribe`, `subscribePattern` and `assign`. Positions count "
            "bytes of a store's index: 28 per message.",
            [option for option in SOURCE_OPTIONS if option.name not in shared],
        ),
        ("Sink", "", [option for option in SINK_OPTIONS if option.name not in shared]),
    ]
    parts = [INTRODUCTION]
    for title, text, options in sections:
        parts.append(f"## {title}\n")
        if text:
            parts.append(f"{text}\n")
        rows = [[f"`{option.name}`", default(option), option.expects, option.meaning] for option in options]
        parts.append(table(["option", "default", "value", "meaning"], rows))
    return "\n".join(parts)


def default(option: Option[Any]) -> str:
    if option.required:
        return "required"
    if option.shown_default is not None:
        return option.shown_default if "`" in option.shown_default else f"`{option.shown_default}`"
    if option.default is None:
        return "none"
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"


# Drawn by scripts/pictures.py
PICTURES = {
    "broker": "An embedded TubeMQ: its address, code to paste, and below it a table of its topics and calls",
    "doctor": "Checks, one a line; broker 2 does not answer, and the line below says what to do",
    "lag": "The lag of a group over time as a line of bars, and a table of its partitions",
    "topics": "A topic is created, then all topics are listed and the new one is described",
}


def command_line() -> str:
    """Return the text of docs/reference/cli.md: typer's own, with pictures."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="tubemq-spark", title="Command line")
    text = re.sub(r"^(\* `[A-Z][^`<]*) <.*>`", r"\1`", text, flags=re.MULTILINE)  # types of arguments, as in the help
    for name, shown in PICTURES.items():
        head = f"## `tubemq-spark {name}`\n"
        text = text.replace(head, f"{head}\n![{shown}](../images/cli-{name}.svg)\n")
    return text


# By the file's path
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/options.md": document,
    "docs/reference/cli.md": command_line,
    "docs/reference/columns.md": columns_reference.document,
    "docs/errors.md": error_reference.document,
    "docs/performance.md": performance_page.document,
    "tubemq_spark/option_builder.py": option_builder.document,
}


def difference(name: str, new: str) -> Iterator[str]:
    file = ROOT / name
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    return difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), name, "as declared")


def main(arguments: list[str]) -> int:
    status = 0
    for name, page in PAGES.items():
        text = page()
        if arguments != ["--check"]:
            (ROOT / name).write_text(text, encoding="utf-8")
        elif found := "".join(difference(name, text)):
            print(f"{found}{name} is out of date: run scripts/generate_docs.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
