# SPDX-License-Identifier: Apache-2.0
"""Tells a task of the sink that Spark has given it up, so that it sends nothing more.

If what comes before the sink fails in a task, Spark attempts the task again. It ends the input of the sink's Python
process like one that is complete: pyspark's reader does not see the difference (Arrow: a stream may end without its
mark). A writer that takes it for complete would send all that it still has while the next attempt begins. Only the
connection shows it: a JVM that has failed, was killed, or ends a cancelled task shuts its side down. One that has sent
all rows writes a last number (`SpecialLengths.END_OF_STREAM`) and leaves it open.
"""

from __future__ import annotations

import inspect
from typing import Any

from tubemq_spark.client import system
from tubemq_spark.errors import FencedError


class TaskInput:
    """The connection by which the process of this task gets its rows from Spark, if there is one."""

    def __init__(self, task: object) -> None:
        """Errors name `task`."""
        self._task = task
        self._stream = _stream_of_worker()

    def check(self) -> None:
        """Raise `FencedError` if Spark has given up the task and the system shows it before the end of the input. To be
        called before rows are sent: it takes a few microseconds."""
        if self._stream is not None and system.is_shut_down(self._stream.fileno()):
            raise self._given_up()

    def check_end(self) -> None:
        """Raise `FencedError` if the input that has just ended is not complete."""
        self.check()
        if self._stream is not None and not self._stream.peek(1):
            raise self._given_up()

    def _given_up(self) -> FencedError:
        return FencedError(
            f"{self._task}: Spark has ended this attempt before all its rows came, so it sends no more of them. "
            "Another error of the task says why, or the query was stopped, or its executor ended",
            holder="",
        )


def _stream_of_worker() -> Any:
    """Return the stream that Spark's worker reads, None elsewhere.

    pyspark hands a writer only an iterator of rows. `main` of `pyspark.worker` has the stream in all releases.
    """
    frame = inspect.currentframe()
    while frame is not None:
        stream = frame.f_locals.get("infile")
        if hasattr(stream, "peek") and hasattr(stream, "fileno"):
            return stream
        frame = frame.f_back
    return None
