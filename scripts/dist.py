# SPDX-License-Identifier: Apache-2.0
"""`make dist`: build the files of a release, and prove that they can be rebuilt, are well-formed, and work.

The sdist is built from the work tree and the wheel from the sdist, into dist/. Then the script
- builds both again from the unpacked sdist, with other permissions, times, time zone and locale: the bytes must be
  the same;
- runs `twine check` and `check-wheel-contents`;
- installs the wheel into an empty environment, without Spark, and the sdist into another one;
- installs the wheel with Spark and runs `tubemq-spark demo`, which fails if a row is lost or read twice.

    python -m scripts.dist              all of it
    python -m scripts.dist --quick      without the sdist's environment and without Spark
    python -m scripts.dist --sbom       only write the SBOM of the wheel in dist/ (`make sbom`)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from scripts.environments import ROOT, StepError, empty_environment, run

DIST = ROOT / "dist"

# Runs with the wheel and its base dependencies only. The pytest plugin and Spark are tried elsewhere.
TRIAL = """
import sys
from importlib.metadata import distributions
from importlib.util import find_spec

import tubemq_spark
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.testing import EmbeddedTubeMQ

assert tubemq_spark.__file__.startswith(sys.prefix), tubemq_spark.__file__
assert tubemq_spark.__version__ == sys.argv[1], tubemq_spark.__version__
names = {found.metadata["Name"].lower() for found in distributions()}
assert names == {"tubemq-spark", "numpy", "protobuf", "pyarrow"}, names
assert find_spec("pyspark_tubemq") is not None, "Spark would not find the data source"
with EmbeddedTubeMQ(topics={"demo": 3}) as tubemq:
    settings = ClientSettings.from_options({"tubemq.master": tubemq.master})
    with SESSIONS().lease(settings) as session:
        session.add_topics(["demo"])
    tubemq.send("demo", b"hello")
    assert [message.body for message in tubemq.messages("demo")] == [b"hello"]
"""


def build(source: Path, target: Path, variables: dict[str, str], umask: int = 0o022) -> dict[str, Path]:
    """Build an sdist from `source` and a wheel from the sdist. Return both by their file names."""
    previous = os.umask(umask)
    try:
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source], variables=variables)
    finally:
        os.umask(previous)
    built = {file.name: file for pattern in ("*.tar.gz", "*.whl") for file in target.glob(pattern)}
    if len(built) != 2:
        raise StepError(f"the build wrote {sorted(built)} into {target}: expected one sdist and one wheel")
    return built


def build_again(sdist: Path, folder: Path, variables: dict[str, str]) -> dict[str, Path]:
    """Build both files from the unpacked sdist, in circumstances that must not matter."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    for file in source.rglob("*"):
        file.chmod(file.stat().st_mode & 0o700)
        os.utime(file)
    others = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    return build(source, folder / "built", {**variables, **others}, umask=0o077)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def compare(first: dict[str, Path], second: dict[str, Path]) -> None:
    """Raise StepError if the two builds differ."""
    ours, theirs = ({name: digest(file) for name, file in built.items()} for built in (first, second))
    if ours != theirs:
        raise StepError(f"two builds of the same files differ:\n{ours}\n{theirs}")


def time_of_the_source() -> dict[str, str]:
    """Return SOURCE_DATE_EPOCH: the caller's, or the time of the last commit; nothing without git's history."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None and (ROOT / ".git").exists():
        given = run(["git", "log", "-1", "--format=%ct"]).strip()
    return {} if given is None else {"SOURCE_DATE_EPOCH": given}


def check(files: list[Path]) -> None:
    run([sys.executable, "-m", "twine", "check", "--strict", *files])
    wheels = [file for file in files if file.suffix == ".whl"]
    run([sys.executable, "-m", "check_wheel_contents", *wheels])


def try_out(file: Path, version: str, folder: Path) -> None:
    """Install `file` into an empty environment and run the trial there."""
    python = empty_environment(folder / "environment", file)
    run([python, "-W", "error", "-c", TRIAL, version], folder)


def try_with_spark(wheel: Path, version: str, folder: Path) -> None:
    python = empty_environment(folder / "environment", f"tubemq-spark[cli,spark] @ {wheel.as_uri()}")
    command = python.with_name("tubemq-spark")
    said = run([command, "--version"], folder)
    if version not in said:
        raise StepError(f"`tubemq-spark --version` printed {said!r}: expected {version}")
    run([command, "demo", "--seconds", "2"], folder, {"PYSPARK_PYTHON": str(python)})


def make(quick: bool) -> None:
    def say(what: str) -> None:
        print(what, flush=True)

    shutil.rmtree(DIST, ignore_errors=True)
    variables = time_of_the_source()
    built = build(ROOT, DIST, variables)
    (sdist,) = (file for file in built.values() if file.suffix == ".gz")
    (wheel,) = (file for file in built.values() if file.suffix == ".whl")
    version = wheel.name.split("-")[1]
    say(f"built {sdist.name} and {wheel.name}")
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, name) for name in ("again", "wheel", "sdist", "spark")]
        for folder in folders:
            folder.mkdir()
        again, alone, from_sdist, spark = folders
        compare(built, build_again(sdist, again, variables))
        say("a second build has the same bytes")
        check(list(built.values()))
        say("twine and check-wheel-contents found nothing")
        try_out(wheel, version, alone)
        say("the wheel works in an empty environment")
        if not quick:
            try_out(sdist, version, from_sdist)
            say("the sdist works in an empty environment")
            try_with_spark(wheel, version, spark)
            say("the demo lost no row and read none twice")
    sums = "".join(f"{digest(file)}  {name}\n" for name, file in sorted(built.items()))
    (DIST / "SHA256SUMS").write_text(sums)
    say(sums.rstrip())


def write_sbom() -> None:
    """Write the SBOM of the wheel in dist/ as CycloneDX JSON, beside it.

    It names the wheel and the newest versions of what a plain `pip install` brings: numpy, protobuf and pyarrow. Spark
    and the optional extras are left out, because clusters bring their own. It changes only with them.
    """
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        raise StepError(f"dist/ has {len(wheels)} wheels. Run `make dist` first.")
    (wheel,) = wheels
    name, version = wheel.name.split("-")[:2]
    target = wheel.with_name(f"{name}-{version}.cdx.json")
    # The tool reads the main component from a pyproject.toml and does not know versions from tags.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with_version = project.replace('dynamic = ["version"]', f'version = "{version}"')
    if with_version == project:
        raise StepError('pyproject.toml has no line `dynamic = ["version"]`')
    with tempfile.TemporaryDirectory() as scratch:
        main = Path(scratch, "pyproject.toml")
        main.write_text(with_version, encoding="utf-8")
        python = empty_environment(Path(scratch, "environment"), wheel)
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate"]
        run([*tool, "--pyproject", main, "--mc-type", "library", "--of", "JSON", "-o", target, python])
    print(f"wrote {target.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, compare, check and try the files of a release.")
    parser.add_argument("--quick", action="store_true", help="without the sdist's environment and without Spark")
    parser.add_argument("--sbom", action="store_true", help="only write the SBOM of the wheel in dist/")
    given = parser.parse_args()
    try:
        write_sbom() if given.sbom else make(given.quick)
    except StepError as problem:
        print(f"make {'sbom' if given.sbom else 'dist'}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
