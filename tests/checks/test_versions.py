# SPDX-License-Identifier: Apache-2.0
"""Which versions are good, too old, too new, or bad together."""

from __future__ import annotations

import pytest

from tubemq_spark.checks.result import CheckResult
from tubemq_spark.checks.versions import Interpreter, check_same, check_versions

GOOD = {
    "tubemq_spark": "0.1.0",
    "pyspark": "4.3.0",
    "google.protobuf": "6.33.5",
    "pyarrow": "21.0.0",
    "numpy": "2.2.0",
    "pandas": "2.3.0",
}


def interpreter(python: str = "3.12.1", **packages: str | None) -> Interpreter:
    changed = {name.replace("__", "."): version for name, version in packages.items()}
    return Interpreter("host", "/usr/bin/python", python, {**GOOD, **changed})


def problems(results: list[CheckResult]) -> dict[str, str]:
    assert all((result.state == "ok") is (not result.remedy) for result in results)
    return {result.check: result.state for result in results if result.state != "ok"}


def test_a_good_installation_has_no_problem() -> None:
    assert problems(check_versions(interpreter())) == {}
    assert problems(list(check_same(interpreter(), interpreter()))) == {}


@pytest.mark.parametrize(
    ("found", "check", "state"),
    [
        (interpreter("3.9.18", pyspark="4.0.1"), "python", "failed"),
        (interpreter(pyspark=None), "pyspark", "failed"),
        (interpreter(pyspark="3.4.1"), "pyspark", "failed"),
        (interpreter(pyspark="3.5.0"), "pyspark", "warning"),
        (interpreter(pyspark="4.4.0"), "pyspark", "warning"),
        (interpreter(google__protobuf="4.24.0"), "protobuf", "failed"),
        (interpreter(google__protobuf="8.0.0"), "protobuf", "warning"),
        (interpreter(google__protobuf="import fails: no symbol"), "protobuf", "failed"),
        (interpreter(pyarrow=None), "pyarrow", "failed"),
        (interpreter(numpy=None), "numpy", "failed"),
        (interpreter(numpy="1.20.3"), "numpy", "failed"),
        (interpreter(numpy="3.0.0"), "numpy", "warning"),
        (interpreter(pyarrow="17.0.0"), "pairs", "warning"),
        (interpreter(pyspark="4.1.4", pyarrow="14.0.1", numpy="1.26.4"), "pairs", "warning"),
        (interpreter(pyspark="4.0.5", pyarrow="14.0.1", numpy="2.0.0"), "pairs", "warning"),
        (interpreter("3.10.4"), "pairs", "warning"),
        (interpreter(pandas="3.0.0"), "pairs", "warning"),
    ],
)
def test_a_bad_version_is_reported(found: Interpreter, check: str, state: str) -> None:
    assert problems(check_versions(found)) == {check: state}


@pytest.mark.parametrize(
    ("decoders", "state"),
    [
        ("compiled, by tubemq-spark-speedups 0.1.0", "ok"),
        ("in Python: tubemq-spark-speedups is not installed", "ok"),
        (
            "in Python, because tubemq-spark-speedups cannot be used: it has interface 2, this release needs 1",
            "warning",
        ),
    ],
)
def test_a_check_says_what_decodes_replies(decoders: str, state: str) -> None:
    (found,) = (one for one in check_versions(interpreter()._replace(decoders=decoders)) if one.check == "decoders")
    assert (found.state, found.detail) == (state, f"replies are decoded {decoders}")


@pytest.mark.parametrize(
    ("found", "checks"),
    [
        (interpreter("3.12.9"), set()),
        (interpreter("3.11.1"), {"python"}),
        (interpreter(tubemq_spark=None), {"tubemq-spark"}),
        (interpreter(tubemq_spark="0.0.9"), {"tubemq-spark"}),
        (interpreter(tubemq_spark="0.0.0"), {"tubemq-spark"}),
        (interpreter(tubemq_spark="import fails: no module protobuf"), {"tubemq-spark"}),
    ],
)
def test_tasks_need_the_same_python_and_package(found: Interpreter, checks: set[str]) -> None:
    assert set(problems(list(check_same(found, interpreter())))) == checks
