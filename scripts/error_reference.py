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

Each error has a class, which says who must act, and a text, which says what failed, where, and what to do. This page
has cause and remedy of each class, and the first words of its texts, in alphabetical order. `…` stands for what
differs: a name, a number, a server's text. To find an error, search the page for its class or its first words.

Spark wraps the errors of a Python data source, and puts up to 85 lines of its own before them: search the output for
`tubemq_spark` and `Error:`. If the text is not there, look into the driver's log, or at the `exception` of a
`StreamingQueryListener`'s last event, which [`TubeMQListener`](howto/monitoring.md) reports.
"""

CODES = """\
## Error codes of the servers

The table says what the connector does with the codes in a server's reply. If that does not help, it raises the error.
"""


class Kind(NamedTuple):
    """Some of the sentences of `ConfigError`: those of these files, or that begin with these words."""

    title: str
    remedy: str
    places: tuple[str, ...]
    begin: tuple[str, ...] = ()
    is_listed: bool = True


# The first that fits is a sentence's kind.
KINDS = (
    Kind(
        "Checkpoint",
        "Check that `checkpointLocation` is this query's own, and that `tubemq.master` and `subscribe` are those of "
        "its earlier runs. Without a checkpoint, [go on from the group](howto/lost-checkpoint.md).",
        ("source/offset.py", "source/micro_batch_planner.py"),
        ("the checkpoint",),
    ),
    Kind(
        "Installation",
        "Install the named package, in the named release or a later one, in the named Python. `check(spark)` shows the "
        "Pythons of the driver and of the executors.",
        ("arrival.py",),
    ),
    Kind(
        "Command line",
        "Change the argument, the profile or the file that the text names; see [Command line](reference/cli.md). This "
        "page does not list these texts.",
        ("cli/",),
        is_listed=False,
    ),
    Kind(
        "Topics, brokers and partitions",
        "Check that `tubemq.master` names the right cluster. `tubemq-spark topics list` shows its topics, and "
        "`tubemq-spark topics describe` the partitions of one. Name one of these, or create what is missing.",
        ("client/cluster/", "client/consumer/", "client/producer/failure_handler.py", "source/partition_set.py"),
    ),
    Kind(
        "Effectively once",
        "Restore the settings of the earlier attempt of the batch, or raise the limit that the text names. Or set "
        "`effectivelyOnceUncertain` to `sendAgain`, and [drop the copies](sink.md#stamps) "
        "([limit 17](limits.md#limit-17)).",
        ("sink/deduplicator.py", "sink/stored_rows_search.py"),
        ("…. Keep what decides on the number of tasks",),
    ),
    Kind(
        "Options",
        "Change the option that the text names; see [Options](options.md).",
        (
            *("client/settings.py", "client/tls.py", "compression.py", "inlong.py"),
            *("option_definition.py", "source/"),
            *("sink/options.py", "sink/output_dir.py", "sink/receipts.py", "sink/task_attempts.py"),
        ),
        ("option '",),
    ),
    Kind(
        "Columns and rows",
        "Cast, rename or drop the [column](reference/columns.md) before the write, or correct its cells. Option "
        "`failedRows` drops single bad rows or keeps them as [dead letters](dead-letters.md).",
        ("client/producer/producer.py", "protocol/", "sink/"),
    ),
)

_MOST_WORDS = 7

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
                parts += [f"### {one.title}\n\n**Remedy:** {one.remedy}\n", _listed(own) if one.is_listed else ""]
        elif raised:
            parts.append(_listed(raised))
    parts += [CODES, _codes()]
    return "\n".join(parts)


def kind_of(text: str, file: str) -> Kind:
    """Return the kind of a sentence of `ConfigError`. Raise `StopIteration` for a file that belongs to none."""
    return next(one for one in KINDS if text.startswith(one.begin) or file.startswith(one.places))


def _listed(sentences: Iterable[str]) -> str:
    return "".join(f"- {_as_code(text)}\n" for text in sorted({*map(_beginning, sentences)}, key=_fixed_words))


def _beginning(sentence: str) -> str:
    """Return the first words: up to the end of a clause of at least three fixed words, or `_MOST_WORDS` fixed ones."""
    shown: list[str] = []
    fixed = 0
    for word in re.sub(r"^(…+[:;,.] )+", "", sentence).split():
        shown.append(word)
        fixed += any(letter.isalpha() for letter in word)
        if fixed == _MOST_WORDS or (fixed >= 3 and word[-1] in ".:;,"):
            break
    return re.sub(r"( *(\([… ]+\)|[…(\[.:;,]))+$", "", " ".join(shown))


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
    codes: defaultdict[Reaction, list[str]] = defaultdict(list)
    for code in ErrCode:
        if code is not ErrCode.SUCCESS:
            codes[reaction_to(code)].append(f"{code.value} `{code.name}`")
    rows = [[*_REACTIONS[reaction], ", ".join(found)] for reaction, found in codes.items()]
    return table(["the connector", "error", "codes"], rows)
