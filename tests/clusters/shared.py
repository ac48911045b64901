# SPDX-License-Identifier: Apache-2.0
"""One real cluster for all processes of a test run.

The first process that asks starts a keeper process, which owns the servers. Each user holds a shared lock on the file
`users`, and the system releases the lock when the user ends in whatever way. The keeper waits for the exclusive lock:
then no user is left, and the keeper stops the servers.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast, get_args

from tests.clusters.real import RealCluster
from tests.real.jars import Framing, Release

_ROOT = Path(__file__).parents[2]


@contextmanager
def shared_real_cluster(folder: Path, release: Release, framing: Framing, brokers: int) -> Iterator[RealCluster]:
    """Yield the cluster of all processes that name the same `folder`; its servers cannot be stopped.

    Raises:
        MissingTool: Java or Maven is missing.
    """
    folder.mkdir(exist_ok=True)
    with open(folder / "users", "a") as users, open(folder / "start", "a") as start:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_EX)
        if not _outcome(folder).exists():
            _start_keeper(folder, release, framing, brokers)
        fcntl.flock(start, fcntl.LOCK_UN)
        outcome = pickle.loads(_outcome(folder).read_bytes())
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome


def _start_keeper(folder: Path, release: Release, framing: Framing, brokers: int) -> None:
    """Return when the cluster is ready, or has failed to start."""
    with open(folder / "keeper.log", "ab") as log:
        command = [sys.executable, "-m", __name__, str(folder), release, framing, str(brokers)]
        subprocess.run(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)


def _keep(folder: Path, release: Release, framing: Framing, brokers: int) -> None:
    """Fork the keeper; return in the first process when the keeper has written how the start ended."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # returns at the end of the pipe
        return
    os.setsid()
    outcome = _outcome(folder)
    try:
        with RealCluster(brokers=brokers, release=release, framing=framing) as cluster:
            _write(outcome, cluster)
            os.close(writing)
            with open(folder / "users", "a") as users:
                fcntl.flock(users, fcntl.LOCK_EX)
                outcome.unlink()
    except Exception as error:
        _write(outcome, error)


def _outcome(folder: Path) -> Path:
    return folder / "outcome.pickle"


def _write(place: Path, value: object) -> None:
    unfinished = place.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.rename(place)


if __name__ == "__main__":
    assert sys.argv[2] in get_args(Release)
    assert sys.argv[3] in get_args(Framing)
    _keep(Path(sys.argv[1]), cast(Release, sys.argv[2]), cast(Framing, sys.argv[3]), int(sys.argv[4]))
