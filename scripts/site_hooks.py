# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: pages from the repository's root become pages of the site, and links to source files lead nowhere.

Pages are written for readers of the repository: a link is relative to the file it stands in, such as
`../CONTRIBUTING.md` in docs/architecture.md. On the site CONTRIBUTING.md is beside it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")

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
