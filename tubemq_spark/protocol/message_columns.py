# SPDX-License-Identifier: Apache-2.0
"""Decodes the messages of a fetch into columns, without a Python object for each message.

The parser of protobuf makes an object of each message and a copy of each payload, which costs more than all else that
a reader does. Java writes each message in one shape, so `split_reply` follows tags and lengths itself, and leaves the
payloads where they are. A reply in any other shape, though valid, is left to the parser, which is the specification:
`tests/protocol/test_message_columns.py` compares both.

    messages (22 size): messageId (08 varint), checkSum (10 varint), payLoadData (1a size bytes), flag (20 byte)

wire: GetMessageResponseB2C, TransferedMessage
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from zlib import crc32

import numpy as np

from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.envelope import COUNTED_FROM
from tubemq_spark.protocol.message import CHECK_SUM_MASK

if TYPE_CHECKING:
    from numpy import bool_, int64, uint8, uint64
    from numpy.typing import NDArray

_CONTINUED = np.uint64(0x8080808080808080)  # the bit of each byte that says that a varint goes on
_LARGEST = np.array([(1 << (8 * width - 1)) - 1 for width in range(1, 9)], np.uint64)  # bits of a varint, by width
_LOW_BYTE, _ONE_BYTE = np.uint64(0xFF), np.uint64(8)
_MESSAGES, _ERR_MSG = 0x22, 0x1A  # tags of a reply
_MESSAGE_ID, _CHECK_SUM, _PAYLOAD, _FLAG = 0x08, 0x10, 0x1A, 0x20  # tags of a message
_LEAST = 8  # bytes of a message: four tags, and at least one byte for each value
_KINDS = (np.int64, np.int64, np.uint8, np.int64, np.int64, np.bool_)  # of the columns of messages
_LENGTH_BITS = 28  # longer sizes are left to the parser


class WireMessage(NamedTuple):
    """One message, with the names of the wire's TransferedMessage."""

    messageId: int  # noqa: N815
    checkSum: int  # noqa: N815
    payLoadData: bytes  # noqa: N815
    flag: int


class MessageColumns(Sequence[WireMessage]):
    """Messages of one reply: column by column, one array element for each message.

    The payload of message n is `data[starts[n]:ends[n]]`; `intact[n]` says whether its check sum is right. A slice has
    the same `data`.
    """

    def __init__(
        self,
        data: bytes,
        ids: NDArray[int64],
        check_sums: NDArray[int64],
        flags: NDArray[uint8],
        starts: NDArray[int64],
        ends: NDArray[int64],
        intact: NDArray[bool_],
    ) -> None:
        self.data = data
        self.ids = ids
        self.check_sums = check_sums
        self.flags = flags
        self.starts = starts
        self.ends = ends
        self.intact = intact

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> WireMessage: ...
    @overload
    def __getitem__(self, index: slice) -> MessageColumns: ...
    def __getitem__(self, index: int | slice) -> WireMessage | MessageColumns:
        columns = self.ids[index], self.check_sums[index], self.flags[index], self.starts[index], self.ends[index]
        if isinstance(index, slice):
            return MessageColumns(self.data, *columns, self.intact[index])
        message_id, check_sum, flag, start, end = (int(value) for value in columns)
        return WireMessage(message_id, check_sum, self.data[start:end], flag)

    def __iter__(self) -> Iterator[WireMessage]:
        payloads = (self.data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True))
        return map(WireMessage, self.ids.tolist(), self.check_sums.tolist(), payloads, self.flags.tolist())

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        return int((self.ends - self.starts).sum())

    def keys(self) -> Iterator[tuple[int, int]]:
        """Yield ids and check sums, which distinguish a message from all others of its store."""
        return zip(self.ids.tolist(), self.check_sums.tolist(), strict=True)


def split_reply(data: bytes, begin: int = 0) -> tuple[bytes, MessageColumns] | None:
    """Return the GetMessageResponseB2C in `data[begin:]` without its messages, still encoded, and its messages.

    Return None if the messages do not have the usual shape: the parser decides about such a reply.
    """
    if len(data) - begin >= COUNTED_FROM:
        return None
    if speedups.compiled is None:
        return _split(data, begin)
    found = speedups.compiled.split_reply(data, begin)
    if found is None:
        return None
    first, last, *arrays = found
    columns: list[Any] = [np.frombuffer(one, kind) for one, kind in zip(arrays, _KINDS, strict=True)]
    return data[begin:first] + data[last:], MessageColumns(data, *columns)


def _split(data: bytes, begin: int) -> tuple[bytes, MessageColumns] | None:
    try:
        first = _first_message(data, begin)
        starts, ends = _bounds(data, first)
        if ends[-1] > len(data):
            return None
        messages = _columns(data, np.array(starts, np.int64), np.array(ends, np.int64))
    except IndexError:  # it ends within a field
        return None
    return None if messages is None else (data[begin:first] + data[ends[-1] :], messages)


