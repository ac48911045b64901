# SPDX-License-Identifier: Apache-2.0
"""A thread of the run that does the same again and again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Rounds(ABC):
    """A thread that works every few seconds until it is stopped. `problem` is set if it cannot go on."""

    period: float  # seconds

    def __init__(self) -> None:
        self.problem: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def work(self) -> None: ...

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self.period):
                self.work()
        except BaseException as problem:
            self.problem = problem
