# SPDX-License-Identifier: Apache-2.0
"""Sessions of nox with the built package in environments of their own: `make matrix`, `cluster`, `dist` and `sbom`.

nox --list                        all sessions
nox -s spark-4.0 -- -k limits     one, with arguments for pytest; after `make matrix` it keeps its environment
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, run

import nox

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
# Environments at a time: one more than the cores, because tests also wait, or fewer if the memory is small
JOBS = max(1, min((os.cpu_count() or 1) + 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (3 << 30)))

# What a caller may have set for its own Python or Spark
_OF_THE_CALLER = (
    "PYTHONPATH", "PYTHONHOME", "PYTEST_ADDOPTS", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
)  # fmt: skip

nox.options.sessions = ["matrix"]


# -- the wheel on each Spark --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """Versions in an environment. It runs on the preferred `python` if that is found, else on the one of nox."""

    name: str
    requirements: tuple[str, ...]  # a name without version means the newest
    python: str
    is_quick: bool = True


_OLD_PROTOBUF = "protobuf==4.24.1"
_PANDAS = "pandas>=2.2,<3"  # Connect needs it; Spark warns of pandas 3

# Each Spark runs once with the oldest pyarrow that it and this package allow; pyarrow before 16 needs numpy 1. One of
# them has the oldest numpy, and one nothing but what the README's command installs now. Connect needs a newer
# protobuf: the oldest and the newest version that they accept. The old protobuf stays below Python 3.12, which warns
# of it, and warnings are errors in the tests.
# The quick part: the oldest Spark, the first one with read limits, the README's command, and Connect.
ENVIRONMENTS = (
    Environment("spark-4.0", ("pyspark==4.0.*", _OLD_PROTOBUF, "pyarrow==14.0.1", "numpy==1.21.3"), "3.10"),
    Environment("spark-4.1", ("pyspark==4.1.*", "protobuf", "pyarrow==15.0.0", "numpy<2"), "3.12", is_quick=False),
    Environment("spark-4.2", ("pyspark==4.2.*", _OLD_PROTOBUF, "pyarrow==18.0.0"), "3.11"),
    Environment("spark-4.3", ("pyspark==4.3.*", "protobuf", "pyarrow"), "3.13"),
    Environment(
        "connect-4.2",
        ("pyspark[connect]==4.2.*", "protobuf==6.33.5", "pyarrow==18.0.0", _PANDAS),
        "3.10",
        is_quick=False,
    ),
    Environment("connect-4.3", ("pyspark[pipelines]==4.3.*", "protobuf", "pyarrow", _PANDAS), "3.13"),
)
# A scenario disturbs tasks with `mapInArrow`, for which Spark wants pandas.
CLUSTER = Environment("cluster", ("pyspark==4.3.*", "protobuf", "pyarrow", _PANDAS), "3.11")


def find_python(version: str) -> str:
    """Return an interpreter of this minor version from pyenv or the PATH, else the running one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    of_pyenv = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    return next(filter(None, (*map(str, of_pyenv), shutil.which(f"python{version}"), sys.executable)))


def pip(session: nox.Session, *arguments: str, python: str = "") -> None:
    """Run this Python's pip for the session's environment: an older one would build Spark each time."""
    target = python or str(Path(session.bin, "python"))
    call = (sys.executable, "-m", "pip", "--python", target, "--disable-pip-version-check")
    session.run(*call, *arguments, external=True)


