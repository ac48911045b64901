"""Write docs/options.md from the tables in which the options are declared: `python scripts/generate_docs.py`.

With `--check` nothing is written; the status is 1, and the difference printed, when the file is out of date.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.options import Option
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

FILE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

INTRODUCTION = """\
# Options

<!-- Written by scripts/generate_docs.py from the options' declarations: change them there. -->

`tubemq.` stands in front of what configures the client of TubeMQ; what Spark does with it has no prefix. Spark does not
tell upper from lower case in names. A value that cannot be used and an unknown name are errors that say what was
expected: at `load()`, and of the sink when the write begins. One set of options may be given to a source and to a sink.
"""

SECRETS = """\
Spark hides the values of `tubemq.password` and `tubemq.tls.keyPassword` where it shows plans: the default of
`spark.redaction.regex` has the word `password`. Keep the word when you change that setting, or add it to
`spark.sql.redaction.options.regex`, whose default `(?i)url` does not match these options. `receipts` matches neither:
where its URI holds a password, set `spark.sql.redaction.options.regex` to `(?i)url|receipts`. Of
`tubemq.passwordFile` a plan has the path alone."""


def document() -> str:
    """The whole file."""
    shared = {option.name for option in CLIENT_OPTIONS}
    sections = [
        ("Both ways", SECRETS, CLIENT_OPTIONS),
        (
            "Source",
            "For streams and batch reads. Give `subscribe` or `assign`, not both. Positions are bytes of a store's "
            "index, which has 28 of them for each message.",
            [option for option in SOURCE_OPTIONS if option.name not in shared],
        ),
        ("Sink", "", [option for option in SINK_OPTIONS if option.name not in shared]),
    ]
    parts = [INTRODUCTION]
    for title, text, options in sections:
        parts.append(f"## {title}\n")
        if text:
            parts.append(f"{text}\n")
        parts.append(table(options))
    return "\n".join(parts)


def table(options: Iterable[Option[Any]]) -> str:
    rows = [["option", "default", "value", "meaning"], ["---"] * 4]
    rows += [[f"`{option.name}`", default(option), option.expects, option.meaning] for option in options]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def default(option: Option[Any]) -> str:
    if option.required:
        return "required"
    if option.shown_default is not None:
        return option.shown_default if "`" in option.shown_default else f"`{option.shown_default}`"
    if option.default is None:
        return "none"
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"


def difference(new: str) -> Iterator[str]:
    old = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    return difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), "docs/options.md", "as declared"
    )


def main(arguments: list[str]) -> int:
    text = document()
    if arguments == ["--check"]:
        found = "".join(difference(text))
        if found:
            print(f"{found}docs/options.md is out of date: run scripts/generate_docs.py")
        return 1 if found else 0
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
