# SPDX-License-Identifier: Apache-2.0
"""Value format of the sink: how a row becomes the body of a message. `sink/value_formats.py` has the table of all."""

from __future__ import annotations

from dataclasses import dataclass

from tubemq_spark.compression import MAX_PLAIN, check_available, compress, max_plain
from tubemq_spark.protocol.message import COMPRESSION_KEY
from tubemq_spark.sink.schema import BadRowError, Cells


@dataclass(frozen=True)
class ValueFormat:
    """The format `raw`: the row's value is the body. Other formats override the methods.

    `compression` is that of the whole body. Raise `ConfigError` if pyarrow lacks the codec, which is not a fault of a
    row.
    """

    compression: str = "none"

    def __post_init__(self) -> None:
        if self.compression != "none":
            check_available(self.compression)

    @property
    def replaced_attributes(self) -> frozenset[str]:
        """The attributes by which readers open a body. A row that was read may still have those of another one."""
        return frozenset()

    def body(self, value: bytes, cells: Cells) -> bytes:
        """Return the body before its compression; raise `BadRowError` for a row that no message can hold."""
        return value

    def attributes(self, value: bytes, cells: Cells) -> bytes:
        """Return the attributes that readers need to open the body, behind a comma, or nothing."""
        return b""

    def msg_type(self, cells: Cells) -> tuple[str, str | None]:
        """Return the type of a message whose row has none, behind the name of the column that it comes from."""
        return "msg_type", None

    @property
    def compression_attribute(self) -> bytes:
        """The attribute that names the compression, empty without one."""
        return b"" if self.compression == "none" else f"{COMPRESSION_KEY}={self.compression}".encode()

    def encode(self, value: bytes, cells: Cells) -> bytes:
        """Return the body of a message with one row; raise as `body`."""
        body = self.body(value, cells)
        if len(body) > MAX_PLAIN:  # no reader decompresses a longer one
            raise BadRowError("value", f"it has {len(body)} bytes, but at most {MAX_PLAIN >> 20} MiB fit; split it")
        return self.compressed(body)

    def compressed(self, body: bytes) -> bytes:
        return body if self.compression == "none" else compress(self.compression, body)

    def max_uncompressed(self, limit: int) -> int:
        """Return how many bytes become at most `limit` bytes of a compressed body."""
        return max_plain(self.compression, limit)
