"""Ends the servers of a parent that died, and removes its folder. Run as a script, one beside each cluster.

Each line on standard input is ``+PID``, a process was started, or ``-PID``, it has ended. The input ends when the
parent closes it or dies in whatever way: then all that is left is killed and the folder in the argument is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time


def main() -> None:
    left: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        if line[0] == "+":
            left.add(pid)
        else:
            left.discard(pid)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(map(_exists, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
