# SPDX-License-Identifier: Apache-2.0
"""`make matrix`: test one wheel on every supported Spark.

For each entry of the table below the script creates an environment by the README's command with the versions of the
entry, adds pytest, and runs `tests/matrix` in it. It keeps the environments and reuses them while their requirements
stay the same. Several environments are installed and tested at the same time; the output of each is printed when it
ends. The environments also cover Python 3.10 to 3.13: each runs on its own version if that is found, else on the
script's.

    python -m scripts.matrix                      all of them
    python -m scripts.matrix --only spark-4.0     one; may be given more than once
    python -m scripts.matrix --quick              the tests marked `quick`, as CI does
    python -m scripts.matrix --jobs 1             one environment at a time
    python -m scripts.matrix -- -k limits -x      further arguments for pytest
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeVar

from scripts.environments import ROOT, StepError, find_python, variables_with
from tests.spark_home import link_spark


@dataclass(frozen=True)
class Environment:
    name: str
    pyspark: str
    protobuf: str  # a name without version means the newest
    pyarrow: str
    others: tuple[str, ...] = ()
    connect: bool = False
    python: tuple[int, int] = (3, 11)  # preferred
    needs: tuple[int, int] = (3, 10)
    is_quick: bool = True  # part of `--quick`

    @property
    def requirements(self) -> tuple[str, ...]:
        return self.pyspark, self.protobuf, self.pyarrow, *self.others, "pytest>=8.3"

    @property
    def interpreter(self) -> Path | None:
        """The preferred Python, else the running one, or None if that is too old."""
        running = Path(sys.executable) if sys.version_info >= self.needs else None
        return find_python(self.python) or running


_OLD_PROTOBUF = "protobuf==4.24.1"
_PANDAS = "pandas>=2.2,<3"  # Connect needs it; Spark warns of pandas 3

# Each Spark runs once with the oldest pyarrow that it and this package allow; pyarrow before 16 needs numpy 1. One of
# them has the oldest numpy, and one nothing but what the README's command installs now. Connect needs a newer
# protobuf: the oldest and the newest version that they accept. The old protobuf stays below Python 3.12, which warns
# of it, and warnings are errors in the tests.
# The quick part: the oldest Spark, the first one with read limits, the README's command, and Connect.
ENVIRONMENTS = (
    Environment("spark-4.0", "pyspark==4.0.*", _OLD_PROTOBUF, "pyarrow==14.0.1", ("numpy==1.21.3",), python=(3, 10)),
    Environment(
        "spark-4.1",
        "pyspark==4.1.*",
        "protobuf",
        "pyarrow==15.0.0",
        ("numpy<2",),
        python=(3, 12),
        is_quick=False,
    ),
    Environment("spark-4.2", "pyspark==4.2.*", _OLD_PROTOBUF, "pyarrow==18.0.0"),
    Environment("spark-4.3", "pyspark==4.3.*", "protobuf", "pyarrow", python=(3, 13), needs=(3, 11)),
    Environment(
        "connect-4.2",
        "pyspark[connect]==4.2.*",
        "protobuf==6.33.5",
        "pyarrow==18.0.0",
        (_PANDAS,),
        connect=True,
        python=(3, 10),
        is_quick=False,
    ),
    Environment(
        "connect-4.3",
        "pyspark[pipelines]==4.3.*",
        "protobuf",
        "pyarrow",
        (_PANDAS,),
        connect=True,
        python=(3, 13),
        needs=(3, 11),
    ),
)

TESTS = ROOT / "tests" / "matrix"
FOLDER = ROOT / ".cache" / "matrix"
LIMIT = 1800  # seconds for the installation, and for the tests, of one environment
MEMORY = 3 << 30  # bytes that the tests of one environment may need

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    environment: Environment
    versions: str
    result: str
    seconds: tuple[float, float]  # to install, to test
    passed: bool


class Steps:
    """Runs programs, one at a time in each environment, and ends all of them if the script is interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], log: IO[str]) -> None:
        status = self.call(command, log)
        if status != 0:
            told = f"not within {LIMIT} s" if status is None else f"failed with status {status}"
            raise StepError(f"{told}: {' '.join(command[:6])} …")

    def call(
        self,
        command: Sequence[str],
        log: IO[str],
        folder: Path = ROOT,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> int | None:
        """Return the exit status of `command`, or None if it took too long and was killed with its children."""
        with self._lock:
            if self._stopped:
                raise StepError("stopped")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables_with(variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            return process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        finally:
            with self._lock:
                self._running.remove(process)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):  # it has ended just now
                    os.killpg(process.pid, signal.SIGKILL)


STEPS = Steps()


def build_wheel() -> Path:
    folder = FOLDER / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    STEPS.run([*pip, "--wheel-dir", str(folder), str(ROOT)], sys.stdout)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(environment: Environment, interpreter: Path, wheel: Path, log: IO[str]) -> Path:
    """Install `wheel` into an environment of `interpreter` and return the environment's own."""
    folder = FOLDER / environment.name
    python = folder / "bin" / "python"
    made_of = folder / "made-of.txt"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = "\n".join((str(interpreter), *environment.requirements, project))
    # The running pip: that of an older Python would build Spark each time instead of keeping its wheel.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    # Compiling all of Spark takes longer than running the part that is used.
    quietly = ["install", "--quiet", "--no-compile"]
    if made_of.exists() and made_of.read_text() == wanted:
        STEPS.run([*pip, *quietly, "--no-deps", "--force-reinstall", str(wheel)], log)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        STEPS.run([str(interpreter), "-m", "venv", str(folder)], log)
        readme = f"tubemq-spark[cli,spark] @ {wheel.as_uri()}"
        STEPS.run([*pip, *quietly, readme, *environment.requirements], log)
        made_of.write_text(wanted)
    STEPS.run([*pip, "check"], log)
    return python


def versions(python: Path) -> str:
    names = ("pyspark", "protobuf", "pyarrow", "numpy")
    code = f"""if True:
        import sys
        from importlib.metadata import version
        print("{{}}.{{}}".format(*sys.version_info), *map(version, {names}))"""
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return "  ".join(f"{version:<8}" for version in found)


def test(
    environment: Environment, python: Path, quick: bool, arguments: Sequence[str], log: IO[str]
) -> tuple[str, bool]:
    """Run the tests; return a summary and whether they passed."""
    work = python.parents[1] / "work"
    shutil.rmtree(work, ignore_errors=True)
    # A copy, because in the work tree the tests would import its package instead of the installed one.
    tests = shutil.copytree(TESTS, work / "tests" / "matrix", ignore=shutil.ignore_patterns("__pycache__"))
    report = work / "report.xml"
    command = [str(python), "-m", "pytest", "-c", str(tests / "pytest.ini"), "--rootdir", str(work)]
    command += ["--junitxml", str(report), *(["-m", "quick"] if quick else []), *arguments, str(tests)]
    variables = {"PYSPARK_PYTHON": str(python), "MATRIX_CONNECT": str(int(environment.connect))}
    if quick:  # all tests together use Spark as it is installed
        (installed,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
        link_spark(installed, work / "spark")
        variables["SPARK_HOME"] = str(work / "spark")
    status = STEPS.call(command, log, work, variables)
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


def timed(action: Callable[[], T]) -> tuple[T, float]:
    begin = time.monotonic()
    return action(), time.monotonic() - begin


def try_out(environment: Environment, wheel: Path, quick: bool, arguments: Sequence[str], log: IO[str]) -> Outcome:
    interpreter = environment.interpreter
    if interpreter is None:
        told = "left out: needs Python {}.{} or later".format(*environment.needs)
        return Outcome(environment, "", told, (0, 0), passed=os.environ.get("CI") != "true")
    try:
        python, installing = timed(lambda: install(environment, interpreter, wheel, log))
        (result, passed), testing = timed(lambda: test(environment, python, quick, arguments, log))
    except StepError as problem:
        return Outcome(environment, "", str(problem), (0, 0), False)
    return Outcome(environment, versions(python), result, (installing, testing), passed)


def try_all(environments: Sequence[Environment], jobs: int, quick: bool, arguments: Sequence[str]) -> list[Outcome]:
    """Try `jobs` environments at a time. Print the output of each when it has ended."""
    wheel = build_wheel()

    def begin(environment: Environment) -> tuple[Outcome, str]:
        path = FOLDER / f"{environment.name}.log"
        with open(path, "w") as log:
            outcome = try_out(environment, wheel, quick, arguments, log)
        return outcome, path.read_text(errors="replace")

    outcomes = []
    slow_first = sorted(environments, key=lambda environment: not environment.connect)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(begin, environment) for environment in slow_first]):
                outcome, output = done.result()
                print(f"\n== {outcome.environment.name}: {', '.join(outcome.environment.requirements)}\n{output}")
                print(f"== {outcome.environment.name}: {outcome.result}", flush=True)
                outcomes.append(outcome)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            STEPS.stop()
            raise
    return sorted(outcomes, key=lambda outcome: environments.index(outcome.environment))


