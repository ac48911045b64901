# SPDX-License-Identifier: Apache-2.0
"""The thread of an embedded cluster: its event loop, and timers that run on the cluster's clock."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import ClassVar, TypeVar

from tubemq_spark.testing.clock import Clock

T = TypeVar("T")


class EventLoopThread:
    """The only thread that reads and changes the servers' state, and the timers that run on their clock."""

    running: ClassVar[weakref.WeakSet[EventLoopThread]] = weakref.WeakSet()

    def __init__(self, clock: Clock) -> None:
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # all that the servers have opened
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded-tubemq", daemon=True)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._lock = threading.Lock()  # guards `_closed`: after the end of the loop no function runs
        self._thread.start()
        self.running.add(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread and return its result; may be called on the thread itself.

        Raises `RuntimeError` when the thread has ended.
        """
        if threading.current_thread() is self._thread:
            return function()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # the caller receives it
                done.set_exception(error)

        with self._lock:
            if self._closed:
                raise RuntimeError("this EmbeddedTubeMQ is closed")
            self._loop.call_soon_threadsafe(run)
        return done.result()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` when `seconds` have passed on the clock."""
        heapq.heappush(self._timers, (self._clock.now() + seconds, next(self._numbers), function))
        self._loop.call_later(seconds, self.run_timers)

    def run_timers(self) -> None:
        """Run the timers that are due; called when the clock was advanced."""
        while self._timers and self._timers[0][0] <= self._clock.now():
            heapq.heappop(self._timers)[2]()

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` on the thread and end the thread; a second call does nothing.

        Raises `RuntimeError` when called on the thread itself, which then continues.
        """
        if threading.current_thread() is self._thread and not self._closed:
            raise RuntimeError(
                "a function that runs within a call of an EmbeddedTubeMQ cannot close it: close it outside"
            )
        with self._lock:
            if self._closed:
                return
            self._closed = True

        async def settle() -> None:
            last()
            # Let accepted connections finish their set-up; they find their listener closed.
            for _ in range(3):
                await asyncio.sleep(0)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        try:
            asyncio.run_coroutine_threadsafe(settle(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._close_sockets()

    def forget(self) -> None:
        """Close the sockets in a forked child, where the thread does not run.

        The loop stays as it is, because it shares its poll object with the parent's.
        """
        self._closed = True
        self._lock = threading.Lock()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for opened in list(self.sockets):
            opened.close()


def _forget_all() -> None:
    for thread in list(EventLoopThread.running):
        thread.forget()


if hasattr(os, "register_at_fork"):
    # A forked child must not keep its parent's ports and connections open.
    os.register_at_fork(after_in_child=_forget_all)
