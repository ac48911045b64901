# SPDX-License-Identifier: Apache-2.0
"""A process with a terminal of its own that runs commands of `tubemq-spark`, one after the other.

One process runs the commands of many tests, because its imports take longer than most commands.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_PATIENCE = 120.0  # seconds
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CHILD = """\
import json, os, signal, sys, fcntl, termios
screen = os.dup(1)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tubemq_spark.cli.main import main
orders, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
for line in orders:
    arguments, variables, output = json.loads(line)
    if output:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
    os.environ.update(variables)
    for number in (signal.SIGINT, signal.SIGTERM):  # `broker` leaves them ignored
        signal.signal(number, signal.default_int_handler)
    status = main(arguments)
    sys.stdout.flush()
    os.dup2(screen, 1)
    print(status, file=replies, flush=True)
"""


class Output(NamedTuple):
    status: int
    text: str
    """What the terminal showed, without escape sequences."""
    raw: str


class Terminal:
    """`run` runs a command to its end; `begin` starts one that the test ends, for example with `interrupt`."""

    def __init__(self, screen: int, orders: int, replies: int) -> None:
        self._screen = screen
        self._orders = orders
        self._replies = replies

    def run(
        self,
        *arguments: str,
        typed: str = "",
        variables: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> Output:
        """Return what the command printed to the terminal. `typed` is what the user types at once, `output` a file for
        the standard output."""
        self.begin(*arguments, variables=variables, output=output)
        self.type(typed)
        return self.finish()

    def begin(self, *arguments: str, variables: Mapping[str, str] | None = None, output: Path | None = None) -> None:
        self._shown = b""
        order = arguments, dict(variables or {}), str(output or "")
        os.write(self._orders, (json.dumps(order) + "\n").encode())

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> Output:
        """Type Ctrl-C, and return what the command printed."""
        self.type("\x03")
        return self.finish()

    def wait_for(self, is_shown: Callable[[str], bool]) -> None:
        """Wait until the text that the command has printed so far passes `is_shown`."""
        deadline = time.monotonic() + _PATIENCE
        while not is_shown(_plain(self._shown)):
            assert time.monotonic() < deadline, f"it never showed that, but {_plain(self._shown)!r}"
            assert self._read() is None, f"it has ended: {_plain(self._shown)!r}"

    def finish(self) -> Output:
        deadline = time.monotonic() + _PATIENCE
        while (status := self._read()) is None:
            assert time.monotonic() < deadline, f"it does not end: {_plain(self._shown)!r}"
        return Output(status, _plain(self._shown), self._shown.decode("utf-8", "replace"))

    def _read(self) -> int | None:
        """Read what was printed. Return the status if the command has ended."""
        ready, _, _ = select.select([self._screen, self._replies], [], [], 1.0)
        if self._screen in ready:
            self._shown += os.read(self._screen, 65_536)
            return None
        if self._replies in ready:
            reply = os.read(self._replies, 100)
            assert reply, f"the process has ended: {_plain(self._shown)!r}"
            return int(reply)
        return None


def _plain(shown: bytes) -> str:
    return _ESCAPES.sub("", shown.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def open_terminal(width: int = 150, height: int = 50) -> Iterator[Terminal]:
    """Yield a terminal whose process ends with the block."""
    screen, inside = pty.openpty()
    os.set_inheritable(inside, True)
    orders, write_orders = os.pipe()
    read_replies, replies = os.pipe()
    environment = {**os.environ, "COLUMNS": str(width), "LINES": str(height), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _CHILD, str(orders), str(replies)],
        stdin=inside, stdout=inside, stderr=inside, pass_fds=(orders, replies), env=environment,
        start_new_session=True,
    )  # fmt: skip
    for opened in (inside, orders, replies):
        os.close(opened)
    try:
        yield Terminal(screen, write_orders, read_replies)
    finally:
        os.close(write_orders)
        process.kill()
        process.wait()
        os.close(screen)
        os.close(read_replies)
