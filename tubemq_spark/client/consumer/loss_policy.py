# SPDX-License-Identifier: Apache-2.0
"""Data loss policy: fail the query, or log a warning and continue, as option `failOnDataLoss` says."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE

_log = logging.getLogger(__name__)

STREAM_ADVICE = (
    "Set option 'failOnDataLoss' to false to go on without them, or start a new query with another checkpoint and "
    "option 'startingOffsets'. If option 'tubemq.master' names another cluster than before, the checkpoint's positions "
    "are wrong there: use a new checkpoint"
)
BATCH_ADVICE = (
    "Read from the earliest position, with a new load(), because a DataFrame or a view keeps the positions of its "
    "first action, also where a stream is joined with it (read it in foreachBatch then); or set option "
    "'failOnDataLoss' to false to read what is left"
)


@dataclass(frozen=True)
class LossPolicy:
    """Plain values that travel to executors. `advice` ends the text of an error."""

    fail: bool = True
    advice: str = ""

    def report(self, loss: DataLossError, range_end: int | None = None) -> None:
        """Raise `loss` with the advice, or log it as a warning and return, so that the caller goes on. What is lost
        behind `range_end` is counted by the reader of that range."""
        if self.fail:
            raise self.error(loss) from None
        _log.warning("[data-loss] %s; reading goes on without them, because option 'failOnDataLoss' is false", loss)
        COUNTERS().add(Count.LOSSES)
        if loss.offered >= 0:  # else the whole partition is gone
            until = loss.offered if range_end is None else min(loss.offered, range_end)
            entries = abs(until - loss.asked) // INDEX_MSG_UNIT_SIZE
            COUNTERS().add(Count.LOST_ENTRIES, entries)

    def error(self, loss: DataLossError) -> DataLossError:
        return loss.advising(self.advice) if self.advice else loss


FAIL = LossPolicy()