def default_jobs() -> int:
    """Return one more than the cores, because tests also wait, or fewer if the memory is small."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min((os.cpu_count() or 1) + 1, memory // MEMORY))


def show(outcomes: Sequence[Outcome]) -> None:
    heads = "  ".join(f"{name:<8}" for name in ("python", "pyspark", "protobuf", "pyarrow", "numpy"))
    print(f"\n{'':<12}  {heads}  {'install':>7}  {'tests':>5}")
    for outcome in outcomes:
        installing, testing = outcome.seconds
        mark = "ok" if outcome.passed else "FAILED"
        numbers = f"{installing:>5.0f} s  {testing:>3.0f} s"
        print(f"{outcome.environment.name:<12}  {outcome.versions:<48}  {numbers}  {mark}: {outcome.result}")


def main() -> int:
    names = [environment.name for environment in ENVIRONMENTS]
    parser = argparse.ArgumentParser(description="The wheel on every Spark that it promises to run on.")
    parser.add_argument("--only", action="append", choices=names, help="this environment; may be given more than once")
    parser.add_argument("--quick", action="store_true", help="fewer environments, and only the tests marked `quick`")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="environments at a time, here %(default)s")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with what it started
    chosen = [
        one for one in ENVIRONMENTS if (one.name in given.only if given.only else one.is_quick or not given.quick)
    ]
    outcomes, seconds = timed(lambda: try_all(chosen, max(1, given.jobs), given.quick, given.pytest))
    show(outcomes)
    print(f"{seconds / 60:.1f} minutes")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
