# SPDX-License-Identifier: Apache-2.0
"""A process without threads and connections, from which the processes of queries are forked.

Children are asked over a socket. One that is killed is seen by the end of its socket. All end when their maker does.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType

from tests.sink_histories import hooks, jobs
from tests.sink_histories.hooks import PeerCrash
from tests.sink_histories.jobs import Begin, Done, Job


class Zygote:
    """The process from which others are forked; best used as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = str(Path(self._folder.name) / "zygote")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the zygote did not start"

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def child(self, begin: Begin) -> Child:
        return Child(Client(self._path, family="AF_UNIX"), begin)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60.0)
        self._process.stdout.close()
        self._folder.cleanup()


class Child:
    """A process that does one job at a time."""

    def __init__(self, connection: Connection, begin: Begin) -> None:
        self.connection = connection
        self._handle = os.pidfd_open(connection.recv())  # the number may be another's by the time it is killed
        self._done: Done | None = None
        self._has_ended = False  # the job, or the process
        connection.send(begin)
        connection.recv()

    def start(self, job: Job) -> None:
        self._has_ended = False
        with suppress(OSError):  # it died meanwhile, which `outcome` tells
            self.connection.send(job)

    def receive(self) -> PeerCrash | None:
        """Wait for the next message. Return a server that shall crash, or None if the job or the process has ended."""
        self._done = None
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            message = None
        if isinstance(message, PeerCrash):
            return message
        assert message is None or isinstance(message, Done)
        self._done, self._has_ended = message, True
        return None

    def go_on(self) -> None:
        """Tell the process that the server has crashed."""
        with suppress(OSError):
            self.connection.send(None)

    def outcome(self) -> Done | None:
        """Return the result of the job that has ended, None if the process died."""
        assert self._has_ended
        return self._done

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.connection.close()
        os.close(self._handle)


def main(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    for name in ("pandas", "pyarrow.acero", "pyarrow.fs", "encodings.idna"):  # what each child would import anew
        importlib.import_module(name)
    jobs.quiet()
    with suppress(FileNotFoundError), Listener(path, family="AF_UNIX") as listener:  # it may be cleared away before
        sockets = [sys.stdin.fileno(), listener._listener._socket.fileno()]  # type: ignore[attr-defined]
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select(sockets, [], [])
            if sockets[0] in ready:
                return
            connection = listener.accept()
            if os.fork() == 0:
                try:
                    serve(connection)
                finally:
                    os._exit(0)
            connection.close()


def serve(connection: Connection) -> None:
    hooks.install(connection)
    connection.send(os.getpid())
    with suppress(EOFError, OSError):
        while True:
            connection.send(jobs.do(connection.recv()))


if __name__ == "__main__":
    main(sys.argv[1])
