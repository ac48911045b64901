# SPDX-License-Identifier: Apache-2.0
"""Damages valid input: bytes and texts."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

MAX_SIZE = 1 << 17  # bytes of an input, so that duplicated pieces do not add up

_NUMBERS = (0, 1, -1, 4, 0x7F, 0x80, 0xFF, 0x2000, 0x2001, 0x7FFF, 0x8000, 0x7FFFFFFF, -0x80000000, 5 << 20)
_BYTES = (0x00, 0x01, 0x08, 0x0F, 0x10, 0x12, 0x1A, 0x20, 0x22, 0x7F, 0x80, 0xFF)
_VARINTS = (
    b"\x00",
    b"\x7f",
    b"\x80\x01",
    b"\xff\xff\x03",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 12,
)
_LAYOUTS = (">H", ">i", ">q")
_SNIPPETS = (
    "", " ", ":", "::", "#", "##", ",", ",,", "=", "-", "_", "\0", "\n", "\t", "é", "\u0663", "\u2028", "\U0001f600",
    "0", "-1", "007", "+1", "1e9", "0x10", "999999999999999999", "9999999999999999999", "9" * 5000, "x" * 300,
    "x" * 1025, "null", "true", "NaN", "1e999", "[]", "{}", "[[", '"', "\\ud800", "[" * 2000, '{"a":' * 500,
)  # fmt: skip


def damaged(chance: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return `data`, sometimes as it is, with up to five mutations. `others` are valid inputs to take pieces from."""
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3, 5))):
        data = _mutated(chance, data, others)[:MAX_SIZE]
    return data


def _mutated(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    size = len(data)
    # Headers and lengths are at the front, so damage the first bytes as often as all others.
    at = chance.randrange(min(size, 40) + 1 if chance.random() < 0.5 else size + 1)
    end = min(size, at + chance.choice((1, 2, 4, 8, chance.randint(1, 64))))
    match chance.randrange(10):
        case 0 if at < size:  # flip a bit
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes([chance.choice(_BYTES)]) + data[at + 1 :]
        case 2:  # cut the end, or the beginning
            return data[:at] if chance.random() < 0.8 else data[at:]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:at] + chance.randbytes(chance.choice((1, 2, 4, 30))) + data[at:]
        case 5:  # duplicate a piece
            return data[:end] + data[at:end] * chance.choice((1, 1, 2, 50)) + data[end:]
        case 6:  # a length becomes an extreme one
            number = chance.choice((*_NUMBERS, size, size - at))
            layout = chance.choice(_LAYOUTS)
            width = struct.calcsize(layout)
            extreme = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")
            return data[:at] + extreme + data[at + width :]
        case 7:
            return data[:at] + chance.choice(_VARINTS) + data[at + chance.choice((0, 1, 2)) :]
        case 8 if others:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            return data[:at] + other[begin : begin + chance.choice((4, 20, len(other)))] + data[end:]
        case _:
            return data + chance.randbytes(chance.choice((1, 4, 16)))


def damaged_text(chance: random.Random, text: str, others: Sequence[str] = ()) -> str:
    """As `damaged`, for a text. The result may contain any character but surrogates."""
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3, 5))):
        text = _mutated_text(chance, text, others)[:MAX_SIZE]
    return text


def _mutated_text(chance: random.Random, text: str, others: Sequence[str]) -> str:
    at = chance.randrange(len(text) + 1)
    end = min(len(text), at + chance.choice((1, 1, 2, 5, 20)))
    match chance.randrange(6):
        case 0:
            return text[:at] + chance.choice(_SNIPPETS) + text[end:]
        case 1:
            return text[:at] + chance.choice(_SNIPPETS) + text[at:]
        case 2:
            return text[:at] + text[end:]
        case 3:
            return text[:end] + text[at:end] * chance.choice((1, 2, 50)) + text[end:]
        case 4 if others:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            return text[:at] + other[begin : begin + chance.choice((3, 20, len(other)))] + text[end:]
        case _:
            return damaged(chance, text.encode()).decode("utf-8", "replace")
