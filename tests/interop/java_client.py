# SPDX-License-Identifier: Apache-2.0
"""The official Java client, run as a process: TubeMQTool.java in typed Python."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.real import jars

_RPC_CLASSES = "org/apache/inlong/tubemq/corerpc/netty/"
_SOURCE = Path(__file__).with_name("TubeMQTool.java")
_JVM = ("-XX:-UsePerfData", "-Xmx1g")
_START_QUICKLY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # saves half the CPU time of a short run
_TAIL = 3000


class JavaClientError(RuntimeError):
    """The program failed or took too long. The text ends with the end of the program's standard error."""


@dataclass(frozen=True)
class Outgoing:
    """A message for the Java producer.

    ``attributes`` go through ``setAttrKeyVal``, which refuses blank values; ``raw_attribute`` is the attribute text as
    it is. ``msg_time`` is ``yyyyMMddHHmm``.
    """

    body: bytes
    attributes: Mapping[str, str] | None = None
    msg_type: str | None = None
    msg_time: str | None = None
    raw_attribute: str | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "body": base64.b64encode(self.body).decode(),
                "attributes": self.attributes,
                "msgType": self.msg_type,
                "msgTime": self.msg_time,
                "rawAttribute": self.raw_attribute,
            }
        )


@dataclass(frozen=True)
class Receipt:
    """The place of a stored message. ``partition`` is ``brokerId:topic:partitionId``."""

    message_id: int
    partition: str
    append_offset: int


@dataclass(frozen=True)
class Received:
    """A message as the Java consumer shows it. ``attribute`` is its whole attribute text, with system attributes."""

    body: bytes
    attribute: str | None
    msg_type: str | None
    msg_time: str | None
    partition: str
    message_id: int

    @property
    def attributes(self) -> dict[str, str] | None:
        """The attributes that the producer set, None if there are none."""
        parts = (part.partition("=") for part in (self.attribute or "").split(",") if part)
        return {key: value for key, _, value in parts if key not in ("$msgType$", "$msgTime$")} or None

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Received:
        return cls(
            base64.b64decode(line["body"]),
            line["attribute"],
            line["msgType"],
            line["msgTime"],
            line["partition"],
            line["messageId"],
        )


@dataclass(frozen=True)
class Rate:
    """``count`` messages with ``megabytes`` (of 10^6 bytes) of bodies took ``seconds``.

    ``cpu_seconds`` is CPU time of the client, None if it was not measured.
    """

    count: int
    seconds: float
    megabytes: float
    cpu_seconds: float | None


@dataclass(frozen=True)
class JavaStores:
    """Key stores for Java: the certificates that the client trusts, and its own certificate."""

    trusted: Path
    own: Path
    password: str


class JavaClient:
    """Runs the official client against one cluster: 1.13.0, or the one in the folder that TUBEMQ_SERVER_JARS names.

    It speaks the standard framing. For the prefixed one it gets the RPC classes of release 1.2.0, whose own client was
    never published.

    Raises:
        MissingTool: Java, its compiler or Maven is missing.
    """

    def __init__(self, master: str, framing: jars.Framing = "standard", stores: JavaStores | None = None) -> None:
        self._master = master
        in_front = [str(_prefixed_framing())] if framing == "prefixed" else _other_client()
        class_path = os.pathsep.join([*in_front, jars.compile_java(_SOURCE)])
        self._java = [jars.tool("java"), *_JVM]
        self._program = ["-cp", class_path, _SOURCE.stem]
        self._tls = [] if stores is None else ["--tls", f"{stores.trusted},{stores.own},{stores.password}"]

    def produce(self, topic: str, messages: Iterable[Outgoing], timeout: float = 300) -> list[Receipt]:
        """Send all and return their receipts in the order of ``messages``; ``JavaClientError`` if one failed."""
        lines = self._run(
            "produce", topic, *self._tls, stdin=[message.to_json() for message in messages], timeout=timeout
        )
        return [
            Receipt(line["messageId"], line["partition"], line["appendOffset"])
            for line in sorted(lines, key=lambda line: int(line["index"]))
        ]

    def consume(
        self,
        topic: str,
        group: str,
        *,
        filters: Collection[str] = (),
        at: Mapping[str, int] | None = None,
        count: int | None = None,
        idle: float | None = None,
        timeout: float = 300,
    ) -> list[Received]:
        """Read and confirm until ``count`` messages came (and all of the last fetch), or none for ``idle`` seconds,
        by default 15, and 60 with a ``count``.

        ``at`` gives the position of every partition by ``brokerId:topic:partitionId``; without it the group
        continues at its position, and a new group begins at the first message.
        """
        options = ["--at", json.dumps(dict(at))] if at is not None else ["--from-start"]
        options += ["--filter", ",".join(filters)] if filters else []
        options += ["--count", str(count)] if count is not None else []
        if idle is None:
            idle = 15.0 if count is None else 60.0
        options += ["--idle-ms", str(int(idle * 1000)), *self._tls]
        return [Received.of_line(line) for line in self._run("consume", topic, group, *options, timeout=timeout)]

    @contextlib.contextmanager
    def member(
        self, topic: str, group: str, *, filters: Collection[str] = (), push: bool = False, timeout: float = 60
    ) -> Iterator[Member]:
        """Yield a consumer of the group. At the end of the block it is killed if it has not left."""
        options = ["--filter", ",".join(filters)] if filters else []
        options += ["--push"] * push + self._tls
        with self._process("member", topic, group, *options, jvm=_START_QUICKLY) as (process, errors):
            yield Member(process, errors, timeout)

    def producing(self, topic: str, *, count: int, size: int) -> contextlib.AbstractContextManager[Rounds]:
        """Return rounds of ``count`` asynchronous sends of ``size`` bytes each."""
        return self._rounds("bench-produce", topic, "--count", str(count), "--size", str(size))

    def consuming(
        self, topic: str, group: str, *, count: int, threads: int = 1, confirm_locally: bool = False
    ) -> contextlib.AbstractContextManager[Rounds]:
        """Return rounds that read ``count`` messages from the topic's first one on, with the client's defaults or
        faster.

        Several threads read different partitions. With ``confirm_locally`` a fetch confirms the one before.
        """
        options = ["--count", str(count), "--threads", str(threads)] + ["--confirm-locally"] * confirm_locally
        return self._rounds("bench-consume", topic, group, *options)

    def _run(self, verb: str, *arguments: str, stdin: Iterable[str] = (), timeout: float) -> list[dict[str, Any]]:
        command = [*self._java, *_START_QUICKLY, *self._program, verb, self._master, *arguments]
        try:
            done = subprocess.run(
                command, input="\n".join(stdin), capture_output=True, text=True, encoding="utf-8", timeout=timeout
            )
        except subprocess.TimeoutExpired as late:
            said = (late.stderr or b"").decode(errors="replace")
            raise JavaClientError(f"{verb} {arguments} took over {timeout:.0f} s\n{said[-_TAIL:]}") from None
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode:
            errors = [line["error"] for line in lines if "error" in line]
            raise JavaClientError(
                f"{verb} {arguments} ended with status {done.returncode}, {len(errors)} messages failed {errors[:3]}\n"
                f"{done.stderr[-_TAIL:]}"
            )
        return lines

    @contextlib.contextmanager
    def _rounds(self, verb: str, *arguments: str) -> Iterator[Rounds]:
        with self._process(verb, *arguments) as (process, errors):
            yield Rounds(verb, process, errors)

    @contextlib.contextmanager
    def _process(
        self, verb: str, *arguments: str, jvm: Iterable[str] = ()
    ) -> Iterator[tuple[subprocess.Popen[str], IO[bytes]]]:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*self._java, *jvm, *self._program, verb, self._master, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
            try:
                yield process, errors
            finally:
                process.kill()
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def java_client(master: str, framing: jars.Framing = "standard", stores: JavaStores | None = None) -> JavaClient:
    """Return a client. Without Java skip the test; on CI raise `MissingTool`."""
    try:
        return JavaClient(master, framing, stores)
    except jars.MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        import pytest  # which benchmarks, in an environment of users, do without

        pytest.skip(str(error))


