# SPDX-License-Identifier: Apache-2.0
"""What a hostile server sends instead of its replies."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from tests.network.proxy import Reply
from tubemq_spark.protocol.constants import RPC_PROTOCOL_BEGIN_TOKEN, Framing, Method
from tubemq_spark.protocol.envelope import Response, encode_reply
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.testing.dispatch import REPLIES

Bytes = Callable[[int, Response], Iterable[bytes]]
"""The bytes to send for a reply, given its serial number; there may be no end of them."""

_MOST_BLOCKS, _LARGEST_BLOCK = 3584, 8192
_UNSOLICITED = -77  # a serial number that no client uses


@dataclass
class Spoiled:
    """An edit of a proxy: replaces replies to `method`, but the first `spared`. `fired` counts them."""

    method: Method
    by: Bytes
    spared: int = 0
    fired: int = 0

    def __call__(self, serial_no: int, reply: Reply) -> Iterable[bytes] | None:
        if not isinstance(reply, Response) or reply.method != self.method:
            return None
        if self.spared:
            self.spared -= 1
            return None
        self.fired += 1
        return self.by(serial_no, reply)


def largest_frame(serial_no: int, reply: Response) -> Iterator[bytes]:
    """The longest frame that is allowed, full of the smallest messages."""
    data = b"\x22\x00" * ((_MOST_BLOCKS * _LARGEST_BLOCK - 100) // 2)
    yield encode_frame(serial_no, encode_reply(Response(reply.method, data)), Framing.STANDARD)


def endless_blocks(serial_no: int, reply: Response) -> Iterator[bytes]:
    """A frame of as many blocks as are allowed, and more blocks for ever."""
    yield struct.pack(">Iii", RPC_PROTOCOL_BEGIN_TOKEN, serial_no, _MOST_BLOCKS)
    yield from _endless_blocks()


def _endless_blocks() -> Iterator[bytes]:
    return repeat((struct.pack(">i", _LARGEST_BLOCK) + b"\x22" * _LARGEST_BLOCK) * 8)


def endless_replies(serial_no: int, reply: Response) -> Iterator[bytes]:
    """The reply, and replies that nobody asked for, for ever."""
    yield encode_frame(serial_no, encode_reply(reply), Framing.STANDARD)
    yield from repeat(encode_frame(_UNSOLICITED, encode_reply(reply), Framing.STANDARD) * 100)


def wrong_serial_number(serial_no: int, reply: Response) -> Iterator[bytes]:
    yield encode_frame(serial_no + 1000, encode_reply(reply), Framing.STANDARD)


def saying(**fields: Any) -> Bytes:
    """The same reply with other values. A value may be a function of the true one."""

    def changed(serial_no: int, reply: Response) -> Iterator[bytes]:
        message = REPLIES[Method(reply.method)]()
        message.ParseFromString(reply.data)
        for name, value in fields.items():
            value = value(getattr(message, name)) if callable(value) else value
            if isinstance(value, list):
                getattr(message, name)[:] = value
            else:
                setattr(message, name, value)
        yield encode_frame(
            serial_no, encode_reply(Response(reply.method, message.SerializeToString())), Framing.STANDARD
        )

    return changed
