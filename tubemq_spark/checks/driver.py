# SPDX-License-Identifier: Apache-2.0
"""All checks that need no Spark, in order: options, versions, interpreters, masters, cluster, brokers, holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tubemq_spark.checks.cluster import Found, check_cluster
from tubemq_spark.checks.holders import check_holders
from tubemq_spark.checks.interpreters import check_variables, check_workers, this_interpreter
from tubemq_spark.checks.network import Server, check_servers
from tubemq_spark.checks.result import FAILED, CheckResult
from tubemq_spark.checks.settings import check_settings
from tubemq_spark.checks.versions import check_versions


def driver_checks(
    options: Mapping[str, str], *, variables: bool = True, workers: bool = True, found: Found | None = None
) -> Iterator[CheckResult]:
    """Yield the results of this process, as soon as each part is known.

    `options` are those of a source, a sink, both, or the client's `tubemq.…` alone. `variables`: look at those that
    choose Spark's interpreters. `workers`: also start the Python that workers would run in this environment, for
    callers that run no tasks. `found` gets what the masters list.
    """
    found = Found() if found is None else found
    results, settings = check_settings(options)
    yield from results
    driver = this_interpreter()
    yield from check_versions(driver)
    if variables:
        yield check_variables()
    if workers:
        yield from check_workers(driver)
    if settings is None:
        return
    found.servers += (Server(address, "master") for address in settings.client.masters)
    reached = check_servers(settings.client, found.servers)
    yield from reached
    if {one.subject for one in found.servers} <= {one.subject for one in reached if one.state == FAILED}:
        return
    yield from check_cluster(settings, found)
    brokers = [Server(one.address, f"broker {number}") for number, one in sorted(found.brokers.items())]
    found.servers += brokers
    yield from check_servers(settings.client, brokers)
    yield from check_holders(settings, found)