def install_wheel(session: nox.Session, environment: Environment) -> str:
    """Install the wheel in build/wheel and the environment's versions by the README's command; return its Python."""
    (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
    readme = f"tubemq-spark[cli,spark] @ {wheel.as_uri()}"
    # Compiling all of Spark takes longer than running the part that is used.
    quietly = ("install", "--quiet", "--no-compile")
    pip(session, *quietly, readme, *environment.requirements, "pytest>=8.3")
    pip(session, *quietly, "--no-deps", "--force-reinstall", str(wheel))
    pip(session, "check")
    pip(session, "list")
    session.env.update(dict.fromkeys(_OF_THE_CALLER))
    python = str(Path(session.bin, "python"))
    session.env["PYSPARK_PYTHON"] = python
    return python


def make_session(environment: Environment) -> None:
    @nox.session(name=environment.name, python=find_python(environment.python), venv_backend="venv", reuse_venv=True)
    def on_spark(session: nox.Session) -> None:
        from tests.spark_home import link_spark

        install_wheel(session, environment)
        work = Path(session.create_tmp()).resolve()
        shutil.rmtree(work)
        # A copy, because in the work tree the tests would import its package instead of the installed one.
        tests = shutil.copytree(
            ROOT / "tests/matrix", work / "tests/matrix", ignore=shutil.ignore_patterns("__pycache__")
        )
        session.env["MATRIX_CONNECT"] = str(int(environment.name.startswith("connect")))
        if "quick" in session.posargs:  # all tests together use Spark as it is installed
            (installed,) = Path(session.virtualenv.location).resolve().glob("lib/python*/site-packages/pyspark")
            link_spark(installed, work / "spark")
            session.env["SPARK_HOME"] = str(work / "spark")
        session.chdir(work)
        session.run("pytest", "-c", str(tests / "pytest.ini"), "--rootdir", str(work), *session.posargs, str(tests))


for one in ENVIRONMENTS:
    make_session(one)


def build_wheel(session: nox.Session) -> None:
    folder = ROOT / "build" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    pip(
        session,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
        python=sys.executable,
    )


@nox.session(python=False)
def matrix(session: nox.Session) -> None:
    """All environments, some at a time; with `-- --quick` the quick ones with the quick tests."""
    build_wheel(session)
    quick = "--quick" in session.posargs
    arguments = ["-m", "quick"] if quick else session.posargs
    names = [environment.name for environment in ENVIRONMENTS if environment.is_quick or not quick]
    nox_ = [sys.executable, "-m", "nox", "--error-on-missing-interpreters"]

    def begin(name: str) -> tuple[str, bool]:
        done = run([*nox_, "-s", name, "--", *arguments], stdout=PIPE, stderr=STDOUT, text=True, check=False)
        print(f"\n== {name}\n{done.stdout}", flush=True)
        return name, done.returncode == 0

    with ThreadPoolExecutor(JOBS) as pool:
        failed = [name for name, passed in pool.map(begin, reversed(names)) if not passed]
    if failed:
        session.error(f"failed on {', '.join(failed)}")


@nox.session(python=find_python(CLUSTER.python), venv_backend="venv", reuse_venv=True)
def cluster(session: nox.Session) -> None:
    """The wheel on Spark clusters and a real TubeMQ: the arguments of `python -m tests.spark_cluster`."""
    build_wheel(session)
    python = install_wheel(session, CLUSTER)
    session.run(sys.executable, "-m", "tests.spark_cluster", "--python", python, *session.posargs, external=True)


# -- the files of a release --------------------------------------------------------------------------------

# Runs with the wheel and its base dependencies only. The pytest plugin and Spark are tried elsewhere.
TRIAL = """
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

import tubemq_spark
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol import speedups
from tubemq_spark.testing import EmbeddedTubeMQ

assert tubemq_spark.__file__.startswith(sys.prefix), tubemq_spark.__file__
assert tubemq_spark.__version__ == sys.argv[1], tubemq_spark.__version__
names = {found.metadata["Name"].lower() for found in distributions()} - {"pip", "setuptools", "wheel"}
assert names - {"tubemq-spark-speedups"} == {"tubemq-spark", "numpy", "protobuf", "pyarrow"}, names
assert speedups.state.startswith(sys.argv[2]), speedups.state
assert find_spec("pyspark_tubemq") is not None, "Spark would not find the data source"
with EmbeddedTubeMQ(topics={"demo": 3}) as tubemq:
    settings = ClientSettings.from_options({"tubemq.master": tubemq.master})
    with SESSIONS().lease(settings) as session:
        session.add_topics(["demo"])
    tubemq.send("demo", b"hello")
    assert [message.body for message in tubemq.messages("demo")] == [b"hello"]
"""
PURE = "in Python: tubemq-spark-speedups is not installed"


def build(session: nox.Session, source: Path, target: Path, **variables: str) -> dict[str, str]:
    """Build an sdist from `source` and a wheel from the sdist; return their digests by file name."""
    session.run("python", "-m", "build", "--no-isolation", "--outdir", str(target), str(source), env=variables)
    files = sorted([*target.glob("*.tar.gz"), *target.glob("*.whl")])
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def time_of_the_source(session: nox.Session) -> dict[str, str]:
    """Return SOURCE_DATE_EPOCH: the caller's, or the time of the last commit; nothing without git's history."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None and (ROOT / ".git").exists():
        given = str(session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)).strip()
    return {} if given is None else {"SOURCE_DATE_EPOCH": given}


@nox.session(venv_backend="venv", reuse_venv=True)
def dist(session: nox.Session) -> None:
    """Build sdist and wheel into dist/ twice, compare, check and try them; `-- --quick` leaves out sdist and Spark."""
    session.install("--require-hashes", "-r", str(ROOT / "scripts/build-tools.txt"))
    session.install("check-wheel-contents>=0.6", "twine>=6")
    shutil.rmtree(DIST, ignore_errors=True)
    variables = time_of_the_source(session)
    built = build(session, ROOT, DIST, **variables)
    wheel, sdist = (next(DIST.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))

    # Again from the unpacked sdist, in circumstances that must not matter
    work = Path(session.create_tmp()).resolve()
    shutil.rmtree(work)
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.iterdir()
    for file in source.rglob("*"):
        file.chmod(file.stat().st_mode & 0o700)
        os.utime(file)
    others = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    previous = os.umask(0o077)
    again = build(session, source, work / "built", **variables, **others)
    os.umask(previous)
    if again != built:
        session.error(f"two builds of the same files differ:\n{built}\n{again}")

    session.run("twine", "check", "--strict", str(sdist), str(wheel))
    session.run("check-wheel-contents", str(wheel))
    sums = "".join(f"{digest}  {name}\n" for name, digest in built.items())
    (DIST / "SHA256SUMS").write_text(sums)
    session.log(sums)
    session.notify("try-wheel")
    session.notify("speedups")
    if "--quick" not in session.posargs:
        session.notify("try-sdist")
        session.notify("try-demo")


@nox.session(venv_backend="venv", reuse_venv=True)
def speedups(session: nox.Session) -> None:
    """Build the wheel of the compiled decoders for this platform, and its bill of materials, into dist/speedups/."""
    session.install("maturin>=1.16,<2")
    target = DIST / "speedups"
    shutil.rmtree(target, ignore_errors=True)
    manifest = str(ROOT / "speedups" / "Cargo.toml")
    folder = {"CARGO_TARGET_DIR": str(ROOT / "build" / "cargo")}
    session.run("maturin", "build", "--release", "--locked", "-m", manifest, "-o", str(target), env=folder)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (bill,) = (name for name in files.namelist() if name.endswith(".cyclonedx.json"))
        (target / f"{wheel.name.removesuffix('.whl')}.cdx.json").write_bytes(files.read(bill))
    session.notify("try-speedups")


def install_file(session: nox.Session, pattern: str, extras: str = "", *more: str) -> str:
    """Install a file of dist/ into the empty environment, and `more`; return its version."""
    (file,) = DIST.glob(pattern)
    session.env.update(dict.fromkeys(_OF_THE_CALLER))
    pip(session, "install", "--quiet", "--no-compile", f"tubemq-spark{extras} @ {file.as_uri()}", *more)
    pip(session, "check")
    session.chdir(session.create_tmp())
    return file.name.split("-")[1].removesuffix(".tar.gz")


@nox.session(name="try-wheel", venv_backend="venv")
def try_wheel(session: nox.Session) -> None:
    """The wheel works in an empty environment."""
    session.run("python", "-W", "error", "-c", TRIAL, install_file(session, "*.whl"), PURE)


@nox.session(name="try-speedups", venv_backend="venv")
def try_speedups(session: nox.Session) -> None:
    """The wheel uses the compiled decoders that are installed beside it."""
    (compiled,) = (DIST / "speedups").glob("*.whl")
    version = install_file(session, "*.whl", "", str(compiled))
    session.run("python", "-W", "error", "-c", TRIAL, version, "compiled, by tubemq-spark-speedups ")


@nox.session(name="try-sdist", venv_backend="venv")
def try_sdist(session: nox.Session) -> None:
    """The sdist works in an empty environment."""
    session.run("python", "-W", "error", "-c", TRIAL, install_file(session, "*.tar.gz"), PURE)


@nox.session(name="try-demo", venv_backend="venv")
def try_demo(session: nox.Session) -> None:
    """The wheel with Spark shows its version, and its demo loses no row and reads none twice."""
    version = install_file(session, "*.whl", "[cli,spark]")
    said = str(session.run("tubemq-spark", "--version", silent=True))
    if version not in said:
        session.error(f"`tubemq-spark --version` printed {said!r}: expected {version}")
    session.run("tubemq-spark", "demo", "--seconds", "2", env={"PYSPARK_PYTHON": str(Path(session.bin, "python"))})


@nox.session(venv_backend="venv")
def sbom(session: nox.Session) -> None:
    """Write the SBOM of the wheel in dist/ as CycloneDX JSON, beside it.

    It names the wheel and the newest versions of what a plain `pip install` brings: numpy, protobuf and pyarrow. Spark
    and the optional extras are left out, because clusters bring their own. It changes only with them.
    """
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        session.error(f"dist/ has {len(wheels)} wheels. Run `make dist` first.")
    (wheel,) = wheels
    name, version = wheel.name.split("-")[:2]
    session.install("cyclonedx-bom>=7")
    session.chdir(session.create_tmp())
    session.run(sys.executable, "-m", "venv", "--clear", "--without-pip", "environment", external=True)
    pip(session, "install", "--quiet", str(wheel), python="environment/bin/python")
    # The tool reads the main component from a pyproject.toml and does not know versions from tags.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with_version = project.replace('dynamic = ["version"]', f'version = "{version}"')
    Path("pyproject.toml").write_text(with_version, encoding="utf-8")
    tool = (
        "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "--validate",
        "--of",
        "JSON",
        "--mc-type",
        "library",
    )
    target = wheel.with_name(f"{name}-{version}.cdx.json")
    session.run(*tool, "--pyproject", "pyproject.toml", "-o", str(target), "environment/bin/python")
