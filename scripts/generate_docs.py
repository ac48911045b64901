# SPDX-License-Identifier: Apache-2.0
"""Write the pages and the module that are made from the code: `python scripts/generate_docs.py`.

`--check` writes nothing: it prints the difference and returns status 1 if one is out of date.
"""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.cli import get_docs_for_click

from benchmarks import page as performance_page
from scripts import columns_reference, error_reference, option_builder
from scripts.markdown import table
from tubemq_spark.cli import moments
from tubemq_spark.cli.app import app
from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.option_definition import Option
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

ROOT = Path(__file__).resolve().parent.parent

INTRODUCTION = """\
# Options

<!-- Written by scripts/generate_docs.py from the options' declarations: change them there. -->

Most queries set the [connection](#connect), `tubemq.group` and `subscribe` to read, and `topic` to write. The tables
list the most used options first.

Names are not case-sensitive. Those that end in `Ms` take milliseconds, those in `Bytes` bytes. An unknown name or an
invalid value is an error that says what was expected: at `load()`, for a stream with a schema when it starts, and for a
sink when the write starts. What only the servers know, such as a missing topic, fails when the query runs. You may pass
one set of options to a source and a sink; only `messageFormat=inlong` is for the source alone.
"""

SECRETS = """\
## Passwords in plans and logs

Spark hides the values of `tubemq.password` and `tubemq.tls.keyPassword` in plans, because the default of
`spark.redaction.regex` contains the word `password`. Three cases need care:

- If you change `spark.redaction.regex`, keep the word `password` in it, or add it to
  `spark.sql.redaction.options.regex`.
- If the URI in `receipts` contains a password, set `spark.sql.redaction.options.regex` to `(?i)url|receipts`.
- Plans or event logs may show SQL as it was written (views, `CACHE TABLE`, `spark-sql`, JDBC), and with Spark Connect
  all options. Use `tubemq.passwordFile` there: at most its path is shown.
"""


class Task(NamedTuple):
    """Options that users set for one task. `names` are those of `CLIENT_OPTIONS` or of one side."""

    title: str
    text: str
    names: Sequence[str]


CONNECT = (
    Task(
        "Connect",
        "",
        ["tubemq.master", "tubemq.user", "tubemq.passwordFile", "tubemq.password"],
    ),
)
READ = (
    Task(
        "What to read",
        "Set one of `subscribe`, `subscribePattern` and `assign`.",
        ["tubemq.group", "subscribe", "subscribePattern", "assign", "filters"],
    ),
    Task(
        "Where a new query begins",
        "If several are set, the first of `startingTimestamp`, `startingOffsetsByTimestamp` and `startingOffsets` "
        "wins. Positions count bytes of a store's index: 28 per message.",
        [
            *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
            "startingOffsetsByTimestampStrategy",
        ],
    ),
    Task(
        "Lost and damaged messages",
        "",
        ["failOnDataLoss", "corruptMessages", "maxUnpackedBytes", "longMessageTopics"],
    ),
    Task(
        "The size of micro-batches",
        "The limits per trigger need Spark 4.2 ([limit 2](limits.md#limit-2)). Each message of a store has one index "
        "entry, which counts once, however many partitions share the store. Of `maxOffsetsPerTrigger` and "
        "`maxBytesPerTrigger` the smaller limit applies.",
        [
            *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
            "maxPartitionsPerTask",
        ],
    ),
    Task(
        "Where a batch read ends",
        "For batch reads. If several are set, the first of `endingTimestamp`, `endingOffsetsByTimestamp` and "
        "`endingOffsets` wins. A stream fails with one of these, and ignores `pushFilters`.",
        ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters"],
    ),
    Task(
        "The group, times and waits",
        "",
        ["commitOffsets", "tubemq.claim.timeoutMs", "msgTimeZone", "metadataIntervalMs", "headsIntervalMs"],
    ),
    Task(
        "InLong packs",
        "[InLong packs](inlong.md) explains them.",
        ["messageFormat", "inlongDefaultFormat"],
    ),
)
WRITE = (
    Task("Where rows go", "", ["topic", "compression"]),
    Task(
        "No duplicates",
        "The options whose names begin with `effectivelyOnce` need `effectivelyOnce=true`.",
        [
            *("effectivelyOnce", "effectivelyOnceTopics", "effectivelyOnceLocation", "effectivelyOnceUncertain"),
            *("effectivelyOnceMaxOffsets", "stampRows", "receipts"),
        ],
    ),
    Task("Rows that can never be sent", "", ["failedRows", "deadLetterTopic", "showFailedRows"]),
    Task("Memory", "", ["tubemq.producer.maxInFlight", "tubemq.producer.maxInFlightBytes"]),
    Task(
        "Packs for InLong",
        "[How packs are written](inlong.md#how-packs-are-written) explains them. Those below `messageFormat` need "
        "`messageFormat=inlongmsg`; `inlongPackBytes` and `inlongPackMs` need `inlongPackRows` above 1.",
        [
            *("messageFormat", "inlongPackRows", "inlongPackBytes", "inlongPackMs", "inlongPackFormat"),
            "inlongPackCompression",
        ],
    ),
)
NETWORK = (
    Task(
        "TLS",
        "[TLS and authentication](howto/security.md) has an example.",
        [
            *("tubemq.tls.enabled", "tubemq.tls.ca", "tubemq.tls.cert", "tubemq.tls.key", "tubemq.tls.keyPassword"),
            "tubemq.tls.verifyHostname",
        ],
    ),
    Task(
        "Network",
        "",
        [
            *("tubemq.retry.maxElapsedMs", "tubemq.rpc.timeoutMs", "tubemq.brokers.addresses", "tubemq.admin.address"),
            *("tubemq.connections.idleMs", "tubemq.connections.shared", "tubemq.rpc.framing"),
        ],
    ),
)


