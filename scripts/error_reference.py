# SPDX-License-Identifier: Apache-2.0
"""The text of docs/errors.md: each error with cause and remedy, and each sentence that the code raises it with."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import tubemq_spark
from scripts.markdown import table
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.errcode import ErrCode, Reaction, reaction_to
from tubemq_spark.sink.schema import BadRowError

ROOT = Path(__file__).resolve().parent.parent

INTRODUCTION = """\
# Errors

<!-- Written by scripts/generate_docs.py from the error classes and the code that raises them: change them there. -->

Each error of the connector has a class, which says who must act, and a text, which says what failed, where, and what to
do. This page lists the classes with cause and remedy, and under each class the sentences of its errors. `…` stands for
what differs: a name, a number, a server's text. Search the page for the fixed words of your error; each list is in the
order of its first fixed words. Some texts are put together in several places; their beginning or end is listed then.
"""

CODES = """\
## Error codes of the servers

TubeMQ's servers reply with these codes. The table says what the connector does first. If retries do not help, it
raises the error.
"""

SHOWN = """\
## Where the sentence stands

Spark wraps the error of a Python data source. Search the output for `tubemq_spark` and `Error:`, or for a word of the
list above: Spark puts up to 85 lines of its own before it. If the text lacks the sentence, look into the driver's log,
or at the `exception` of a `StreamingQueryListener`'s last event: `TubeMQListener` reports it from there.
"""


class Kind(NamedTuple):
    """Some of the sentences of `ConfigError`: those of these files, or that begin with these words."""

    title: str
    remedy: str
    places: tuple[str, ...]
    begin: tuple[str, ...] = ()


# The first that fits is a sentence's kind.
KINDS = (
    Kind(
        "Checkpoint",
        "Check that `checkpointLocation` is this query's own, and that `tubemq.master` and `subscribe` are those of "
        "its earlier runs. If the checkpoint is lost, go on from the group: docs/howto/lost-checkpoint.md says how.",
        ("source/offset.py", "source/micro_batch_planner.py"),
        ("the checkpoint",),
    ),
    Kind(
        "Installation",
        "Install the named package, in the named release or a later one, in the Python that the text names. "
        "`check(spark)` shows the Pythons of the driver and of the executors.",
        ("arrival.py",),
    ),
    Kind(
        "Command line",
        "Change the argument, the profile or the file that the text names. `tubemq-spark COMMAND --help` and "
        "docs/reference/cli.md list the arguments with their values.",
        ("cli/",),
    ),
    Kind(
        "Topics, brokers and partitions",
        "Check first that `tubemq.master` names the right cluster. `tubemq-spark topics list` shows its topics, and "
        "`tubemq-spark topics describe` the partitions of one. Name one of these, or create what is missing.",
        ("client/cluster/", "client/consumer/", "client/producer/failure_handler.py", "source/partition_set.py"),
    ),
    Kind(
        "Effectively once",
        "The query gives other rows or has other tasks than in an earlier attempt of the batch, or the search for the "
        "stored rows has reached a limit. Restore the settings of that attempt, or raise the limit. Or set "
        "`effectivelyOnceUncertain` to `sendAgain`, and drop the copies by their stamps: docs/sink.md says how.",
        ("sink/deduplicator.py", "sink/stored_rows_search.py"),
        ("…. Keep what decides on the number of tasks",),
    ),
    Kind(
        "Options",
        "Change the option that the text names. docs/options.md lists all options with their values and defaults.",
        (
            *("client/settings.py", "client/tls.py", "compression.py", "inlong.py"),
            *("option_definition.py", "source/"),
            *("sink/options.py", "sink/output_dir.py", "sink/receipts.py", "sink/task_attempts.py"),
        ),
        ("option '",),
    ),
    Kind(
        "Columns and rows",
        "Change the DataFrame before the write: cast, rename or drop the column, or correct its cells. "
        "docs/reference/columns.md lists the columns. Option `failedRows` drops single bad rows or keeps them as dead "
        "letters.",
        ("client/producer/producer.py", "protocol/", "sink/"),
    ),
)

_REACTIONS = {
    Reaction.RETRY: ("retries", "`ServerError`; of a claim `TransportError`, or `PartitionOccupiedError` (410)"),
    Reaction.WAIT: ("waits and asks again", "`ServerError`; of a claim `TransportError`"),
    Reaction.CLAIM_LOST: ("claims the partition again, or ends the task", "`FencedError`, `PartitionOccupiedError`"),
    Reaction.OTHER_MEMBERS: ("waits for `tubemq.claim.timeoutMs` when a query starts", "`ConfigError`"),
    Reaction.FIX_CONFIG: ("fails", "`ConfigError`"),
    Reaction.FIX_CREDENTIALS: ("fails", "`AuthError`"),
    Reaction.FAIL: ("fails", "`ServerError`"),
}


def document() -> str:
    """Return the text of docs/errors.md."""
    sentences = raised_sentences()
    parts = [INTRODUCTION]
    for kind in error_classes():
        parts.append(f"## {kind.__name__}\n\n**Cause:** {kind.cause}\n\n**Remedy:** {kind.remedy}\n")
        raised = sentences[kind.__name__]
        if kind is ConfigError:
            for one in KINDS:
                own = {text: file for text, file in raised.items() if kind_of(text, file) is one}
                parts += [f"### {one.title}\n\n**Remedy:** {one.remedy}\n", _listed(own)]
        elif raised:
            parts.append(_listed(raised))
    parts += [CODES, _codes(), SHOWN]
    return "\n".join(parts)


def kind_of(text: str, file: str) -> Kind:
    """Return the kind of a sentence of `ConfigError`. Raise `StopIteration` for a file that belongs to none."""
    return next(one for one in KINDS if text.startswith(one.begin) or file.startswith(one.places))


def _listed(sentences: Iterable[str]) -> str:
    return "".join(f"- {_as_code(sentence)}\n" for sentence in sorted(sentences, key=_fixed_words))


def _fixed_words(sentence: str) -> tuple[str, str]:
    return re.sub(r"^[^A-Za-z]+", "", sentence).lower(), sentence


def error_classes() -> list[type[TubeMQError] | type[BadRowError]]:
    """Return the classes that users may see, the base class first. Private classes never leave their module."""
    for module in pkgutil.walk_packages(tubemq_spark.__path__, "tubemq_spark."):
        if not module.name.endswith("__main__") and ".testing" not in module.name:
            importlib.import_module(module.name)
    found: list[type[TubeMQError]] = []
    waiting = [TubeMQError]
    while waiting:
        kind = waiting.pop(0)
        found.append(kind)
        waiting += kind.__subclasses__()
    # Tests and scripts may define classes of their own.
    ours = [kind for kind in found if kind.__module__.startswith("tubemq_spark.")]
    in_file = [kind for kind in ours if kind.__module__ == TubeMQError.__module__]
    others = sorted(set(ours) - set(in_file), key=lambda kind: kind.__name__)
    return [*in_file, *others, BadRowError]


def raised_sentences() -> dict[str, dict[str, str]]:
    """Return the texts that errors are made with, as far as they stand in the code, with their file, by class."""
    names = {kind.__name__ for kind in error_classes()}
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    package = Path(tubemq_spark.__path__[0])
    for file in sorted(package.rglob("*.py")):
        if package / "testing" in file.parents or package / "protocol" / "pb" in file.parents:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for name, text in _made_in(function, names):
                found[name].setdefault(text, file.relative_to(package).as_posix())
    return found


def _made_in(function: ast.FunctionDef, names: set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
            # `BadRowError(column, reason)`, all others have the text first
            argument = node.args[-1] if node.func.id == BadRowError.__name__ else node.args[0]
            for text in _texts(argument, function):
                text = " ".join(text.split())
                if len(text.replace("…", "").strip(" :;,.")) >= 12:  # else there is nothing to search for
                    yield node.func.id, text


def _texts(expression: ast.expr, function: ast.FunctionDef) -> list[str]:
    """Return the texts that `expression` may have, with `…` for what is not in the code."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return ["".join(_texts(value, function)[0] for value in values)]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return [one + other for one in _texts(left, function) for other in _texts(right, function)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body, function), *_texts(orelse, function)]
        case ast.Name(id=name):
            assigned = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
            ]
            texts = [text for value in assigned if not isinstance(value, ast.Name) for text in _texts(value, function)]
            return texts or ["…"]
    return ["…"]


def _as_code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    pad = " " if fence == "``" else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _codes() -> str:
    rows = [
        [str(code.value), f"`{code.name}`", *_REACTIONS[reaction_to(code)]]
        for code in ErrCode
        if code is not ErrCode.SUCCESS
    ]
    return table(["code", "name", "the connector", "error"], rows)
