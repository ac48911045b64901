# SPDX-License-Identifier: Apache-2.0
"""The servers of a cluster, how they are connected, and what is deployed on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, Framing, Method
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.broker.web_api import BrokerWebApi
from tubemq_spark.testing.catalog import BrokerEntry, Catalog, TopicLayout
from tubemq_spark.testing.clock import Clock, Timers
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.faults import Faults
from tubemq_spark.testing.listener import Listener
from tubemq_spark.testing.master.service import MasterService
from tubemq_spark.testing.master.web_api import MasterWebApi, TopicChange
from tubemq_spark.testing.port import HOST, Host, Port, TLSFiles
from tubemq_spark.testing.web_port import WebApi, WebPort

T = TypeVar("T", MasterService, BrokerService)

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


@dataclass(eq=False)
class Server(Generic[T]):
    """A service and its ports."""

    service: T
    plain: Listener
    tls: Listener | None
    web: WebPort

    @property
    def is_open(self) -> bool:
        return self.plain.is_open

    def open(self) -> None:
        for port in self._ports():
            port.open()

    def close(self) -> None:
        for port in self._ports():
            port.close()

    def swap_ports(self, other: Server[T]) -> None:
        """Let two servers of one cluster that are closed have each other's ports."""
        self.plain, other.plain = other.plain, self.plain
        self.tls, other.tls = other.tls, self.tls
        self.web, other.web = other.web, self.web
        self.web.api, other.web.api = other.web.api, self.web.api
        for mine, others in zip(self._ports(), other._ports(), strict=True):
            mine.name, others.name = others.name, mine.name
        for server in (self, other):
            for listener in (server.plain, server.tls):
                if listener is not None:
                    listener.service = server.service

    def _ports(self) -> list[Port]:
        return [self.plain, self.web] if self.tls is None else [self.plain, self.tls, self.web]


class Servers:
    """All servers of one cluster and its configuration; only functions that `host` runs may use it."""

    def __init__(
        self, config: ServerConfig, framing: Framing, tls: TLSFiles | None, host: Host, clock: Clock, faults: Faults
    ) -> None:
        self.catalog = Catalog(config, clock)
        self.host = host
        self.timers = Timers(clock, host.after)
        self.masters: list[Server[MasterService]] = []
        self.brokers: dict[int, Server[BrokerService]] = {}
        self.topic_changes: dict[tuple[str, int], TopicChange] = {}  # by topic and broker, until the next reload
        self._framing = framing
        self._tls = tls
        self._faults = faults

    def open(self, masters: int, brokers: int, port: int, web_port: int) -> None:
        """Create and open all servers. The ports are those of the first master; `OSError` when one is in use."""
        for number in range(1, masters + 1):
            service = MasterService(number, self.catalog)
            service.access.standby = number > 1
            self.masters.append(self._server(service, MasterWebApi(self, number)))
        self.masters[0].plain.port = port
        self.masters[0].web.port = web_port
        for _ in range(brokers):
            self.add_broker()
        for server in self.masters:
            server.open()
            server.service.access.address = server.plain.address

    @property
    def _all(self) -> list[Server[MasterService] | Server[BrokerService]]:
        return [*self.masters, *self.brokers.values()]

    def close(self) -> None:
        for server in self._all:
            server.close()

    def tick(self) -> None:
        """Run the timers of all servers that are due by the clock."""
        for server in self._all:
            server.service.tick()

    def activity(self) -> Activity:
        """Return what the servers have done since their start."""
        ports = [port for server in self._all for port in (server.plain, server.tls) if port is not None]
        calls: Counter[str] = Counter()
        for server in self._all:
            for method, count in server.service.calls.items():
                calls[_NAMES.get(method, str(method))] += count
        brokers = [server.service for server in self.brokers.values()]
        messages = {
            topic: sum(
                store.max_offset // INDEX_MSG_UNIT_SIZE
                for broker in brokers
                for store in broker.stores.of_topic(topic).values()
            )
            for topic in sorted(self.catalog.topics)
        }
        readers = {claim.client_id for broker in brokers for claim in broker.claims.values()}
        return Activity(sum(len(port.connections) for port in ports), len(readers), dict(calls), messages)

    # -- masters --------------------------------------------------------------------------------------------------

    def master(self, number: int) -> Server[MasterService]:
        """Return a master, counted from 1; `ConfigError` for an unknown number."""
        if not 1 <= number <= len(self.masters):
            raise ConfigError(f"there is no master {number}; there are {len(self.masters)}, counted from 1")
        return self.masters[number - 1]

    @property
    def active_master(self) -> Server[MasterService]:
        return next(server for server in self.masters if not server.service.access.standby)

    # -- brokers --------------------------------------------------------------------------------------------------

    def broker(self, broker_id: int) -> Server[BrokerService]:
        """Return a broker; `ConfigError` for an unknown id."""
        if broker_id not in self.brokers:
            raise ConfigError(f"there is no broker {broker_id}; the brokers are {sorted(self.brokers)}")
        return self.brokers[broker_id]

    def list_address(self, broker_id: int) -> None:
        """Let the masters list the broker where it listens now."""
        server, entry = self.broker(broker_id), self.catalog.brokers[broker_id]
        entry.port = server.plain.port
        entry.tls_port = None if server.tls is None else server.tls.port

    def add_broker(self) -> int:
        broker_id = len(self.brokers) + 1
        service = BrokerService(broker_id, HOST, self.catalog)
        server = self._server(service, BrokerWebApi(service, self.catalog))
        server.open()
        self.brokers[broker_id] = server
        tls_port = None if server.tls is None else server.tls.port
        self.catalog.brokers[broker_id] = BrokerEntry(broker_id, HOST, server.plain.port, tls_port)
        return broker_id

    # -- topics ---------------------------------------------------------------------------------------------------

    def deploy(self, topic: str, broker_id: int, layout: TopicLayout) -> None:
        """Create the topic on a broker, or change it."""
        self.catalog.topics.setdefault(topic, {})[broker_id] = layout
        self.broker(broker_id).service.stores.resize(topic, layout)

    def undeploy(self, topic: str, broker_id: int) -> None:
        """Delete the topic and its messages on a broker; the groups keep their offsets."""
        layouts = self.catalog.topics.get(topic, {})
        layouts.pop(broker_id, None)
        if not layouts:
            self.catalog.topics.pop(topic, None)
        self.broker(broker_id).service.stores.drop_topic(topic)

    def _server(self, service: T, web: WebApi) -> Server[T]:
        def listener(files: TLSFiles | None) -> Listener:
            return Listener(service, self.host, self.timers, self._faults, self._framing, files)

        secure = None if self._tls is None else listener(self._tls)
        return Server(service, listener(None), secure, WebPort(service.name, self.host, web))