class Rounds:
    """A program that runs on between its measured rounds, so that only the first one has a cold JVM."""

    def __init__(self, verb: str, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._verb = verb
        self._process = process
        self._errors = errors

    def run(self, timeout: float = 300) -> Rate:
        """Run one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(timeout, self._process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # then there is no line to read
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            text = self._process.stdout.readline()
        finally:
            late.cancel()
        if not text:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            raise JavaClientError(f"{self._verb} ended with status {self._process.returncode}\n{said[-_TAIL:]}")
        line = json.loads(text)
        return Rate(line["count"], line["seconds"], line["mbPerSecond"] * line["seconds"], line["cpuSeconds"])


class Member:
    """One consumer of a group. `client_id` is its client id; `received` grows while it reads."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], timeout: float) -> None:
        self._process = process
        self._errors = errors
        self._timeout = timeout
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._ended = False
        self.client_id = ""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self.wait_until(lambda received: bool(self.client_id))

    @property
    def received(self) -> list[Received]:
        with self._changed:
            return list(self._received)

    def wait_until(self, is_so: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until `is_so(received)`. Raise `JavaClientError` if that takes too long or the program ends before."""
        with self._changed:
            self._changed.wait_for(lambda: is_so(self._received) or self._ended, self._timeout)
            if not is_so(self._received):
                raise JavaClientError(f"after {len(self._received)} messages no more came\n{self._said()}")
            return list(self._received)

    def leave(self) -> None:
        """End the program as a user does: it releases its partitions."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listening.join(self._timeout)
        status = self._process.wait(self._timeout)
        if status:
            raise JavaClientError(f"a member ended with status {status}\n{self._said()}")

    def kill(self) -> None:
        """Kill the program: it releases nothing."""
        self._process.kill()
        self._process.wait()
        self._listening.join(self._timeout)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            with self._changed:
                if "consumerId" in line:
                    self.client_id = line["consumerId"]
                else:
                    self._received.append(Received.of_line(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_TAIL:]


def _other_client() -> list[str]:
    folder = os.environ.get("TUBEMQ_SERVER_JARS")
    return [] if not folder else [str(jar.resolve()) for jar in sorted(Path(folder).glob("tubemq-c*.jar"))]


def _prefixed_framing() -> Path:
    """Return the folder with the RPC classes of 1.2.0. Before a later client in the class path, they give it their
    framing."""
    class_path = jars.server("1.2.0", "prefixed")[1].split(os.pathsep)
    (core,) = (Path(jar) for jar in class_path if Path(jar).name.startswith("tubemq-core-"))
    folder = jars.cache() / f"prefixed-framing-{core.parent.name.rpartition('-')[2]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished, zipfile.ZipFile(core) as archive:
            place = Path(unfinished, "entry")
            archive.extractall(place, [name for name in archive.namelist() if name.startswith(_RPC_CLASSES)])
            with contextlib.suppress(OSError):  # another process was first
                place.rename(folder)
    return folder
