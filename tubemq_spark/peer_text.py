# SPDX-License-Identifier: Apache-2.0
"""Escapes and shortens text from a peer before it appears in errors and logs.

A peer may send megabytes, line breaks that forge log lines, or escape sequences for terminals. Every text from a
server, a message or a checkpoint passes `shown` before it becomes part of a sentence.
"""

from __future__ import annotations

MAX_SHOWN = 300
"""Characters of a peer's text in a sentence."""


def escaped(text: str) -> str:
    """Return `text` as one line, with unprintable characters escaped as in a Python literal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def quoted(text: str, most: int = 60) -> str:
    """Return the first `most` characters of `text` as a literal of Python, with `…` behind it if it was cut."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}…"


def shown(text: object, most: int = MAX_SHOWN) -> str:
    """Return the first `most` characters of `str(text)`, `escaped`, and the whole length if it was cut."""
    whole = text if isinstance(text, str) else str(text)
    short = escaped(whole[:most])[:most]
    return short if len(whole) <= most else f"{short}… ({len(whole)} characters)"
