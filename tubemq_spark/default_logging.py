# SPDX-License-Identifier: Apache-2.0
"""Prints warnings if no other logging is configured, as in the Python processes that Spark starts.

Python prints such warnings to standard error without time, level and logger. Spark mixes these lines with its own, so
that nobody knows where they come from. This handler adds the three in the format of Spark's own lines. It prints
nothing if the application, or Spark, has a handler.
"""

from __future__ import annotations

import logging
import sys


class DefaultLogHandler(logging.Handler):
    """The handler of the logger `tubemq_spark`. Prints a record to standard error if no other handler gets it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_alone(record.name):
            try:
                print(self.format(record), file=sys.stderr, flush=True)
            except Exception:
                self.handleError(record)

    def is_alone(self, name: str) -> bool:
        """Return True if no other handler gets the records of logger `name`."""
        if logging.lastResort is None:  # the application turned such output off
            return False
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def install() -> None:
    """Add the handler, once in a process. The package calls this when it is imported."""
    logger = logging.getLogger("tubemq_spark")
    if not any(isinstance(handler, DefaultLogHandler) for handler in logger.handlers):
        logger.addHandler(DefaultLogHandler())
