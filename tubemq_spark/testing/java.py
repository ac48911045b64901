# SPDX-License-Identifier: Apache-2.0
"""Java's handling of strings, numbers and hash tables, where a server's answers show it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

K = TypeVar("K")

_CONTROLS_AND_BLANK = "".join(map(chr, range(0x21)))
# Python takes four more characters for white space than Java.
_WHITE = "".join(char for char in map(chr, range(0x3001)) if char.isspace() and char not in "\x85\u00a0\u2007\u202f")
_NUMBER = re.compile(r"[+-]?[0-9]+")


def is_blank(text: str) -> bool:
    """`StringUtils.isBlank`."""
    return not text.strip(_WHITE)


def trim(text: str) -> str:
    """`String.trim`."""
    return text.strip(_CONTROLS_AND_BLANK)


def split(text: str, separator: str) -> list[str]:
    """`String.split`: it drops empty parts at the end; a text without the separator is one part."""
    parts = text.split(separator)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return [] if parts == [""] and text else parts


def parse_long(text: str) -> int:
    """`Long.parseLong`; `ValueError` for anything else."""
    if _NUMBER.fullmatch(text) is None or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise ValueError(f"{text!r} is not a long")
    return value


def hash_order(keys: Iterable[K]) -> list[K]:
    """Return `keys` in the iteration order of a Java `HashMap` into which they were put one after the other.

    A key is an int, or anything whose hash code is that of its text.
    """
    found = list(keys)
    size = 16
    while len(found) > size * 3 // 4:
        size *= 2

    def bucket(key: K) -> int:
        code = key & 0xFFFFFFFF if isinstance(key, int) else filter_code(str(key)) & 0xFFFFFFFF
        return (code ^ code >> 16) & (size - 1)

    return sorted(found, key=bucket)


def list_text(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def set_text(items: Iterable[str]) -> str:
    """Return the text of a `HashSet`."""
    return list_text(hash_order(items))


def map_text(lists: Mapping[str, Iterable[str]]) -> str:
    """Return the text of a `HashMap` of lists."""
    return "{" + ", ".join(f"{key}={list_text(lists[key])}" for key in hash_order(lists)) + "}"


@lru_cache(maxsize=1024)
def filter_code(msg_type: str) -> int:
    """Return the code that brokers compare with the filters of a consumer: Java's `String.hashCode` of the type."""
    units = msg_type.encode("utf-16-le", "surrogatepass")
    code = 0
    for (unit,) in struct.iter_unpack("<H", units):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code
