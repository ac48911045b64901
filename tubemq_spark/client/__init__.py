# SPDX-License-Identifier: Apache-2.0
"""TubeMQ's servers over the network: connections, metadata, claims, reading, producing. No Spark in this package."""

from __future__ import annotations

from tubemq_spark.client import runtime


def forget_servers() -> None:
    """Drop what this process caches about servers: idle producers and connections, which framing an address speaks,
    outages, tokens and addresses. What is in use stays.

    For tests, at the end of each and before its servers close: producers unregister from their masters. Otherwise they
    send heartbeats to servers that are gone, and another server on a reused port is taken for the earlier one. Never
    needed in production. It affects only this process, not Spark's Python workers.
    """
    runtime.current().close()
