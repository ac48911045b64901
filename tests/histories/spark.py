# SPDX-License-Identifier: Apache-2.0
"""A streaming query in Spark, in processes that tests kill: the driver or one worker. Its logs and its sink are files,
which also show the points of a micro-batch."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.histories.calls import KilledError, StoppedError, WorkerKilledError
from tests.histories.ledger import BrokenError, Output, Row, same_rows
from tests.histories.script import COMMITTED, READ, WRITTEN
from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED
from tubemq_spark import errors
from tubemq_spark.errors import DataLossError, PartitionOccupiedError, ServerError, TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import StreamOffset

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds without a micro-batch
LONGEST_TRY = 300.0  # seconds that one attempt of a micro-batch may take

_ERROR = re.compile(r"tubemq_spark\.errors\.(\w+): (.*)")
_RANGE = re.compile(r"\[(\d+), (\d+)\)")
_PARTITION = re.compile(r"\b(\d+):(\w+):(\d+)\b")


class Driver:
    """A process with Spark, and the processes that it starts. Many histories share one until it is killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._output_file = tempfile.NamedTemporaryFile("r", suffix=".txt", errors="replace")  # noqa: SIM115

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise BrokenError(f"Spark's driver ended unexpectedly: {self.new_output()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise _error_in(answer["failed"])
        return answer

    def new_output(self) -> str:
        """Return what the processes wrote to standard error since the last call."""
        return self._output_file.read()

    def kill(self) -> None:
        """Send SIGKILL to all processes."""
        process, self._process = self._process, None
        if process is None:
            return
        while pids := members(process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.01)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError, AttributeError):
                pipe.close()  # type: ignore[union-attr]

    def close(self) -> None:
        self.kill()
        self._output_file.close()

    def workers(self) -> list[int]:
        """Return the ids of the Python processes that run tasks."""
        if self._process is None:
            return []
        pids = members(self._process.pid)
        daemons = {pid for pid in pids if b"pyspark.worker" in _read(pid, "cmdline")}
        return sorted(pid for pid in daemons if _parent(pid) in daemons)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            errors_to: IO[str] = open(self._output_file.name, "a")  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.histories.spark_program"],
                cwd=Path.cwd() if (Path.cwd() / "tests" / "histories").exists() else ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_to,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
            errors_to.close()
        return self._process


