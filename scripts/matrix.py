"""`make matrix`: test one wheel on every supported Spark.

For each entry of the table below the script creates an environment with the wheel, that Spark and pytest, and runs
`tests/matrix` in it. It keeps the environments and reuses them while their requirements stay the same.

    scripts/matrix.py                        all of them
    scripts/matrix.py --only spark-4.0       one; may be given more than once
    scripts/matrix.py --quick                the tests marked `quick`, as CI does
    scripts/matrix.py -- -k limits -x        further arguments for pytest
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar


@dataclass(frozen=True)
class Environment:
    name: str
    pyspark: str
    protobuf: str  # a name without version means the newest
    pyarrow: str
    others: tuple[str, ...] = ()
    connect: bool = False
    python: tuple[int, int] = (3, 10)

    @property
    def requirements(self) -> tuple[str, ...]:
        return self.pyspark, self.protobuf, self.pyarrow, *self.others, "pytest>=8.3"


_OLD_PROTOBUF = "protobuf==4.24.1"
_PANDAS = "pandas>=2.2,<3"  # Connect needs it; Spark warns of pandas 3

# Each Spark runs once with the oldest pyarrow that it and this package allow; pyarrow before 16 needs numpy 1. Connect
# needs a newer protobuf: the oldest and the newest version that they accept.
ENVIRONMENTS = (
    Environment("spark-4.0", "pyspark==4.0.*", _OLD_PROTOBUF, "pyarrow==14.0.1", ("numpy<2",)),
    Environment("spark-4.1", "pyspark==4.1.*", "protobuf", "pyarrow==15.0.0", ("numpy<2",)),
    Environment("spark-4.2", "pyspark==4.2.*", _OLD_PROTOBUF, "pyarrow==18.0.0"),
    Environment("spark-4.3", "pyspark==4.3.*", "protobuf", "pyarrow", python=(3, 11)),
    Environment(
        "connect-4.2", "pyspark[connect]==4.2.*", "protobuf==6.33.5", "pyarrow==18.0.0", (_PANDAS,), connect=True
    ),
    Environment(
        "connect-4.3", "pyspark[connect]==4.3.*", "protobuf", "pyarrow", (_PANDAS,), connect=True, python=(3, 11)
    ),
)

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "matrix"
FOLDER = ROOT / ".cache" / "matrix"
LIMIT = 900  # seconds for the tests of one environment

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    environment: Environment
    versions: str
    result: str
    seconds: tuple[float, float]  # to install, to test
    passed: bool


class StepError(Exception):
    """A step failed; its output is already printed."""


def build_wheel() -> Path:
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(environment: Environment, wheel: Path) -> Path:
    """Install `wheel` and return the environment's interpreter."""
    folder = FOLDER / environment.name
    python = folder / "bin" / "python"
    made_of = folder / "made-of.txt"
    wanted = "\n".join((sys.version, *environment.requirements))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    # Compiling all of Spark takes longer than running the part that is used.
    quietly = ["install", "--quiet", "--no-compile"]
    if made_of.exists() and made_of.read_text() == wanted:
        run([*pip, *quietly, "--no-deps", "--force-reinstall", str(wheel)])
    else:
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(folder)])
        run([*pip, *quietly, str(wheel), *environment.requirements])
        made_of.write_text(wanted)
    run([*pip, "check"], quiet=True)
    return python


def versions(python: Path) -> str:
    names = ("pyspark", "protobuf", "pyarrow")
    code = f"from importlib.metadata import version; print(*map(version, {names}))"
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return "  ".join(f"{version:<8}" for version in found)


