"""Ctrl-C during calls to Spark's JVM."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupt:
    """Postpones the first Ctrl-C in the `with` block until `check` is called or the block ends.

    A `KeyboardInterrupt` within a call would break the connection to the JVM. A second Ctrl-C raises it at once.
    """

    def __init__(self) -> None:
        self._interrupted = False
        self._old_handler = signal.getsignal(signal.SIGINT)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` after a Ctrl-C."""
        if self._interrupted:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> Interrupt:
        self._old_handler = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._old_handler)
        self.check()
