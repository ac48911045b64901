# SPDX-License-Identifier: Apache-2.0
"""Runs commands: in this process, where output is a pipe, and in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from pyspark import SparkContext

from tests.cli.terminal import Terminal, open_terminal
from tests.clusters import Cluster
from tubemq_spark.cli.main import main
from tubemq_spark.testing import EmbeddedTubeMQ


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> list[dict[str, Any]]:
        """The lines of the output as JSON."""
        return [json.loads(line) for line in self.stdout.splitlines()]


Run: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored_signals: None
) -> Run:
    """Runs a command in this process. `stdin` is its input."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")

    def run_main(*arguments: str, stdin: bytes = b"") -> Result:
        (tmp_path / "stdin").write_bytes(stdin)
        with (tmp_path / "stdin").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            before = SparkContext._gateway, SparkContext._active_spark_context
            status = main(arguments)
            after = SparkContext._gateway, SparkContext._active_spark_context
            assert after == before, "a command that starts Spark needs another process: it stops the other tests' Spark"
        sys.stdout.flush()
        return Result(status, *capfd.readouterr())

    return run_main


def variables_of(cluster: Cluster | EmbeddedTubeMQ) -> dict[str, str]:
    """Return the environment variables that name the cluster to commands."""
    return {
        "TUBEMQ_MASTER": cluster.master,
        "TUBEMQ_ADMIN": cluster.web_master,
        "TUBEMQ_ADMIN_TOKEN": cluster.admin_token,
    }


@pytest.fixture
def named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, which the environment names to commands."""
    for name, value in variables_of(cluster).items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.fixture
def own_tubemq(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedTubeMQ]:
    """Brokers 1 and 2 for one test, with a partition of topic `t` each. The environment names it to commands."""
    with EmbeddedTubeMQ({"t": 1}, 2) as tubemq:
        for name, value in variables_of(tubemq).items():
            monkeypatch.setenv(name, value)
        yield tubemq


@pytest.fixture(scope="session")
def terminal() -> Iterator[Terminal]:
    """A terminal that runs the commands of all tests."""
    with open_terminal() as opened:
        yield opened
