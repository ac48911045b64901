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
    for folder in sys.argv[1:]:
        _remove(folder)


def _remove(folder: str) -> None:
    """Try for a while, because a killed process may still write for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
