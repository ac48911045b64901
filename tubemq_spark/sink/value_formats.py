# SPDX-License-Identifier: Apache-2.0
"""The value formats of the sink, by the values of option `messageFormat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tubemq_spark.sink.inlong.inlongmsg import InLongMsgFormat
from tubemq_spark.sink.inlong.message_objs import MessageObjsFormat
from tubemq_spark.sink.inlong.pack_format import PackFormat
from tubemq_spark.sink.options import PROTOBUF, SinkOptions
from tubemq_spark.sink.value_format import ValueFormat


def _packs(options: SinkOptions) -> PackFormat:
    kind = MessageObjsFormat if options.pack_format == PROTOBUF else InLongMsgFormat
    return kind(options.compression, options.pack_compression)


_FORMATS: Mapping[str, Callable[[SinkOptions], ValueFormat]] = {
    "raw": lambda options: ValueFormat(options.compression),
    "inlongmsg": _packs,
}


def format_of(options: SinkOptions) -> ValueFormat:
    """Return the format that the options choose. Raise `ConfigError` if pyarrow lacks a codec."""
    return _FORMATS[options.message_format](options)
