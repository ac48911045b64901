"""What a task reports, and what a write promises.

At least once. A task succeeds only when a broker has acknowledged each of its rows, so when Spark commits a batch all
of its rows are stored. A row may be stored more than once: when an acknowledgement was lost and the row was sent again,
and when Spark runs a task or a batch again. Nothing is taken back: rows of a task or batch that fails in the end may be
stored in part, and readers see them at once. TubeMQ has no transactions and no idempotent sends.

Acknowledged means in the broker's memory; it writes to disk a little later and keeps no second copy. A broker that
crashes in between loses what it acknowledged, as for every TubeMQ producer.

Rows of one task are dealt to the partitions of their topic in turn; there is no order among them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """How many rows a task stored in each partition, by TubeMQ's partition key (`brokerId:topic:partitionId`)."""

    rows: Mapping[str, int] = field(default_factory=dict)


def note_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """All rows are stored by now; there is nothing left to do but to say so."""
    _log.debug("%s is committed: %s", what, _summary(messages))


def note_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """What is stored stays stored."""
    _log.warning(
        "%s failed; what is stored stays, and another attempt may store it again: %s, and perhaps rows of others",
        what,
        _summary(messages),
    )


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    rows: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            rows.update(message.rows)
    return f"{rows.total()} rows in {len(rows)} partitions by tasks that finished"
