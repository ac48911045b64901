# SPDX-License-Identifier: Apache-2.0
"""A local Spark for the commands `demo` and `redrive`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tubemq_spark.errors import ConfigError, TubeMQError

_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # halves the start time
START_TIMEOUT = 120.0  # seconds; usual are 5 to 20
TOO_LATE = (
    "Spark waits 10 s for its Python processes, and this machine is too busy to start one so soon. The installation is "
    "right; try again when the machine is less busy"
)


@contextmanager
def local_session(folder: Path, name: str = "tubemq-spark demo") -> Iterator[SparkSession]:
    """Yield a session with its files in `folder`, and its output in the file `spark.log` there. Raise `TubeMQError` if
    it does not start."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages of this interpreter
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with _standard_error_to(folder / "spark.log"):  # Spark's processes inherit it
        with spark_errors("Spark did not start"):
            session = _start(builder)
        try:
            yield session
        finally:
            with suppress(Py4JError, OSError):  # the JVM may have ended: a signal goes to all processes of a command
                session.stop()


def _start(builder: SparkSession.Builder) -> SparkSession:
    """Start Spark, not in the main thread, where PySpark would install its own Ctrl-C handler."""
    started: Future[SparkSession] = Future()

    def start() -> None:
        try:
            started.set_result(builder.getOrCreate())
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=start, daemon=True).start()  # PySpark waits without end for a JVM that cannot write a file
    try:
        return started.result(START_TIMEOUT)
    except FutureTimeoutError:
        raise TubeMQError(
            f"Spark did not start within {START_TIMEOUT:g} s. Check that the folder for temporary files, "
            f"{tempfile.gettempdir()}, has room (TMPDIR names another one)"
        ) from None


@contextmanager
def spark_errors(what: str = "Spark failed") -> Iterator[None]:
    """Turn errors of Spark into `TubeMQError`, and a `ConfigError`, also of a class below it, that the connector raised
    within Spark into one."""
    try:
        yield
    except (PySparkException, Py4JError) as cause:
        if own := re.findall(r"^tubemq_spark(?:\.\w+)*\.(\w+): (.+)$", str(cause), re.MULTILINE):
            name, text = own[-1]
            raise (ConfigError if name in _names_below(ConfigError) else TubeMQError)(text) from None
        if "failed to connect back" in str(cause):
            raise TubeMQError(f"{what}: {TOO_LATE}") from None
        raise TubeMQError(f"{what}: {_first_line(cause)}") from None


def _names_below(kind: type[TubeMQError]) -> set[str]:
    """Return the names of `kind` and of the classes below it."""
    return {kind.__name__}.union(*map(_names_below, kind.__subclasses__()))


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _first_line(cause: Exception) -> str:
    """Return the line that names the cause; py4j's own first line names a call only."""
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[1] if isinstance(cause, Py4JJavaError) and len(lines) > 1 else lines[0]
