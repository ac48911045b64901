# SPDX-License-Identifier: Apache-2.0
"""Jars and compiled Java classes, in a cache outside the work tree.

A cache entry is a folder whose name ends with a hash of its input. It is built under another name and then renamed, so
an existing folder is complete: it needs neither a build nor the network. Lock files serve concurrent processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

Framing = Literal["standard", "prefixed"]
Release = Literal["1.2.0", "2.4.0"]  # of the servers on Maven Central

PUBLISHED: tuple[Release, ...] = ("1.2.0",) if os.environ.get("TUBEMQ_SERVER_JARS") else ("1.2.0", "2.4.0")
"""The releases of a run of the tests. TUBEMQ_SERVER_JARS names one, and it goes before a published one."""

_POMS = Path(__file__).parent / "poms"
_SERVER = "tubemq-server-"
_RPC_CLASSES = "org/apache/inlong/tubemq/corerpc/netty/"
_MIN_JAVA = 17
_INSTALL = "on Debian: apt-get install openjdk-17-jdk-headless maven"


class MissingTool(RuntimeError):  # noqa: N818 - it names what is missing
    """Java, its compiler or Maven is not installed; the message says what to install."""


def tool(name: str) -> str:
    """Return the path of ``java``, ``javac`` or ``mvn``; the first two from JAVA_HOME when that is set.

    Raises:
        MissingTool: it is not installed, or Java is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    in_home = Path(home, "bin", name) if home and name != "mvn" else None
    path = str(in_home) if in_home and in_home.is_file() else shutil.which(name)
    if path is None:
        raise MissingTool(f"'{name}' was not found; {_INSTALL}")
    if name == "java" and (version := java_version(path)) < _MIN_JAVA:
        raise MissingTool(f"Java {_MIN_JAVA} or later is needed, and {path} is Java {version}; {_INSTALL}")
    return path


def server(release: Release, framing: Framing) -> tuple[str, str]:
    """Return release and class path of a published server, or of the one in the folder that TUBEMQ_SERVER_JARS names.

    Raises:
        FileNotFoundError: the folder has no server jar.
        ValueError: a framing other than ``standard`` for another release than 1.2.0.
    """
    named = os.environ.get("TUBEMQ_SERVER_JARS")
    folder = Path(named).resolve() if named else _from_pom(_POMS / f"tubemq-server-{release}.xml", "copy")
    own, in_front = _jars(folder), []
    if release == "1.2.0" and not named:
        in_front = [_standard_framing()] if framing == "standard" else []
    elif framing != "standard":
        raise ValueError(f"framing {framing!r} is for the published release 1.2.0, not for the jars in {folder}")
    releases = [jar.name.removeprefix(_SERVER).removesuffix(".jar") for jar in own if jar.name.startswith(_SERVER)]
    if not releases:
        raise FileNotFoundError(f"{folder} holds no {_SERVER}*.jar; give a folder with the jars of a TubeMQ server")
    return releases[0].removesuffix("-incubating"), _class_path([*in_front, *own, *_third_party()])


def client_class_path() -> str:
    """Return the class path of the official Java client 1.13.0, which uses the standard framing."""
    return _class_path([*_client_jars(), *_third_party()])


def compile_java(source: Path) -> str:
    """Compile one Java file against the official client and return the class path that runs it.

    Raises:
        MissingTool: there is no Java compiler.
        RuntimeError: the file does not compile; the message has the output of javac.
    """
    libraries = client_class_path()

    def compile_into(folder: Path) -> None:
        _run("javac", "-nowarn", "-encoding", "UTF-8", "-cp", libraries, "-d", str(folder), str(source))

    made_from = source.read_bytes() + libraries.encode()
    return _class_path([cached(f"classes-{source.stem}", made_from, compile_into)]) + os.pathsep + libraries


def libraries(pom: Path) -> list[Path]:
    """Return the jars of all dependencies of a Maven project, which Maven downloads once.

    Raises:
        MissingTool: Maven is missing.
        RuntimeError: Maven failed; the message has its output.
    """
    return _jars(_from_pom(pom, "copy-dependencies"))


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tubemq-spark"


def _client_jars() -> list[Path]:
    return _jars(_from_pom(_POMS / "tubemq-client-1.13.0.xml", "copy"))


def _third_party() -> list[Path]:
    """Return the jars that the servers and the Java client need besides TubeMQ's own."""
    return libraries(_POMS / "third-party.xml")


def _standard_framing() -> Path:
    """Return the folder of 1.13.0's RPC classes; before those of 1.2.0 they give it the newer framing."""
    (core,) = (jar for jar in _client_jars() if jar.name.startswith("tubemq-core-"))

    def extract(folder: Path) -> None:
        with zipfile.ZipFile(core) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_RPC_CLASSES)])

    return cached("standard-framing", core.parent.name.encode(), extract)


def _class_path(entries: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, entries))


def _jars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _from_pom(pom: Path, goal: str) -> Path:
    def fetch(folder: Path) -> None:
        _run("mvn", "-B", "-q", f"dependency:{goal}", f"-DoutputDirectory={folder}", "-f", str(pom))

    return cached(pom.stem, pom.read_bytes(), fetch, lock="maven")  # two Mavens must not share a repository


def cached(name: str, made_from: bytes, build: Callable[[Path], None], lock: str | None = None) -> Path:
    """Return the cache entry made from these bytes; `build` fills its folder if there is none.

    Processes that build the same entry wait for each other, and those that build any entry with the same `lock`.
    """
    place = cache() / f"{name}-{hashlib.sha256(made_from).hexdigest()[:12]}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / f".lock-{lock or place.name}", "w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        if not place.is_dir():  # another process may have built it meanwhile
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{name}-") as unfinished:
                entry = Path(unfinished, "entry")
                entry.mkdir()
                build(entry)
                entry.rename(place)
    return place


def _run(name: str, *arguments: str) -> None:
    command = [tool(name), *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed on {arguments[-1]} with status {done.returncode}:\n{done.stdout[-4000:]}")


def java_version(java: str) -> int:
    """Return the major version."""
    output = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else 0
