# SPDX-License-Identifier: Apache-2.0
"""Java processes that never outlive the Python process that started them."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

_GUARD = Path(__file__).with_name("guard.py")
_PORTS = range(20000, 32000)  # below those of outgoing connections, which could take the port of a stopped server
_TAIL = 3000


class Processes:
    """Starts named processes; a guard process kills them if this one dies.

    The kernel's parent-death signal is not an alternative: it also comes when the *thread* that started the process
    ends, and needs code between fork and exec, which Python discourages in a program with threads.
    """

    def __init__(self, folder: Path, *, remove: bool) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *([str(folder)] if remove else [])],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(self, name: str, command: list[str]) -> None:
        """Run ``command`` in the cluster's folder and append its output to ``<name>.log`` there."""
        if self.is_running(name):
            raise RuntimeError(f"{name} is running already")
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal must reach the parent only
            )
        self._notify_guard(f"+{process.pid}")
        if name in self._running:
            self._notify_guard(f"-{self._running[name].pid}")  # the old one has ended by itself
        self._running[name] = process

    def is_running(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def send(self, name: str, number: signal.Signals) -> None:
        self._known(name).send_signal(number)

    def end(self, name: str, number: signal.Signals, timeout: float = 60.0) -> None:
        """Send SIGTERM or SIGKILL, also to a paused process, and wait until it has ended.

        Raises:
            TimeoutError: it still runs after ``timeout`` seconds.
        """
        process = self._known(name)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused process handles SIGTERM only after SIGCONT
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{name} did not end within {timeout:.0f} s\n{self.tail(name)}") from None
        self._notify_guard(f"-{process.pid}")
        del self._running[name]

    def close(self) -> None:
        """Kill all processes and wait until the guard has cleaned up."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
            self._notify_guard(f"-{process.pid}")
        self._running.clear()
        if self._guard.stdin and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self._guard.wait()

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the end of a process's log, for error messages."""
        text = self.log(name).read_text(errors="replace")[-_TAIL:] if self.log(name).exists() else ""
        return f"--- end of {name}.log ---\n{text}"

    def _known(self, name: str) -> subprocess.Popen[bytes]:
        if name not in self._running:
            raise RuntimeError(f"{name} is not running")
        return self._running[name]

    def _notify_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()


class Ports:
    """Reserves free ports until it is closed, for servers that start later or again."""

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def free(self) -> int:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if (bound := _bound(port)) is not None:
                self._reserved.append(bound)
                return port
        raise RuntimeError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")

    def close(self) -> None:
        while self._reserved:
            self._reserved.pop().close()


def is_listening(host: str, port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _bound(port: int) -> socket.socket | None:
    """Return a socket that holds the port without listening; None if the port is in use.

    Java's servers can bind the port nevertheless, because they set SO_REUSEADDR; probes for a free port cannot.
    """
    bound = socket.socket()
    try:
        bound.bind(("", port))  # as TubeMQ does
    except OSError:
        bound.close()
        return None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


def members(session: int) -> list[int]:
    """Return the processes of a session. Spark's Python workers stay in the session of the driver."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if len(fields) > 3 and int(fields[3]) == session and fields[0] != b"Z":
            found.append(int(folder.name))
    return found


def parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _fields(pid: int) -> list[bytes]:
    return read(pid, "stat").rpartition(b") ")[2].split()


def read(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