class SparkQuery:
    """The interface of `calls.Query` with Spark. `is_behind` returns True if there are messages to read."""

    def __init__(self, driver: Driver, options: dict[str, str], folder: Path, is_behind: Callable[[], bool]) -> None:
        self.options = options
        self.point: Callable[[str], None] = lambda point: None
        self.begins: Callable[[Partition], None] = lambda partition: None
        self._driver = driver
        self._is_behind = is_behind
        self._output = folder / "output"
        self._checkpoint = folder / "checkpoint"
        self.lost_at: Sequence[float] = ()
        self.is_prompt = False
        self.clock = 0.0  # no event changes it
        self.end_fetch_later: Callable[[int, int, int], None] = lambda stage, attempt, late: None
        self._begun: set[Partition] = set()
        self._most_committed = 0
        self.running = False

    def run_another_task(self) -> bool:
        return False  # Spark's tasks wait in processes of their own

    # -- what survives a run ----------------------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        return len(self._numbers("commits"))

    @property
    def pending(self) -> bool:
        return len(self._numbers("offsets")) > self.batches

    @property
    def logged(self) -> dict[Partition, int]:
        numbers = self._numbers("offsets")
        return dict(self._offset(numbers[-1]).positions) if numbers else {}

    @property
    def ends(self) -> dict[Partition, int]:
        numbers = self._numbers("commits")
        return dict(self._offset(numbers[-1]).positions) if numbers else {}

    @property
    def starts(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for number in self._numbers("offsets"):
            offset = self._offset(number)
            for partition, position in {**offset.positions, **(offset.initial or {})}.items():
                found.setdefault(partition, position)
        return found

    @property
    def rows(self) -> Output:
        """The rows of committed micro-batches. All attempts of one must be equal."""
        found: dict[Partition, list[Row]] = defaultdict(list)
        for number in self._numbers("commits"):
            tries = sorted(self._output.glob(f"{number}.*.json"), key=lambda file: int(file.name.split(".")[1]))
            if not tries:
                raise BrokenError(f"batch {number} is committed, but the sink has no rows")
            outputs = [_output_of(file) for file in tries]
            for (earlier, one), (later, other) in itertools.pairwise(outputs):
                lost = any(earlier - LONGEST_TRY <= moment <= later for moment in self.lost_at)
                if not lost and not same_rows(one, other):
                    raise BrokenError(f"batch {number} was repeated with different rows: {one} and {other}")
            for partition, rows in outputs[-1][1].items():
                found[partition] += rows
        return found

    def forget_commit(self) -> bool:
        if self.running or self.pending or not self.batches:
            return False
        self._most_committed = max(self._most_committed, self.batches)
        self._drop("commits", self._numbers("commits")[-1])
        return True

    def forget_offset(self) -> bool:
        numbers = self._numbers("offsets")
        if self.running or not self.pending or self._most_committed == len(numbers):
            return False
        self._drop("offsets", numbers[-1])
        for file in self._output.glob(f"{numbers[-1]}.*.json"):
            file.unlink()
        return True

    # -- runs -------------------------------------------------------------------------------------------------------

    def start(self, available_now: bool = False) -> None:
        self.running = True
        given = {"options": self.options, "output": str(self._output), "checkpoint": str(self._checkpoint)}
        try:
            self._driver.ask("start", **given, available_now=available_now)
        except BaseException:
            self.running = False
            raise

    def stop(self) -> None:
        if self.running:
            self.running = False
            self._driver.ask("stop")

    def kill(self) -> None:
        self.running = False
        self._driver.kill()

    def step(self) -> bool:
        """Wait until one more micro-batch is committed. Return False if there are no messages. An exception ends the
        run; if a worker dies, Spark itself repeats the task."""
        before = self.batches
        deadline = time.monotonic() + PATIENCE
        try:
            while self.batches == before:
                self._read_state()
                status = self._driver.ask("status")
                if not status["active"] and self.batches == before:
                    self.running = False
                    if status["error"] is not None:
                        raise _error_in(status["error"])
                    return False
                if before and not self.pending and not self._is_behind():
                    return False
                if time.monotonic() > deadline:
                    raise BrokenError(f"no micro-batch within {PATIENCE:g} s")
                time.sleep(0.03)
            self._most_committed = max(self._most_committed, self.batches)
            self._reached(COMMITTED)
        except KilledError:
            self.kill()
            raise
        except StoppedError:
            self.stop()
            raise
        return True

    def _read_state(self) -> None:
        """Report the point of the micro-batch that the files show."""
        numbers = self._numbers("offsets")
        if self.pending:
            for partition in self.starts.keys() - self._begun:
                self._begun.add(partition)
                self.begins(partition)
            if list(self._output.glob(f"{numbers[-1]}.*.json")):
                self._reached(WRITTEN)
            else:
                for point in (FOUND, LOGGED, PLANNED, GIVEN, READ):
                    self._reached(point)

    def _reached(self, point: str) -> None:
        try:
            self.point(point)
        except WorkerKilledError:
            for pid in self._driver.workers()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _numbers(self, log: str) -> list[int]:
        return sorted(int(file.name) for file in (self._checkpoint / log).glob("[0-9]*"))

    def _offset(self, number: int) -> StreamOffset:
        text = (self._checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]
        return StreamOffset.from_json(text)

    def _drop(self, log: str, number: int) -> None:
        for name in (str(number), f".{number}.crc"):
            (self._checkpoint / log / name).unlink()


def members(session: int) -> list[int]:
    """Return the processes of a session. Spark's Python workers stay in the session of the driver."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        _, _, tail = _read(int(folder.name), "stat").rpartition(b") ")
        fields = tail.split()
        if len(fields) > 3 and int(fields[3]) == session and fields[0] != b"Z":
            found.append(int(folder.name))
    return found


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _output_of(file: Path) -> tuple[float, Output]:
    data = json.loads(file.read_text())
    found: dict[Partition, list[Row]] = defaultdict(list)
    for topic, broker_id, number, offset, message_id, value, msg_type in data["rows"]:
        found[Partition(broker_id, topic, number)].append(Row(offset, message_id, value.encode(), msg_type))
    return data["begun"], found


def _error_in(text: str) -> Exception:
    """Return the connector's error that Spark's error text contains."""
    found = list(_ERROR.finditer(text))
    if not found:
        dead = ("Python worker exited unexpectedly", "Connection reset", "Python worker failed to connect back")
        if any(words in text for words in dead):  # the last one: it did not connect within 10 s
            return WorkerKilledError(text)
        return BrokenError(f"Spark failed: {text}")
    kind, message = found[-1].groups()
    if kind == "DataLossError" and (partition := _PARTITION.search(message)) is not None:
        broker_id, topic, number = partition.groups()
        first, end = map(int, _RANGE.findall(message)[-1])
        return DataLossError(
            message, topic=topic, broker_id=int(broker_id), partition=int(number), asked=first, offered=end
        )
    cls: type[TubeMQError] = getattr(errors, kind)
    if issubclass(cls, PartitionOccupiedError):
        return cls(message, holder="")
    if issubclass(cls, ServerError):
        return cls(message, code=0, name="", message=message)
    return cls(message)
