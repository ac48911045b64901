# SPDX-License-Identifier: Apache-2.0
"""Python interpreters and virtual environments for the other scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What a caller may have set for its own Python or Spark
_OF_THE_CALLER = (
    "PYTHONPATH", "PYTHONHOME", "PYTEST_ADDOPTS", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
)  # fmt: skip


class StepError(Exception):
    """A step failed. The message has its output, or that is in the log."""


def variables_with(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: that of this process without the caller's choices, and `variables`."""
    return {**{name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER}, **variables}


def run(command: Sequence[str | Path], folder: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    """Return what `command` printed. Raise StepError if it failed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables_with(variables or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise StepError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def find_python(version: tuple[int, int]) -> Path | None:
    """Return an interpreter of this minor version: the running one, one on the PATH, or one of pyenv."""
    if sys.version_info[:2] == version:
        return Path(sys.executable)
    return next((python for python in _candidates("python{}.{}".format(*version)) if _works(python, version)), None)


def _candidates(name: str) -> Iterator[Path]:
    if found := shutil.which(name):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/*/bin/{name}"), reverse=True)


def _works(python: Path, version: tuple[int, int]) -> bool:
    """Return True if `python` has this version and can create environments. A launcher of pyenv may exist and fail."""
    code = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != {version})"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def empty_environment(folder: Path, *requirements: str | Path) -> Path:
    """Create an environment that contains only `requirements` and what they need. Return its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    # Compiling all of Spark takes longer than running the part that is used.
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *requirements])
    run([sys.executable, "-m", "pip", "--python", python, "check"])
    return python
