# SPDX-License-Identifier: Apache-2.0
"""Groups of commands whose help is plain text: it fits any terminal, and shows no type for an option without a value.

Typer's own help is a table. At 80 columns its last column, the text, has 24 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_FIRST_SENTENCE = re.compile(r".*?\.(?=\s|$)", re.DOTALL)


class _Plain:
    """Help in sections: arguments, options, and further panels of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        command: Any = self
        for parameter in command.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            title = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            name = parameter.metavar or parameter.name if is_argument else record[0]
            # Older releases of typer escape it for rich.
            sections.setdefault(title, []).append((name, record[1].replace("  \\[", "  [")))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence, whole: the list of commands wraps it."""
        command: Any = self
        found = _FIRST_SENTENCE.match(command.help or "")
        return " ".join(found[0].split()) if found else ""


class _Command(_Plain, TyperCommand):
    pass


class _Group(_Plain, TyperGroup):
    pass


class Commands(typer.Typer):
    """A group of commands with plain help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, rich_markup_mode=None, no_args_is_help=True, **settings)

    def command(  # type: ignore[override]
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return super().command(name, cls=_Command, **settings)
