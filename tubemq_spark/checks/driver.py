# SPDX-License-Identifier: Apache-2.0
"""All checks that need no Spark, in order: options, versions, interpreters, masters, cluster, brokers, holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tubemq_spark.checks.cluster import check_cluster
from tubemq_spark.checks.holders import check_holders
from tubemq_spark.checks.interpreters import check_variables, check_workers, this_interpreter
from tubemq_spark.checks.network import Server, broker_servers, check_servers, master_servers
from tubemq_spark.checks.result import FAILED, CheckResult
from tubemq_spark.checks.settings import check_settings
from tubemq_spark.checks.versions import check_versions


def driver_checks(
    options: Mapping[str, str], *, variables: bool = True, workers: bool = True, servers: list[Server] | None = None
) -> Iterator[CheckResult]:
    """Yield the results of this process, as soon as each part is known.

    `options` are those of a source, a sink, both, or the client's `tubemq.…` alone. `variables`: look at those that
    choose Spark's interpreters. `workers`: also start the Python that workers would run in this environment, for
    callers that run no tasks. The masters and brokers found are added to `servers`.
    """
    results, settings = check_settings(options)
    yield from results
    driver = this_interpreter()
    yield from check_versions(driver)
    if variables:
        yield from check_variables()
    if workers:
        yield from check_workers(driver)
    if settings is None:
        return
    found_servers = [] if servers is None else servers
    masters = master_servers(settings.client)
    found_servers += masters
    reached = check_servers(settings.client, masters)
    yield from reached
    down = {one.subject for one in reached if one.state == FAILED}
    if all(master.subject in down for master in masters):
        return
    results, found = check_cluster(settings)
    yield from results
    brokers = broker_servers(found.brokers.values())
    found_servers += brokers
    yield from check_servers(settings.client, brokers)
    yield from check_holders(settings, found)