def test(environment: Environment, python: Path, quick: bool, arguments: Sequence[str]) -> tuple[str, bool]:
    """Run the tests; return a summary and whether they passed."""
    work = python.parents[1] / "work"
    shutil.rmtree(work, ignore_errors=True)
    # A copy, because in the work tree the tests would import its package instead of the installed one.
    tests = shutil.copytree(TESTS, work / "tests" / "matrix", ignore=shutil.ignore_patterns("__pycache__"))
    report = work / "report.xml"
    command = [str(python), "-m", "pytest", "-c", str(tests / "pytest.ini"), "--rootdir", str(work)]
    command += ["--junitxml", str(report), *(["-m", "quick"] if quick else []), *arguments, str(tests)]
    status = call(command, work, {"PYSPARK_PYTHON": str(python), "MATRIX_CONNECT": str(int(environment.connect))})
    if status is None:
        return f"not within {LIMIT} s", False
    if not report.exists():
        return f"pytest ended with {status}", False
    counts = ElementTree.parse(report).getroot()[0].attrib
    failed = int(counts["failures"]) + int(counts["errors"])
    skipped = int(counts["skipped"])
    passed = int(counts["tests"]) - failed - skipped
    told = {"passed": passed, "failed": failed, "skipped": skipped}
    return ", ".join(f"{count} {what}" for what, count in told.items() if count), status == 0


def call(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int | None:
    """Return the exit status of `command`, or None if it took too long and was killed with its children."""
    ours = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON", "PYTEST_ADDOPTS")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    process = subprocess.Popen(command, cwd=folder, env={**inherited, **variables}, start_new_session=True)
    try:
        return process.wait(LIMIT)
    except BaseException as reason:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(reason, subprocess.TimeoutExpired):
            return None
        raise


def run(command: Sequence[str], quiet: bool = False) -> None:
    done = subprocess.run(command, capture_output=quiet, text=True)
    if done.returncode:
        print(done.stdout or "", done.stderr or "", sep="", file=sys.stderr)
        raise StepError(f"failed: {' '.join(command[:6])} …")


def timed(action: Callable[[], T]) -> tuple[T, float]:
    begin = time.monotonic()
    return action(), time.monotonic() - begin


def try_out(environment: Environment, wheel: Path, quick: bool, arguments: Sequence[str]) -> Outcome:
    print(f"\n== {environment.name}: {', '.join(environment.requirements)}", flush=True)
    if sys.version_info < environment.python:
        told = "left out: needs Python {}.{} or later".format(*environment.python)
        return Outcome(environment, "", told, (0, 0), passed=os.environ.get("CI") != "true")
    try:
        python, installing = timed(lambda: install(environment, wheel))
    except StepError as problem:
        return Outcome(environment, "", str(problem), (0, 0), False)
    (result, passed), testing = timed(lambda: test(environment, python, quick, arguments))
    return Outcome(environment, versions(python), result, (installing, testing), passed)


def show(outcomes: Sequence[Outcome]) -> None:
    heads = "  ".join(f"{name:<8}" for name in ("pyspark", "protobuf", "pyarrow"))
    print(f"\n{'':<12}  {heads}  {'install':>7}  {'tests':>5}")
    for outcome in outcomes:
        installing, testing = outcome.seconds
        mark = "ok" if outcome.passed else "FAILED"
        numbers = f"{installing:>5.0f} s  {testing:>3.0f} s"
        print(f"{outcome.environment.name:<12}  {outcome.versions:<28}  {numbers}  {mark}: {outcome.result}")
    print(f"{sum(sum(outcome.seconds) for outcome in outcomes) / 60:.1f} minutes")


def main() -> int:
    names = [environment.name for environment in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description="The wheel on every Spark that it promises to run on.")
    parser.add_argument("--only", action="append", choices=names, help="this environment; may be given more than once")
    parser.add_argument("--quick", action="store_true", help="only the tests marked `quick`")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with what it started
    chosen = [environment for environment in ENVIRONMENTS if environment.name in (given.only or names)]
    wheel = build_wheel()
    outcomes = [try_out(environment, wheel, given.quick, given.pytest) for environment in chosen]
    show(outcomes)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
