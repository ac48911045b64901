"""Ctrl-C while another program is talked to."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupt:
    """Notes Ctrl-C in the `with` block, and raises it where `check` is called or at the end of the block.

    Raised within a call to Spark it would break the talk with it. A second one is raised at once all the same.
    """

    def __init__(self) -> None:
        self._noted = False
        self._before = signal.getsignal(signal.SIGINT)

    def check(self) -> None:
        """`KeyboardInterrupt` when there was one."""
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        self.check()
