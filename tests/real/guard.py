# SPDX-License-Identifier: Apache-2.0
"""A script that kills the servers of a dead parent and removes its folder; one runs beside each cluster.

Each line on standard input is ``+PID`` for a started process or ``-PID`` for one that has ended. The input ends when
the parent closes it or dies in any way. Then the script kills the remaining processes and removes the folder.
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
    """Retry for a while, because a killed process may still write for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
