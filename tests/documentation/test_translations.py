# SPDX-License-Identifier: Apache-2.0
"""The code of translated pages is that of the English pages, so it need not run again. Comments may differ."""

from __future__ import annotations

import ast

import pytest

from tests.documentation.pages import Block, blocks

TRANSLATIONS = {"docs/zh/README.md": "docs/index.md", "docs/zh/tutorial.md": "docs/tutorial.md"}


def meaning(block: Block) -> tuple[str, str, str | None]:
    """Return what has to be equal: the language, the code without comments, and the output."""
    if block.language == "python":
        return block.language, ast.dump(ast.parse(block.code)), block.output
    return block.language, "\n".join(line.split("#")[0].rstrip() for line in block.code.splitlines()), block.output


@pytest.mark.parametrize(("page", "original"), TRANSLATIONS.items())
def test_a_translated_page_has_the_code_of_the_original(page: str, original: str) -> None:
    assert [meaning(block) for block in blocks(page)] == [meaning(block) for block in blocks(original)]
