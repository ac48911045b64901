# SPDX-License-Identifier: Apache-2.0
"""The version comes from git's tags, and a copy without tags or without git can be built too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

import tubemq_spark

ROOT = Path(__file__).resolve().parents[1]
GIT = shutil.which("git")

pytestmark = pytest.mark.skipif(
    GIT is None and os.environ.get("CI") != "true", reason="needs git: on Debian, sudo apt-get install git"
)


def run(folder: Path, *command: str | Path) -> str:
    """Return what `command` printed. Git reads no settings of the user."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SETUPTOOLS_SCM_"))}
    identity = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    variables |= identity | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hatch(folder: Path, *arguments: str | Path) -> str:
    return run(folder, sys.executable, "-m", "hatchling", *arguments).strip()


def unpacked_sdist(folder: Path, target: Path) -> Path:
    """Build an sdist of the project in `folder`, unpack it and return its folder."""
    hatch(folder, "build", "-t", "sdist", "-d", target)
    (file,) = target.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        archive.extractall(target, filter="data")
    return target / file.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files, as in an archive: without git's history and without an sdist's PKG-INFO."""
    folder = unpacked_sdist(ROOT, tmp_path_factory.mktemp("files"))
    (folder / "PKG-INFO").unlink()
    return folder


@pytest.fixture
def clone(files: Path, tmp_path: Path) -> Path:
    """The files in a git repository with one commit and no tag."""
    folder = shutil.copytree(files, tmp_path / "clone")
    run(folder, "git", "init", "--quiet")
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "--message", "First")
    return folder


def commit(folder: Path) -> None:
    run(folder, "git", "commit", "--quiet", "--allow-empty", "--message", "Next")


def test_an_archive_without_git_has_the_fallback_version(files: Path) -> None:
    assert hatch(files, "version") == "0.0.0"


def test_a_clone_without_tags_counts_commits_and_names_the_last(clone: Path) -> None:
    name = run(clone, "git", "rev-parse", "HEAD").strip()
    told, _, node = hatch(clone, "version").partition("+g")
    assert told == "0.0.1.dev1"
    assert len(node) >= 7
    assert name.startswith(node)


@pytest.mark.parametrize(("tag", "expected"), [("v1.2.3", "1.2.3"), ("v2.0.0rc1", "2.0.0rc1")])
def test_a_tag_of_a_release_is_the_version(clone: Path, tag: str, expected: str) -> None:
    run(clone, "git", "tag", tag)
    assert hatch(clone, "version") == expected


@pytest.mark.parametrize("tag", ["nightly-99", "very-old", "v9"])
def test_other_tags_do_not_count(clone: Path, tag: str) -> None:
    run(clone, "git", "tag", "v1.2.3")
    commit(clone)
    run(clone, "git", "tag", tag)
    assert hatch(clone, "version").startswith("1.2.4.dev1+g")


def test_the_package_knows_its_version() -> None:
    assert tubemq_spark.__version__ == version("tubemq-spark")


def test_a_source_tree_that_is_not_installed_has_the_fallback_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tubemq_spark", tmp_path / "tubemq_spark", ignore=shutil.ignore_patterns("__pycache__"))
    # -S: no installed package is visible. An unknown attribute still is an AttributeError.
    code = "import tubemq_spark; print(tubemq_spark.__version__, hasattr(tubemq_spark, 'version'))"
    assert run(tmp_path, sys.executable, "-S", "-c", code).split() == ["0.0.0", "False"]
