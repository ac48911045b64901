# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a page, and a shell that runs them.

A page is written for readers, so its blocks have no marks for tests, with one exception: below a block that cannot run
here stands a line that readers see, `*Not run by the tests: <reason>*`.

All blocks of a page share one namespace and run in order. A `text` block that follows a `python` or `sql` block is
what it prints; `...` stands for any text.
"""

from __future__ import annotations

import doctest
import inspect
import io
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ

ROOT = Path(__file__).parents[2]
RUN = ("python", "sql")
SHELL = ("sh", "bash", "console")

_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$\n?", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(r"\n*\*Not run by the tests: ([^*]+)\*$", re.MULTILINE)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A block of code. `line` is where its code begins, `output` what it prints, if the page shows it."""

    language: str
    code: str
    line: int
    output: str | None
    not_run: str | None  # the reason

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.not_run is None


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of code and shell commands of a page; `page` is relative to the repository's root."""
    yield from blocks_of((ROOT / page).read_text(encoding="utf-8"))


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page's text."""
    fences = list(_FENCE.finditer(text))
    for number, fence in enumerate(fences):
        indent, language, code = fence.groups()
        after = fences[number + 1] if number + 1 < len(fences) else None
        follows = after is not None and after[2] == "text" and not text[fence.end() : after.start()].strip()
        reason = _NOT_RUN.match(text, fence.end())
        if language != "text":
            yield Block(
                language,
                re.sub(rf"^{indent}", "", code, flags=re.MULTILINE),
                text.count("\n", 0, fence.start()) + 2,
                after[3] if after is not None and follows and language in RUN else None,
                None if reason is None else " ".join(reason[1].split()),
            )


def pages() -> list[str]:
    """Return all pages with code that can run: README.md and docs/**/*.md."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [file.relative_to(ROOT).as_posix() for file in files if file.exists()]
    return [name for name in names if any(block.language in RUN for block in blocks(name))]


class Shell:
    """Runs blocks in one namespace. `replaced` maps regular expressions of a page's text to the test's own values."""

    def __init__(self, page: str, spark: SparkSession, folder: Path, replaced: Mapping[str, str]) -> None:
        self.names: dict[str, Any] = {"spark": spark, "__name__": "documentation"}
        self._spark = spark
        self.ran = 0
        self._page = page
        self._folder = folder
        self._replaced = {r"(?<=[\"'])/(data|checkpoints|receipts)/": f"{folder}/", **replaced}

    def paste(self, block: Block) -> None:
        """Run a block, compare what it prints, and run the tests that it defines."""
        code = block.code
        for old, new in self._replaced.items():
            code = re.sub(old, new, code)
        printed = io.StringIO()
        with redirect_stdout(printed):
            if block.language == "sql":
                self._run_sql(code, block.output is not None)
            else:
                exec(compile("\n" * (block.line - 1) + code, self._page, "exec"), self.names)
        self.names["spark"] = self._spark  # a block may define a fixture of that name
        if block.output is not None:
            self._compare(block, printed.getvalue())
        self.ran += 1
        self._run_tests(code)

    def _run_sql(self, code: str, shown: bool) -> None:
        for statement in code.split(";"):
            if statement.strip():
                result = self.names["spark"].sql(statement)
                if shown and result.columns:
                    result.show(truncate=False)

    def _compare(self, block: Block, printed: str) -> None:
        expected = block.output or ""
        if not doctest.OutputChecker().check_output(expected, printed, _FLAGS):
            raise AssertionError(f"{self._page}:{block.line} prints\n{printed}\nbut the page shows\n{expected}")

    def _run_tests(self, code: str) -> None:
        for name in re.findall(r"^def (test_\w+)", code, re.MULTILINE):
            with ExitStack() as stack:
                self._run_test(stack, self.names[name], self._folder / name)
            self.ran += 1

    def _run_test(self, stack: ExitStack, test: Callable[..., None], folder: Path) -> None:
        folder.mkdir()
        fixtures: dict[str, Any] = {"spark": self.names["spark"], "tmp_path": folder}
        parameters = inspect.signature(test).parameters
        if "tubemq" in parameters:
            fixtures["tubemq"] = stack.enter_context(EmbeddedTubeMQ())
            stack.callback(forget_servers)
        test(**{name: fixtures[name] for name in parameters})


def check_shell_syntax(code: str) -> None:
    """Raise `AssertionError` if bash cannot parse the commands."""
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