def document() -> str:
    """Return the text of docs/options.md. Raise `ValueError` if an option is in no table, or in two."""
    shared = {option.name for option in CLIENT_OPTIONS}
    source = [option for option in SOURCE_OPTIONS if option.name not in shared]
    sink = [option for option in SINK_OPTIONS if option.name not in shared]
    _check_listed(CLIENT_OPTIONS, (*CONNECT, *NETWORK))
    _check_listed(source, READ)
    _check_listed(sink, WRITE)
    parts = [
        INTRODUCTION,
        *_tables(CONNECT, CLIENT_OPTIONS, "##"),
        "## Read\n",
        *_tables(READ, source, "###"),
        "## Write\n",
        *_tables(WRITE, sink, "###", also=source),
        *_tables(NETWORK, CLIENT_OPTIONS, "##"),
        SECRETS,
    ]
    return "\n".join(parts)


def _check_listed(options: Iterable[Option[Any]], tasks: Iterable[Task]) -> None:
    declared, listed = sorted(option.name for option in options), sorted(name for task in tasks for name in task.names)
    if declared != listed:
        raise ValueError(f"the tables of docs/options.md have {listed}, and the code declares {declared}")


def _tables(
    tasks: Iterable[Task], options: Sequence[Option[Any]], level: str, also: Sequence[Option[Any]] = ()
) -> Iterator[str]:
    """Yield the sections. An anchor is `option-NAME`, or `option-sink-NAME` if `also` has an option of that name."""
    by_name, elsewhere = {option.name: option for option in options}, {option.name for option in also}
    for task in tasks:
        yield f"{level} {task.title}\n"
        if task.text:
            yield f"{textwrap.fill(task.text, 120, break_long_words=False, break_on_hyphens=False)}\n"
        rows = []
        for name in task.names:
            option = by_name[name]
            anchor = f"option-sink-{name}" if name in elsewhere else f"option-{name}"
            rows.append([f'<a id="{anchor}"></a>`{name}`', default(option), _meaning(option)])
        yield table(["option", "default", "meaning"], rows)


# What a meaning says as well, or the unit in the name
_PLAIN = (
    *("true or false", "a user name", "the user's password", "the key's password", "the name of a topic"),
    *("the path of a file", "topic[,topic…]"),
)
_AT_LEAST = re.compile(r"(milliseconds|a number( of [a-z ]+)?), [01] or more")


def _meaning(option: Option[Any]) -> str:
    if option.expects in _PLAIN or _AT_LEAST.fullmatch(option.expects):
        return option.meaning
    value = re.sub(r"{\S+}", r"`\g<0>`", option.expects)  # at the end of a cell, braces would be attributes of mkdocs
    return f"{option.meaning}.<br>Value: {value}"


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


SHARED = """\
## Common options

All commands that reach a cluster have the connection options: the first four. A command lists the others that it has by
their names.

{options}

## Places

A PLACE is {place}. A time means `msg_time`.

"""

_CONNECTION = ("master", "config", "set", "verbose")
_COMMON = ("admin", "token", "token-file", "json", "yes", "time-zone")
_OPTION = re.compile(r"^\* `(?:-\w, )?--([a-z-]+).*\n", re.MULTILINE)


def command_line() -> str:
    """Return the text of docs/reference/cli.md: typer's own, with pictures, and what commands share only once."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="tubemq-spark", title="Command line")
    text = re.sub(r"^(\* `[A-Z][^`<]*) <.*>`", r"\1`", text, flags=re.MULTILINE)  # types of arguments, as in the help
    for name, shown in PICTURES.items():
        head = f"## `tubemq-spark {name}`\n"
        text = text.replace(head, f"{head}\n![{shown}](../images/cli-{name}.svg)\n")
    text = re.sub(rf"{re.escape(moments.EXPECTED)}(\. A time means msg_time)?", "a [place](#places)", text)
    text = text.replace("**Usage**:\n\n", "")
    head, *sections = re.split(r"^(?=##)", text, flags=re.MULTILINE)
    lines = {found[1]: found[0] for section in sections for found in _OPTION.finditer(section)}
    common = {name: lines[name] for name in (*_CONNECTION, *_COMMON)}
    shared = SHARED.format(options="".join(common.values()).rstrip(), place=moments.EXPECTED)
    return "".join([head, shared, *(_own_part(section, common) for section in sections)]).rstrip() + "\n"


def _own_part(section: str, common: Mapping[str, str]) -> str:
    """Return the section of a command without the options that others have too, and without what its usage says."""
    has = [name for name, line in common.items() if line in section]
    section = _OPTION.sub(lambda found: "" if found[1] == "help" or found[1] in has else found[0], section)
    also = [f"`--{name}`" for name in _COMMON if name in has]
    if set(_CONNECTION) <= set(has):
        also.append("the [connection options](#common-options)")
    if also:
        section = re.sub(r":$", ":\n", section.rstrip()) + f"\n* {', '.join(also)}\n\n"
    section = re.sub(r"^\* `(TOPIC|GROUP)`: The name of the .*\[required\]\n", "", section, flags=re.MULTILINE)
    section = re.sub(r"\*\*(Options|Arguments)\*\*:\n\n(?!\* )", "", section)
    return re.sub(r"\n{3,}", "\n\n", section)


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
