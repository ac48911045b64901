# SPDX-License-Identifier: Apache-2.0
"""What a task of `check` looks at, and what `check` says if none can run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tubemq_spark import check
from tubemq_spark.checks.executors import task_program


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"tubemq.passwordFile": "/only/on/the/driver", "TUBEMQ.USER": "reader"}, []),
        ({"tubemq.tls.enabled": "true", "tubemq.tls.ca": "/not/here"}, ["option 'tubemq.tls.ca'"]),
    ],
)
def test_a_task_needs_the_files_of_tls_and_no_password(options: dict[str, str], found: list[str]) -> None:
    options |= {"tubemq.master": "localhost", "subscribe": "orders", "tubemq.group": "readers"}
    results = json.loads(task_program(options, [])())["results"]
    assert [detail.partition(":")[0] for *_, detail, _ in results] == found, results


class LateSpark:
    """A session on a machine that is so busy that Spark's Python processes do not connect within 10 s."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")


def test_python_processes_that_start_too_late_are_named() -> None:
    spark: Any = LateSpark()
    results = check(spark, {"tubemq.master": "127.0.0.1:1", "tubemq.rpc.timeoutMs": "400"}, show=False)
    late = {result.check: result.remedy for result in results if "connect back" in result.detail}
    assert "discovery" in late  # and the tasks, if this process has a session of Spark
    assert all("when the machine is less busy" in remedy for remedy in late.values())
