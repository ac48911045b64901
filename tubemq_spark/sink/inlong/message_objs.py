# SPDX-License-Identifier: Apache-2.0
"""Packs in the protobuf of DataProxy: a `MessageObjs` of proto/ProxySdk.proto. The attributes of the message say so.

All but the body is the same in the messages of a group. `source/inlong/message_objs.py` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import chain

from tubemq_spark.client import system
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.pb.ProxySdk_pb2 import MapFieldEntry, MessageObj, MessageObjs
from tubemq_spark.protocol.varint import varint
from tubemq_spark.sink.inlong.pack_format import (
    OF_MESSAGES,
    SET_BY_COLUMNS,
    SOME_TIME,
    PackFormat,
    PackGroup,
    fitting,
    ids,
    now,
    own_texts,
    with_times,
)
from tubemq_spark.sink.options import PACK_CODECS
from tubemq_spark.sink.schema import Cells

_MSGS_TAG, _BODY_TAG = (
    bytes([number << 3 | 2]) for number in (MessageObjs.MSGS_FIELD_NUMBER, MessageObj.BODY_FIELD_NUMBER)
)
_SET_BY_COLUMNS = SET_BY_COLUMNS | {"inlongGroupId", "inlongStreamId", "msgTime"}
_AROUND_MESSAGE = 12  # bytes at most: tags and sizes
_SEPARATORS = "&=,"  # the names are attributes of the message, too


class MessageObjsFormat(PackFormat):
    """Each row has its attributes."""

    def pack(self, groups: Sequence[PackGroup]) -> bytes:
        messages = (self._messages(group, time) for group, time in with_times(groups))
        return self.compressed_inside(b"".join(chain.from_iterable(messages)))

    def group_text(self, cells: Cells) -> bytes:
        return b"".join(self._around_body(cells, SOME_TIME if cells.inlong_time is None else cells.inlong_time))

    def sizes_around(self, group_text: bytes) -> tuple[int, int]:
        return 0, _AROUND_MESSAGE + len(group_text)

    def pack_attributes(self, groups: Sequence[PackGroup]) -> bytes:
        """Return them as DataProxy sets them."""
        sizes = [len(value) for group in groups for value in group.values]
        group, stream = ids(groups[0].cells, _SEPARATORS)
        compress_type = PACK_CODECS.index(self.inside)
        texts = map(str, (1, 1, group, stream, self._host, now(), len(sizes), sum(sizes), compress_type))
        return b"," + encode_attributes(dict(zip(OF_MESSAGES, texts, strict=True)), None, None)

    @cached_property
    def _host(self) -> str:
        return system.host_address()

    def _messages(self, group: PackGroup, time: int) -> list[bytes]:
        before, behind = self._around_body(group.cells, time)

        @cache
        def head(size: int) -> bytes:
            body = _BODY_TAG + varint(size)
            return _MSGS_TAG + varint(len(before) + len(body) + size + len(behind)) + before + body

        return [part for value in group.values for part in (head(len(value)), value, behind)]

    def _around_body(self, cells: Cells, time: int) -> tuple[bytes, bytes]:
        """Return what precedes the body in a `MessageObj`, and what follows it."""
        group, stream = ids(cells, _SEPARATORS)
        params = {
            "inlongGroupId": group,
            "inlongStreamId": stream,
            "msgTime": str(time),
            "sourceIp": self._host,
            "sourceTime": str(time),
            **own_texts(cells, _SET_BY_COLUMNS),
        }
        before = MessageObj(msgTime=time, sourceIp=params["sourceIp"].encode()).SerializePartialToString()
        entries = [MapFieldEntry(key=key.encode(), value=text.encode()) for key, text in params.items()]
        return before, fitting(MessageObj(params=entries).SerializePartialToString())
