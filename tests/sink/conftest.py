# SPDX-License-Identifier: Apache-2.0
"""A file system that fails on demand, and a count of the requests that a master gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted
from tubemq_spark.sink import output_dir


class Failing(pafs.FSSpecHandler):  # type: ignore[misc]
    """The local file system with one failing operation."""

    def __init__(self, fails: str) -> None:
        super().__init__(None)
        self._fails = fails
        self._local = pafs.LocalFileSystem()
        self.calls: list[tuple[Any, ...]] = []

    def get_type_name(self) -> str:
        return "failing"

    def _call(self, name: str, *arguments: Any, **others: Any) -> Any:
        self.calls.append((name, *arguments))
        if name == self._fails:
            raise OSError(28, "No space left on device")
        return getattr(self._local, name)(*arguments, **others)

    def get_file_info(self, paths: Any) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._call("create_dir", path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._call("delete_file", path)

    def move(self, src: str, dest: str) -> None:
        self._call("move", src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._call("open_input_stream", path, compression=None)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._call("open_output_stream", path, compression=None)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `odd:<path>` a local path in a file system with one failing operation."""

    def install(fails: str) -> Failing:
        handler = Failing(fails)
        monkeypatch.setattr(output_dir, "open_remote", lambda scheme, rest: (pafs.PyFileSystem(handler), rest))
        return handler

    return install


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with two partitions of topic `demo` each."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}) as running:
        yield running


@pytest.fixture
def master_calls(cluster: EmbeddedCluster, use_timings: UseTimings) -> Callable[[], int]:
    """Return how many requests of producers the master of `cluster` has received. There are no heartbeats."""
    use_timings(heartbeat_period=3600.0)
    counters = [counted(cluster, f"producer_{call}") for call in ("register", "heartbeat", "close")]
    return lambda: sum(counter.fired for counter in counters)
