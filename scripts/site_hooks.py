# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: pages from the repository's root become pages of the site, links to source files lead nowhere, and
tables fit on a phone.

Pages are written for readers of the repository: a link is relative to the file it stands in, such as
`../CONTRIBUTING.md` in docs/architecture.md. On the site CONTRIBUTING.md is beside it.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")

_MOST_OF_FIGURES = 40  # characters of a cell: a table with a longer one has texts

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[dh])\b([^>]*)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"(<[^>]*>)")
_NAME = re.compile(r"\S{16,}")
_SEPARATOR = re.compile(r"(?<=\w)([.:,=/_]|(?:&quot;|\")?:)(?=[a-zA-Z{\[&\"…])")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Change links so that they lead to the site's pages. A link to a file without a page becomes plain text."""
    name = page.file.src_uri
    folder = posixpath.dirname(name) if name in FROM_ROOT else posixpath.join("docs", posixpath.dirname(name))

    def change(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))  # relative to the repository's root
        if not (ROOT / path).exists():
            return link[0]  # mkdocs reports it
        on_site = path if path in FROM_ROOT else path.removeprefix("docs/")
        if not path.startswith("docs/") and path not in FROM_ROOT:
            return text
        return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(name) or '.')}{anchor})"

    return _LINK.sub(change, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Prepare tables for narrow screens, where docs/site.css shows those with texts as lists: mark these, label their
    cells, and let long names break behind separators.
    """
    return _TABLE.sub(lambda table: fit_table(table[0]), content)


def fit_table(table: str) -> str:
    cells = list(_CELL.finditer(table))
    heads = [_plain(cell[3]) for cell in cells if cell[1] == "th"]
    has_texts = any(len(_plain(cell[3])) > _MOST_OF_FIGURES for cell in cells)

    def fit_row(row: re.Match[str]) -> str:
        labels = iter(heads if has_texts and len(heads) > 2 else ())
        return _CELL.sub(lambda cell: fit_cell(cell, next(labels, "")), row[0])

    def fit_cell(cell: re.Match[str], label: str) -> str:
        labelled = f' data-label="{html.escape(label)}"' if label and cell[1] == "td" else ""
        parts = _TAG.split(cell[3])
        texts = [part if part.startswith("<") else _NAME.sub(_breakable, part) for part in parts]
        return f"<{cell[1]}{cell[2]}{labelled}>{''.join(texts)}</{cell[1]}>"

    fitted = _ROW.sub(fit_row, table)
    return fitted.replace("<table>", "<table data-texts>", 1) if has_texts else fitted


def _plain(cell: str) -> str:
    return html.unescape(_TAG.sub("", cell)).strip()


def _breakable(name: re.Match[str]) -> str:
    return _SEPARATOR.sub(r"\1<wbr>", name[0])
