# SPDX-License-Identifier: Apache-2.0
"""Checks of tasks: what runs there (`report_of_task`), and what the driver makes of it (`judge_reports`).

The driver ships the source of `worker_probe` with plain values only, because executors may not have this package.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tubemq_spark.checks import worker_probe
from tubemq_spark.checks.clocks import check_other_clock
from tubemq_spark.checks.network import MAX_TIMEOUT, Server, check_servers
from tubemq_spark.checks.result import FAILED, CheckResult, failed, ok
from tubemq_spark.checks.settings import check_settings
from tubemq_spark.checks.versions import Interpreter, check_same, check_versions
from tubemq_spark.client.settings import PASSWORD, PASSWORD_FILE, USER
from tubemq_spark.protocol.metadata import Address

_OF_DRIVER = {option.name.lower() for option in (USER, PASSWORD, PASSWORD_FILE)}


def task_program(
    options: Mapping[str, str],
    servers: Sequence[Server],
    shipped: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
) -> Callable[[], str]:
    """Return the function that tasks call; it returns a report as JSON.

    The function is nested and has plain values only, so cloudpickle sends it by value. It imports this package when it
    runs, if the executor has it, or makes `server_reports` of what is `shipped`. Only the driver reads a password file,
    and connections need no credentials.
    """
    source = inspect.getsource(worker_probe)
    given = {name: value for name, value in options.items() if name.lower() not in _OF_DRIVER}
    addresses = [(one.address.host, one.address.port, one.role) for one in servers]
    seconds = MAX_TIMEOUT

    def program() -> str:
        import json

        namespace: dict[str, Any] = {"__name__": "tubemq_worker_probe"}
        exec(source, namespace)
        report = {"interpreter": namespace["describe"]()}
        try:
            if shipped is None:
                from tubemq_spark.checks.executors import server_reports as reports
            else:
                arrive, arguments = shipped
                reports = arrive(*arguments)
        except Exception:  # the interpreter's report says what is missing
            report["connections"] = [
                [host, port, role, namespace["try_connect"](host, port, seconds)] for host, port, role in addresses
            ]
        else:
            report["results"] = reports(given, addresses)
        return json.dumps(report)

    return program


def server_reports(options: Mapping[str, str], addresses: Sequence[tuple[str, int, str]]) -> list[list[str]]:
    """Return the results for options and servers in this process, as lists of texts."""
    results, settings = check_settings(options)
    found = [result for result in results if result.state == FAILED]
    if settings is not None:
        servers = [Server(Address(host, port), role) for host, port, role in addresses]
        found += check_servers(settings.client, servers)
    return [list(result) for result in found]


def judge_reports(
    reports: Iterable[str], driver: Interpreter, began: float, ended: float, *, shipped: bool = False
) -> list[CheckResult]:
    """Return the results for each host and interpreter of the tasks' `reports`, which ran between `began` and `ended`
    (seconds since the epoch). Results that are the same on a host are returned once."""
    found: dict[CheckResult, None] = {}
    for report in sorted(map(json.loads, reports), key=lambda report: str(report["interpreter"]["host"])):
        interpreter = Interpreter(**report["interpreter"])
        results = [*check_versions(interpreter), *check_same(interpreter, driver, shipped=shipped)]
        results.append(check_other_clock(interpreter.time, began, ended, interpreter.host))
        results += _of_servers(report, interpreter.host)
        found.update((one._replace(place=f"executor {interpreter.host}"), None) for one in results)
    return list(found)


def _of_servers(report: Mapping[str, Any], here: str) -> Iterator[CheckResult]:
    for fields in report.get("results", ()):
        result = CheckResult(*fields)
        yield result._replace(remedy=result.remedy and f"on {here}: {result.remedy}")
    for host, port, role, problem in report.get("connections", ()):
        subject = f"{role} at {host}:{port}"
        if problem is None:
            yield ok("connection", subject, "TCP connects")
        else:
            remedy = f"open port {port} from {here}, and check the name {host} there"
            yield failed("connection", subject, problem, remedy)
