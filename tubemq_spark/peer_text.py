"""How text that a peer chose stands in errors and logs.

A peer may send megabytes, line breaks that forge log lines, or escape sequences that terminals obey. Every text of a
server, a message or a checkpoint passes `shown` before it becomes part of a sentence.
"""

from __future__ import annotations

MOST = 300
"""Characters of a peer's text that a sentence has room for."""


def escaped(text: str) -> str:
    """`text` on one line: characters that do not print are written as in a Python literal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shown(text: object, most: int = MOST) -> str:
    """The first `most` characters of `str(text)`, `escaped`. What was cut is told by the length of the whole."""
    whole = text if isinstance(text, str) else str(text)
    short = escaped(whole[:most])[:most]
    return short if len(whole) <= most else f"{short}… ({len(whole)} characters)"
