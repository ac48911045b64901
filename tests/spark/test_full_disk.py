# SPDX-License-Identifier: Apache-2.0
"""A checkpoint folder on a disk that is full: the query ends, and continues when there is space again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.messages import Sent, numbered, partitions, send
from tests.spark.queries import Queries, Source
from tests.spark.test_exactly_once import Copy
from tubemq_spark.protocol.metadata import Partition

PAGE = 4096  # bytes that the smallest file takes
SIZE = 256 * PAGE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root and `mount`, to make a file system of 1 MB")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs the right to mount a file system of 1 MB: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Fill the disk until `left` pages are left; return the file to delete."""
    file = disk / "fill"
    free = os.statvfs(disk)
    file.write_bytes(bytes((free.f_bavail - left) * free.f_frsize))
    return file


@pytest.mark.thorough
def test_a_query_continues_after_its_checkpoint_had_no_space(
    source: Source, queries: Queries, disk: Path, tmp_path: Path
) -> None:
    copy = Copy(source, tmp_path, disk / "checkpoint")
    sent: list[dict[Partition, list[Sent]]] = []

    def run(more: int) -> None:
        targets = [partition for topic in copy.topics for partition in partitions(source.cluster, topic)]
        sent.append(send(source.cluster, numbered(targets, more)))
        copy.finish(queries)

    run(30)
    failed: dict[int, str] = {}
    for left in range(8):  # Spark writes the plan and the commit of a micro-batch into files, and check sums of both
        filling = fill(disk, left)
        try:
            run(30)
        except StreamingQueryException as error:
            failed[left] = str(error)
        filling.unlink()
        if left % 2:
            run(30)
            copy.check(sent)
    run(0)
    copy.check(sent)
    assert {0, 1} <= failed.keys() != set(range(8))
    assert all("No space left on device" in error for error in failed.values())
