# SPDX-License-Identifier: Apache-2.0
"""`check`: what the driver and the tasks of a Spark session can reach and may do, as a table and as rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tubemq_spark.checks.cluster import Found
from tubemq_spark.checks.driver import driver_checks
from tubemq_spark.checks.executors import judge_reports, server_reports, task_program
from tubemq_spark.checks.interpreters import this_interpreter
from tubemq_spark.checks.network import Server
from tubemq_spark.checks.result import CheckResult, failed, format_table, ok
from tubemq_spark.shipping import ShippedFunction, is_used

_ROWS = 1000  # enough that each of Spark's default partitions has one


def check(spark: SparkSession, options: Mapping[str, str], *, show: bool = True) -> list[CheckResult]:
    """Check an installation from the driver and from tasks; print a table, and return its rows.

    `options` are those of a source, of a sink, of both, or only `tubemq.…`. The checks: options; versions of Python,
    pyspark, protobuf, pyarrow, numpy and this package, and versions that do not work together; whether Spark finds the
    format; whether the package is installed in the executors, or travels there because of `register(spark, ship=True)`;
    TCP, TLS and framing to the masters and to each broker they list; whether the topics exist and have partitions;
    whether the group is admitted; who holds its partitions; clocks.

    Nothing is moved, claimed or sent: the check may run beside production. It runs one Spark job with Spark's default
    number of partitions; executors that get none of its tasks are not checked. It works with Spark Connect, where
    `driver` means the client: the server's process is checked through tasks and the look-up of the format only.

    Each row is a `CheckResult`: `state` (`ok`, `warning`, `failed`), `check`, `place`, `subject`, `detail`, `remedy`.
    `spark.createDataFrame(rows)` makes a DataFrame of them. Nothing is raised for what the checks find.
    """
    given = {str(key): str(value) for key, value in options.items()}
    found = Found()
    is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
    results = list(driver_checks(given, variables=not is_remote, workers=False, found=found))
    results.append(_discovery(spark))
    results += _executors(spark, given, found.servers)
    if show:
        print(format_table(results))
    return results


def _discovery(spark: SparkSession) -> CheckResult:
    """Check `discovery`: does Spark know the format, and does the Python that plans load it?"""
    subject = 'format("tubemq")'
    options = {"tubemq.master": "127.0.0.1:1", "tubemq.group": "check", "subscribe": "check"}
    try:
        _ = spark.read.format("tubemq").options(**options).load().schema
    except Exception as error:  # Spark raises errors of many classes here
        remedy = _remedy_if_late(error) or (
            "give what the text names to the Python that the driver's JVM starts (PYSPARK_PYTHON)"
            if is_used()
            else "call tubemq_spark.register(spark, ship=True); or install the package in the Python that the "
            "driver's JVM starts (PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON), and restart Spark"
        )
        return failed("discovery", subject, _first_line(error), remedy)
    return ok("discovery", subject, "Spark finds it and loads its schema")


def _executors(spark: SparkSession, options: Mapping[str, str], servers: list[Server]) -> Iterator[CheckResult]:
    shipped = is_used()
    function = ShippedFunction(server_reports, "checks").__reduce_ex__(2) if shipped else None
    program = task_program(options, servers, function)
    reports: list[str] = []  # of one task, for each gets a copy of its own

    def run(_: int) -> str | None:
        if reports:
            return None
        reports.append(program())
        return reports[0]

    driver, began = this_interpreter(), time.time()
    try:
        # Without Arrow, because that needs pandas on Spark 4.0, and executors may lack pyarrow.
        once_a_task = udf(run, "string", useArrow=False)
        rows = spark.range(_ROWS).select(once_a_task("id").alias("report")).collect()
        found = [row.report for row in rows if row.report is not None]
    except Exception as error:  # of many classes: the workers' Python is missing, too old, without pyarrow …
        problem = f"no task could run Python: {_first_line(error)}"
        remedy = (
            _remedy_if_late(error)
            or "set PYSPARK_PYTHON to a Python that exists at the same path on all nodes, of the driver's release"
        )
        yield failed("executors", "tasks", problem, remedy)._replace(place="executor")
        return
    yield ok("executors", "tasks", f"{len(found)} tasks ran")._replace(place="executor")
    yield from judge_reports(found, driver, began, time.time(), shipped=shipped)


def _remedy_if_late(error: Exception) -> str:
    """Return what to do if Spark gave up a Python process that started too slowly, else nothing."""
    if "failed to connect back" not in str(error):
        return ""
    return "start it again when the machine is less busy: Spark waits 10 s for its Python processes"


def _first_line(error: Exception) -> str:
    """Return the line of Spark's error that names the cause: the last one of a Python traceback, else the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.split(":")[0].endswith("Error") and not line.startswith("org.")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:400]
