"""A master without its sockets: the life of its clients, its lists, and the rounds in which it deals partitions out.

It does nothing by itself: whoever owns it calls `tick` now and then.
"""

from __future__ import annotations

from collections.abc import Mapping

from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import VisitTokens
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.dispatch import Handler, Service, on_message
from tubemq_spark.testing.master.access_check import AccessCheck
from tubemq_spark.testing.master.client_balance import ClientBalance
from tubemq_spark.testing.master.consumer_groups import ConsumerGroups
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.master.producers import Producers
from tubemq_spark.testing.master.server_balance import ServerBalance


class MasterService:
    """`service` answers requests that came in plain, `tls_service` those over TLS, which name the brokers' TLS ports.

    Masters of one cluster share the catalog and the visit tokens, and nothing else.
    """

    def __init__(self, catalog: Catalog, clock: Clock, config: ServerConfig, tokens: VisitTokens) -> None:
        self._clock = clock
        self._config = config
        self._access = AccessCheck(clock, config, tokens)
        self._lists = MetadataLists(catalog, clock, config)
        self._producers = Producers(self._access, self._lists, catalog, clock, config)
        self._groups = ConsumerGroups(self._access, catalog, clock, config)
        self._client_balance = ClientBalance(self._access, self._groups, self._lists, catalog, clock, config)
        self._server_balance = ServerBalance(self._access, self._groups, self._lists, catalog, config)
        self._round_at = self._first_round_at()
        self.service = Service({ServiceType.MASTER: self._handlers(tls=False)})
        self.tls_service = Service({ServiceType.MASTER: self._handlers(tls=True)})

    @property
    def standby(self) -> bool:
        """Whether another master is the active one. Set, calls are refused once their parameters were found right."""
        return self._access.standby

    @standby.setter
    def standby(self, value: bool) -> None:
        self._access.standby = value

    @property
    def address(self) -> str:
        """`host:port` of this master, which its refusals name; to be set by whoever listens for it."""
        return self._access.address

    @address.setter
    def address(self, value: str) -> None:
        self._access.address = value

    def tick(self) -> None:
        """Once a second forgets clients that were silent for too long; holds a round of balance when one is due."""
        self._producers.tick()
        self._groups.tick()
        now = self._clock.now()
        if now >= self._round_at:
            self._round_at = now + self._config.consumer_balance_period
            self._client_balance.round()
            self._server_balance.round()

    def forget(self, lists_fill_after: float = 0.0) -> None:
        """As a master that takes over: no client is known, and for so many seconds no broker has registered."""
        self._lists.forget(lists_fill_after)
        self._producers.forget()
        self._groups.forget()
        self._server_balance.forget()

    def restart(self) -> None:
        """As a master whose process has begun anew: no client is known, and its first round is still to come."""
        self.forget()
        self._server_balance.restart()
        self._round_at = self._first_round_at()

    def _first_round_at(self) -> float:
        return self._clock.now() + self._config.first_balance_delay + self._config.consumer_balance_period

    def _handlers(self, tls: bool) -> Mapping[Method, Handler]:
        producers, groups = self._producers, self._groups
        server, client = self._server_balance, self._client_balance
        return {
            Method.PRODUCER_REGISTER: on_message(master_pb.RegisterRequestP2M, lambda m: producers.register(m, tls)),
            Method.PRODUCER_HEARTBEAT: on_message(master_pb.HeartRequestP2M, lambda m: producers.heartbeat(m, tls)),
            Method.PRODUCER_CLOSE: on_message(master_pb.CloseRequestP2M, producers.close),
            Method.CONSUMER_REGISTER: on_message(master_pb.RegisterRequestC2M, lambda m: server.register(m, tls)),
            Method.CONSUMER_HEARTBEAT: on_message(master_pb.HeartRequestC2M, server.heartbeat),
            Method.CONSUMER_CLOSE: on_message(master_pb.CloseRequestC2M, groups.close),
            Method.CONSUMER_REGISTER_V2: on_message(master_pb.RegisterRequestC2MV2, lambda m: client.register(m, tls)),
            Method.CONSUMER_HEARTBEAT_V2: on_message(master_pb.HeartRequestC2MV2, lambda m: client.heartbeat(m, tls)),
            Method.GET_PARTITION_META: on_message(
                master_pb.GetPartMetaRequestC2M, lambda m: client.partition_meta(m, tls)
            ),
        }
