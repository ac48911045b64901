# SPDX-License-Identifier: Apache-2.0
"""A master without its sockets: its clients, its metadata lists, and the rebalances of consumer groups.

It has no thread: its owner calls `tick` regularly.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.testing.authentication import AccessCheck
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.clock import Period
from tubemq_spark.testing.dispatch import Handler, Service
from tubemq_spark.testing.master.client_balance import ClientBalance
from tubemq_spark.testing.master.consumer_groups import ConsumerGroups
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.master.producers import Producers
from tubemq_spark.testing.master.server_balance import ServerBalance


class MasterService(Service):
    """One master. It answers requests over TLS with the brokers' TLS ports.

    Masters of one cluster share only the catalog.
    """

    def __init__(self, number: int, catalog: Catalog) -> None:
        self._catalog = catalog
        self.access = AccessCheck(catalog)
        self._lists = MetadataLists(catalog)
        self._producers = Producers(self.access, self._lists, catalog)
        self._groups = ConsumerGroups(self.access, catalog)
        self._client_balance = ClientBalance(self.access, self._groups, self._lists, catalog)
        self._server_balance = ServerBalance(self.access, self._groups, self._lists, catalog)
        self._rebalance_due = self._first_rebalance()
        handlers, tls_handlers = self._methods(tls=False), self._methods(tls=True)
        super().__init__(f"master {number}", [ServiceType.MASTER], handlers, tls_handlers)

    def tick(self) -> None:
        """Remove clients without heartbeats once a second, and rebalance when it is due."""
        self._producers.tick()
        self._groups.tick()
        if self._rebalance_due.is_due():
            self._client_balance.rebalance()
            self._server_balance.rebalance()

    def forget(self, lists_fill_after: float = 0.0) -> None:
        """Behave as a master that takes over: no client, and no broker in the lists for `lists_fill_after` seconds."""
        self._lists.forget(lists_fill_after)
        self._producers.forget()
        self._groups.forget()
        self._server_balance.forget()

    def restart(self) -> None:
        """Behave as a new process: it knows no client, and its first rebalance is still to come."""
        self.forget()
        self._server_balance.restart()
        self._rebalance_due = self._first_rebalance()

    def _first_rebalance(self) -> Period:
        config = self._catalog.config
        return Period(self._catalog.clock, config.consumer_balance_period, config.first_balance_delay)

    def _methods(self, tls: bool) -> Mapping[Method, Handler]:
        producers, groups = self._producers, self._groups
        server, client = self._server_balance, self._client_balance
        return {
            Method.PRODUCER_REGISTER: partial(producers.register, tls=tls),
            Method.PRODUCER_HEARTBEAT: partial(producers.heartbeat, tls=tls),
            Method.PRODUCER_CLOSE: producers.close,
            Method.CONSUMER_REGISTER: partial(server.register, tls=tls),
            Method.CONSUMER_HEARTBEAT: server.heartbeat,
            Method.CONSUMER_CLOSE: groups.close,
            Method.CONSUMER_REGISTER_V2: partial(client.register, tls=tls),
            Method.CONSUMER_HEARTBEAT_V2: partial(client.heartbeat, tls=tls),
            Method.GET_PARTITION_META: partial(client.partition_meta, tls=tls),
        }
