# SPDX-License-Identifier: Apache-2.0
"""Varints: the numbers of protobuf, seven bits in a byte, the lowest first; the highest bit says that it goes on."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the index behind it. Raise `IndexError` if the data ends before."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return number, at
        shift += 7
