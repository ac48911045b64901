# SPDX-License-Identifier: Apache-2.0
"""The Python that Spark would start for workers."""

from __future__ import annotations

import sys

import pytest

from tubemq_spark.checks.interpreters import check_variables, check_workers, describe, this_interpreter

DRIVER = this_interpreter()


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        ({}, "ok"),
        ({"PYSPARK_PYTHON": sys.executable}, "ok"),
        ({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}, "ok"),
        ({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "jupyter"}, "warning"),
        ({"PYSPARK_DRIVER_PYTHON": "/opt/other/bin/python"}, "warning"),
    ],
)
def test_two_variables_may_name_two_interpreters(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], state: str
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert check_variables().state == state


def test_an_interpreter_tells_its_versions() -> None:
    found = describe(sys.executable)
    assert (found.python, found.packages) == (DRIVER.python, DRIVER.packages)


@pytest.mark.parametrize("command", ["no-such-python", "/bin/false"])
def test_workers_need_an_interpreter(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", command)
    (result,) = check_workers(DRIVER)
    assert (result.state, result.check) == ("failed", "interpreter")
    assert "PYSPARK_PYTHON" in result.remedy
