# SPDX-License-Identifier: Apache-2.0
"""A thread that does the same again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R", bound="Rounds")


class Rounds:
    """Calls `work` every `period` seconds until it is stopped. `problem` is set if it cannot go on."""

    def __init__(self, period: float, work: Callable[[], object]) -> None:
        self.problem: BaseException | None = None
        self._period, self._work = period, work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self: R) -> R:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._period):
                self._work()
        except BaseException as problem:
            self.problem = problem