def _first_message(data: bytes, at: int) -> int:
    """Return where the first message begins, from `at` on. Raise `IndexError` if there is none behind fields of the
    usual types."""
    while (tag := data[at]) != _MESSAGES:
        at += 1
        if tag == _ERR_MSG and data[at] < 0x80:
            at += 1 + data[at]
        elif tag < 0x80 and tag & 7 == 0:  # a varint
            while data[at] >= 0x80:
                at += 1
            at += 1
        else:
            raise IndexError
    return at


def _bounds(data: bytes, at: int) -> tuple[list[int], list[int]]:
    """Return where the messages begin and end, without their tags and sizes, from the tag at `at` on.

    This loop runs once for each message, so it has no calls but `append`.
    """
    starts: list[int] = []
    ends: list[int] = []
    begins, finishes = starts.append, ends.append
    filled = len(data)
    while at < filled and data[at] == _MESSAGES:
        size = data[at + 1]
        at += 2
        if size >= 0x80:  # each further byte adds seven bits; the bit above them says that the size goes on
            size += (data[at] << 7) - 0x80
            at += 1
            if size >= 0x4000:
                size += (data[at] << 14) - 0x4000
                at += 1
                if size >= 0x200000:
                    size += (data[at] << 21) - 0x200000
                    at += 1
                    if size >= 1 << _LENGTH_BITS:
                        raise IndexError
        begins(at)
        at += size
        finishes(at)
    return starts, ends


def _columns(data: bytes, starts: NDArray[int64], ends: NDArray[int64]) -> MessageColumns | None:
    if (ends - starts).min() < _LEAST:
        return None
    found = np.frombuffer(data, np.uint8)
    words: NDArray[uint64] = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))  # the eight bytes from each place on

    def word_at(places: NDArray[int64]) -> NDArray[uint64]:
        """Return eight bytes from each place. Bytes behind the end of the data are unspecified."""
        last = len(words) - 1
        if places[-1] <= last:  # nearly always: fields of the reply itself follow the last message
            return words[places]
        beyond = np.maximum(places - last, 0)
        return words[places - beyond] >> (8 * np.minimum(beyond, 7)).astype(np.uint64)

    ids = word_at(starts + 1)
    width = _width(ids)
    sum_at = starts + 1 + width
    ninth = np.zeros_like(ids)
    if width.max() > 8:  # the usual id has nine bytes, of seven bits each
        ninth = np.where(width > 8, found[np.minimum(sum_at - 1, len(data) - 1)], ninth)
        if ninth.max() >= 0x80:
            return None  # a negative id
    check_sums = word_at(sum_at)
    is_usual = (found[starts] == _MESSAGE_ID) & ((check_sums & _LOW_BYTE) == _CHECK_SUM)
    check_sums >>= _ONE_BYTE
    size_at = sum_at + 1 + _width(check_sums)
    sizes = word_at(size_at)
    is_usual &= (sizes & _LOW_BYTE) == _PAYLOAD
    sizes >>= _ONE_BYTE
    payload_at = size_at + 1 + _width(sizes)
    ids, check_sums, sizes = _numbers(np.stack((ids, check_sums, sizes)))
    flag_at = payload_at + sizes.astype(np.int64)
    is_usual &= (flag_at == ends - 2) & (check_sums < 1 << 31) & (sizes < 1 << _LENGTH_BITS)
    if not is_usual.all():
        return None
    flags = found[flag_at + 1]
    if (found[flag_at] != _FLAG).any() or flags.max() >= 0x80:
        return None
    ids |= ninth << np.uint64(56)
    # Now, while the data is in the processor's caches
    view = memoryview(data)
    sums = [crc32(view[start:end]) for start, end in zip(payload_at.tolist(), flag_at.tolist(), strict=True)]
    intact = (np.array(sums, np.uint64) & np.uint64(CHECK_SUM_MASK)) == check_sums
    return MessageColumns(data, ids.view(np.int64), check_sums.view(np.int64), flags, payload_at, flag_at, intact)


def _width(words: NDArray[uint64]) -> NDArray[int64]:
    """Return the bytes of the varint at the beginning of each word: 9 if it does not end within the word."""
    return np.searchsorted(_LARGEST, _bits(words)) + 1


def _numbers(words: NDArray[uint64]) -> NDArray[uint64]:
    """Return the number whose varint is at the beginning of each word."""
    number = words & _bits(words)
    # Closes the gap of one bit in each byte, then of two bits in each pair, then of four bits in each half.
    for bits, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        high = np.uint64(low << (8 * bits) & 0xFFFFFFFFFFFFFFFF)
        number = (number & np.uint64(low)) | (number & high) >> np.uint64(bits)
    return number


def _bits(words: NDArray[uint64]) -> NDArray[uint64]:
    """Return the bits of the varint at the beginning of each word, but the highest, which is 0; all if it goes on."""
    last: NDArray[uint64] = ~words & _CONTINUED
    below: NDArray[uint64] = (last & -last) - np.uint64(1)
    return below
