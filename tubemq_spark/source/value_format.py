# SPDX-License-Identifier: Apache-2.0
"""Value formats of the source: how the bodies of messages become columns. `FORMATS` has all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from tubemq_spark.source.message_opener import Opened
from tubemq_spark.source.row_format import RowFormat

Columns = Mapping[str, pa.Array]
IsKept = Callable[[int, str], bool]
"""Gets the message id of a corrupt body and the reason. Returns whether the body itself becomes a row, or raises."""


@dataclass(frozen=True)
class ValueFormat:
    """The format `raw`: the body is the row's value. Other formats override `rows`, and set `opens_bodies`."""

    form: RowFormat

    opens_bodies: ClassVar[bool] = False
    """Whether rows need the bodies and the attributes of messages, whatever columns they have."""

    def rows(self, opened: Opened, columns: Columns, names: Sequence[str], is_kept: IsKept) -> Iterator[Columns]:
        """Yield the columns `names` of the rows in batches, which may be empty. `columns` are those of the messages."""
        yield columns


def _inlong(form: RowFormat) -> ValueFormat:
    from tubemq_spark.source.inlong.pack_rows import PackFormat  # takes a while, and only packs need it

    return PackFormat(form)


FORMATS: Mapping[str, Callable[[RowFormat], ValueFormat]] = {
    "raw": ValueFormat,
    "inlongmsg": _inlong,
    "inlong": _inlong,
}
"""By the values of option `messageFormat`."""
