# SPDX-License-Identifier: Apache-2.0
"""What the servers of an embedded cluster have done: connections, calls and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, Method

if TYPE_CHECKING:
    from tubemq_spark.testing.servers import Servers

_NAMES = {method.value: method.name.lower() for method in Method} | {0: "framing_probe"}  # of this project's clients


@dataclass(frozen=True)
class Activity:
    """`clients` are open connections, `readers` the clients that hold partitions, `messages` those stored by topic.

    `calls` counts the requests by the name of their method, as `EmbeddedTubeMQ.on` takes it.
    """

    clients: int
    readers: int
    calls: Mapping[str, int]
    messages: Mapping[str, int]


def activity_of(servers: Servers) -> Activity:
    """Return the activity so far. Runs on the servers' thread."""
    pairs = [(server.plain, server.tls) for server in servers.masters]
    pairs += [(server.plain, server.tls) for server in servers.brokers.values()]
    ports = [port for pair in pairs for port in pair if port is not None]
    # A service of TLS may be that of the plain port.
    services = dict.fromkeys(port.node.service for port in ports)
    calls: Counter[str] = Counter()
    for service in services:
        for method, count in service.calls.items():
            calls[_NAMES.get(method, str(method))] += count
    brokers = [server.service for server in servers.brokers.values()]
    messages = {
        topic: sum(
            store.max_offset // INDEX_MSG_UNIT_SIZE
            for broker in brokers
            for store in broker.stores.of_topic(topic).values()
        )
        for topic in sorted(servers.catalog.topics)
    }
    readers = {claim.client_id for broker in brokers for claim in broker.claims.values()}
    return Activity(sum(len(port.connections) for port in ports), len(readers), dict(calls), messages)
