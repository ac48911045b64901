# SPDX-License-Identifier: Apache-2.0
"""Messages of all shapes, the same on every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from tests.interop.java_client import Outgoing

MIB = 1 << 20
SAME_HASH = ("Aa", "BB")  # equal to Java's String.hashCode, by which brokers filter

_TYPES = (*SAME_HASH, "news", "Größe", "价格", "t" * 200)
_WORDS = ("v", "a b", "Zürich", "Ёлка", "価格", "🚀 up", "%2C%3D", "q" * 300)
_FIRST = datetime(2024, 2, 28, 23, 50, tzinfo=timezone.utc)


def java_messages(count: int) -> list[Outgoing]:
    """``count`` messages, the largest and smallest bodies included."""
    rng = random.Random(4)
    bodies = _bodies(rng, count)
    shapes = (_bare, _attributed, _typed, _timed, _full, _empty_value, _no_value)
    return [shapes[n % len(shapes)](rng, next(bodies)) for n in range(count)]


def cleared_messages(count: int) -> list[Outgoing]:
    """A cleared attribute makes the Java client set the flag for attributes without writing them or their length.

    Readers would take the first four bytes of the body for the length. These begin with a byte over 127, as compressed
    data or Chinese text does: such a length is negative, which cannot be.
    """
    return [Outgoing(b"\xe4\xbb\xb7" + f"格 {n}".encode(), raw_attribute="") for n in range(count)]


def withheld_messages(count: int) -> list[Outgoing]:
    """As ``cleared_messages``, but these four bytes make a length beyond the end, and no broker gives the message to
    anybody, though it takes a position.
    """
    return [Outgoing(f"withheld {n}".encode(), raw_attribute="") for n in range(count)]


def body_of(rng: random.Random, n: int) -> bytes:
    """1 byte, 1 KiB less something or, now and then, nearly 1 MiB."""
    size = {0: 1, 1: 2}.get(n % 500, rng.randrange(3, 1000))
    if n % 2500 == 1250:
        size = MIB - 4096  # attributes count too
    return rng.randbytes(size)


def minute(n: int) -> datetime:
    """``msg_time`` number ``n``: over the ends of a day, a leap month and a year."""
    return _FIRST + timedelta(minutes=n % 700_000)


def word(rng: random.Random) -> str:
    return rng.choice(_WORDS)


def msg_type(rng: random.Random) -> str:
    return rng.choice(_TYPES)


def _bodies(rng: random.Random, count: int) -> Iterator[bytes]:
    yield bytes(MIB)  # bare, and as long as a message may be
    yield from (body_of(rng, n) for n in range(1, count))


def _time(rng: random.Random) -> str:
    return minute(rng.randrange(700_000)).strftime("%Y%m%d%H%M")


def _attributes(rng: random.Random) -> dict[str, str]:
    return {f"{word(rng)}{n}": word(rng) for n in range(rng.randrange(1, 4))}


def _bare(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body)


def _attributed(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, attributes=_attributes(rng))


def _typed(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, msg_type=msg_type(rng))


def _timed(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, msg_time=_time(rng))


def _full(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, attributes=_attributes(rng), msg_type=msg_type(rng), msg_time=_time(rng))


def _empty_value(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, raw_attribute=f"empty=,{word(rng)}={word(rng)}")


def _no_value(rng: random.Random, body: bytes) -> Outgoing:
    return Outgoing(body, raw_attribute=f"{word(rng)},$msgType$={msg_type(rng)}")
