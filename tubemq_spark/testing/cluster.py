# SPDX-License-Identifier: Apache-2.0
"""EmbeddedTubeMQ: a master and brokers in this process, for tests and for a first try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_payload
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.administration import Administration, on_thread
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig, parse_enum
from tubemq_spark.testing.dispatch import DeclinedError
from tubemq_spark.testing.event_loop import EventLoopThread
from tubemq_spark.testing.faults import Calls, Conditions, Faults
from tubemq_spark.testing.port import Host, TLSFiles
from tubemq_spark.testing.servers import Activity, Servers
from tubemq_spark.testing.stored_message import StoredMessage

C = TypeVar("C", bound="EmbeddedTubeMQ")


class EmbeddedTubeMQ(Administration):
    """A TubeMQ cluster on free ports of 127.0.0.1 that any TubeMQ client can use; best used as a context manager.

        with EmbeddedTubeMQ(topics={"demo": 3}) as tubemq:
            tubemq.send("demo", b"hello")
            spark.read.format("tubemq").option("tubemq.master", tubemq.master) ...

    It answers as a real server does, including timeouts and crashes. Nothing is written to disk. Brokers are numbered
    from 1. All times are those of `clock`, which a test may advance.

    Args:
        topics: number of partitions by topic name; every broker gets all topics.
        brokers: how many.
        masters: how many. The first one is active, the others are standbys.
        port: of the first master; 0 takes a free one. `OSError` when it is in use.
        web_port: of the first master's HTTP API, likewise.
        release: the TubeMQ release to behave like; by default that of `config`.
        framing: by default that of the release.
        tls: files with which each server also listens on a second port (`tls_master`).
        max_bytes: memory that a topic may take on one broker, by default as in `config`. Above it the oldest eighth
            is deleted.
        config: the servers' settings, as in `master.ini` and `broker.ini`.

    All methods raise `ConfigError` for impossible arguments, and `RuntimeError` once the cluster is closed.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        masters: int = 1,
        port: int = 0,
        web_port: int = 0,
        release: Release | str | None = None,
        framing: Framing | str | None = None,
        tls: TLSFiles | None = None,
        max_bytes: int | None = None,
        config: ServerConfig | None = None,
    ) -> None:
        if brokers < 1 or masters < 1:
            raise ConfigError(f"a cluster needs at least one master and one broker, not {masters} and {brokers}")
        config = config or ServerConfig()
        self.release = parse_enum(Release, "release", config.release if release is None else release)
        self.framing = self.release.framing if framing is None else parse_enum(Framing, "framing", framing)
        limit = config.topic_max_bytes if max_bytes is None else max_bytes
        config = replace(config, release=self.release, topic_max_bytes=limit)
        self._faults = Faults()
        host = self._new_host()
        self.clock = Clock(self._on_advance, host)
        super().__init__(Servers(config, self.framing, tls, host, self.clock, self._faults))
        try:
            self._on_thread(lambda: self._servers.open(masters, brokers, port, web_port))
            for name, partitions in (topics or {}).items():
                self.create_topic(name, partitions)
        except BaseException:
            self.close()
            raise

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.host.close(self._servers.close)
        if error is None:
            self._faults.raise_errors()

    def __repr__(self) -> str:
        return f"<EmbeddedTubeMQ {self.release.value} at {self.master}>"

    def close(self) -> None:
        """Stop all servers; may be called again.

        Raises the error of a function given to `Calls.run` unless a test has received it already, and `RuntimeError`
        when such a function calls this method.
        """
        self._servers.host.close(self._servers.close)
        self._faults.raise_errors()

    # -- addresses ------------------------------------------------------------------------------------------------

    @property
    def master(self) -> str:
        """All masters as `host:port,host:port`, for `tubemq.master`."""
        return ",".join(server.plain.address for server in self._servers.masters)

    @property
    def web_master(self) -> str:
        """The HTTP APIs of all masters in the same form. They manage topics, as on a real cluster."""
        return ",".join(server.web.address for server in self._servers.masters)

    @property
    def admin_token(self) -> str:
        """The token of HTTP calls that change something."""
        return self._catalog.config.conf_mod_auth_token

    @property
    def tls_master(self) -> str:
        """All masters' TLS ports in the same form; `ConfigError` without `tls`."""
        addresses = [server.tls.address for server in self._servers.masters if server.tls is not None]
        if not addresses:
            raise ConfigError("this cluster has no TLS: create it with tls=TLSFiles(cert, key)")
        return ",".join(addresses)

    @property
    @on_thread
    def broker_ids(self) -> list[int]:
        return sorted(self._servers.brokers)

    @on_thread
    def broker_address(self, broker_id: int) -> str:
        """Return the broker's `host:port`."""
        return self._servers.broker(broker_id).plain.address

    # -- messages -------------------------------------------------------------------------------------------------

    @on_thread
    def send(
        self,
        topic: str,
        body: bytes,
        partition: int | str | None = None,
        attributes: Mapping[str, str] | None = None,
        msg_type: str | None = None,
        msg_time: str | None = None,
    ) -> StoredMessage:
        """Store one message as if a producer had sent it, without a connection and without credentials.

        `partition` is a partition id or `brokerId:partitionId`; by default the partitions of running brokers take
        turns. `msg_time` is `yyyyMMddHHmm`. Raises `ConfigError` when the message or its target is not possible.
        """
        if not isinstance(body, bytes):
            raise ConfigError(f"a message's body is bytes, not {type(body).__name__}: encode it")
        payload, flag = encode_payload(body, encode_attributes(attributes, msg_type, msg_time))
        broker_id, partition_id = self._target(topic, partition)
        server = self._servers.broker(broker_id)
        if not server.is_open:
            raise ConfigError(f"broker {broker_id} is down: start it with start_broker({broker_id})")
        request = pb.SendMessageRequestP2B(
            clientId="embedded",
            topicName=topic,
            partitionId=partition_id,
            data=payload,
            flag=flag,
            checkSum=check_sum(payload),
            sentAddr=0x7F000001,
            msgType=msg_type,
            msgTime=msg_time,
        )
        reply = pb.SendMessageResponseB2P()
        server.service.tick()
        try:
            server.service.append(request, reply)
        except DeclinedError as declined:
            target = f"{broker_id}:{topic}:{partition_id}"
            raise ConfigError(f"a message to {target} was refused: {declined.text}") from None
        return StoredMessage.of_payload(broker_id, partition_id, reply.appendOffset, reply.messageId, payload, flag)

    @on_thread
    def messages(self, topic: str) -> list[StoredMessage]:
        """Return all messages that the topic holds now, by broker, store and position."""
        self._layouts(topic)
        return [
            StoredMessage.of_entry(broker_id, position, entry)
            for broker_id, broker in sorted(self._servers.brokers.items())
            for _, store in sorted(broker.service.stores.of_topic(topic).items())
            for position, entry in store.entries()
            if entry.wire is not None
        ]

    def flush(self, topic: str, store_id: int | None = None, broker_id: int | None = None) -> None:
        """Write the messages in memory into files, where a crash does not lose them."""
        self._each_store(topic, Store.flush, store_id, broker_id)

    def expire(self, topic: str, keep: int = 0, *, data_only: bool = False) -> None:
        """Apply retention: delete all but the last `keep` messages of each store.

        With `data_only` their entries stay in the index, as on a broker whose data files go before its index files:
        readers are not told that they pass over them, and positions of stores and groups stay as they are.
        """
        if keep < 0:
            raise ConfigError(f"expire keeps 0 messages or more, not {keep}")
        self._each_store(topic, lambda store: store.keep(keep, data_only=data_only))

    @on_thread
    def claims(self) -> dict[tuple[str, str, int, int], str]:
        """Return the client id that holds each claimed partition, by (group, topic, broker id, partition id)."""
        self._servers.tick()
        return {
            (key.group, key.topic, broker_id, key.partition_id): claim.client_id
            for broker_id, broker in self._servers.brokers.items()
            for key, claim in broker.service.claims.items()
        }

    @on_thread
    def activity(self) -> Activity:
        """Return what the servers have done since their start."""
        return self._servers.activity()

    # -- servers --------------------------------------------------------------------------------------------------

    @on_thread
    def add_broker(self) -> int:
        """Add a broker without topics and return its id; `create_topic` gives it topics."""
        return self._servers.add_broker()

    @on_thread
    def stop_broker(self, broker_id: int) -> None:
        """Shut the broker down cleanly: it loses nothing, and confirms what readers have in flight."""
        server = self._servers.broker(broker_id)
        if server.is_open:
            server.service.tick()
            server.close()
            server.service.stop()
            self._catalog.brokers[broker_id].online = False  # it unregisters at the masters

    @on_thread
    def crash_broker(self, broker_id: int) -> None:
        """Kill the broker: messages that were not flushed and positions of the last seconds are lost.

        The masters list it as before until they miss its heartbeats.
        """
        server = self._servers.broker(broker_id)
        if not server.is_open:
            return
        access = server.service.access
        run = access.registered_at

        def miss_heartbeats() -> None:
            if not server.is_open and access.registered_at == run:
                self._catalog.brokers[broker_id].online = False

        server.service.tick()
        server.close()
        server.service.crash()
        self._servers.timers.after(self._catalog.config.broker_heartbeat_timeout, miss_heartbeats)

    @on_thread
    def lose_disk(self, broker_id: int) -> None:
        """Kill the broker if it runs, and empty its disk: it will start without messages and positions of groups.

        Positions of release 1.2 stay, because it keeps them in ZooKeeper.
        """
        self.crash_broker(broker_id)
        self._servers.broker(broker_id).service.lose_disk()

    @on_thread
    def start_broker(self, broker_id: int) -> None:
        """Start the broker again, on its old port, or where `swap_addresses` has put it."""
        server = self._servers.broker(broker_id)
        if not server.is_open:
            server.open()
            self._servers.list_address(broker_id)
            server.service.access.registered_at = self.clock.now()
            self._catalog.brokers[broker_id].online = True

    @on_thread
    def swap_addresses(self, first: int, second: int) -> None:
        """Let two brokers that are down start at each other's address, as pods may.

        The masters list each of them at its old address until it has started.
        """
        one, other = self._servers.broker(first), self._servers.broker(second)
        if one is other:
            raise ConfigError(f"a broker cannot swap addresses with itself: {first}")
        running = [number for number, server in ((first, one), (second, other)) if server.is_open]
        if running:
            raise ConfigError(f"broker {running[0]} runs: stop_broker({running[0]}) comes before swap_addresses")
        one.swap_ports(other)

    @on_thread
    def rotate_visit_token(self, times: int = 1) -> None:
        """Create the masters' next visit token now; by themselves they do so every few minutes.

        Brokers accept the last six. They check tokens with
        `ServerConfig(start_visit_token_check=True, visit_token_check_in_valid_time=0.0)`.
        """
        for _ in range(times):
            self._catalog.tokens.rotate()

    @on_thread
    def switch_master(self, lists_fill_after: float = 0.0) -> None:
        """Make the next master the active one; a single master stays active.

        The new one knows no client. Its broker and topic lists stay empty for `lists_fill_after` seconds.
        """
        masters = self._servers.masters
        active = self._servers.active_master
        chosen = masters[(masters.index(active) + 1) % len(masters)].service
        active.service.access.standby = True
        chosen.access.standby = False
        chosen.forget(lists_fill_after)

    @on_thread
    def stop_master(self, number: int = 1) -> None:
        """Stop a master and end its connections; clients must use another one or wait."""
        self._servers.master(number).close()

    @on_thread
    def start_master(self, number: int = 1) -> None:
        """Start a master again, on its old port; it knows no client any more."""
        server = self._servers.master(number)
        if not server.is_open:
            server.service.restart()
            server.open()

    # -- faults ---------------------------------------------------------------------------------------------------

    @on_thread
    def on(
        self,
        method: Method | str,
        *,
        broker: int | None = None,
        master: int | None = None,
        client: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        nth: int = 1,
        times: int | None = None,
    ) -> Calls:
        """Select calls of `method` that match all conditions, from the `nth` on, `times` of them or all.

        A method of the result injects the fault: `tubemq.on("send_message", nth=3, times=1).drop_reply()`. `client` is
        a part of the client id. The error for an unknown method lists the known ones.
        """
        if broker is not None and master is not None:
            raise ConfigError("a call goes to a broker or to a master: name one of them")
        server = None
        if broker is not None:
            server = self._servers.broker(broker).service.name
        elif master is not None:
            server = self._servers.master(master).service.name
        name = method.name.lower() if isinstance(method, Method) else method
        return Calls(self._faults, Conditions(name, server, client, group, topic, partition, nth, times))

    @on_thread
    def clear_faults(self) -> None:
        self._faults.clear()

    def _new_host(self) -> Host:
        """Return the place where the servers run; a subclass may return another."""
        return EventLoopThread()

    @on_thread
    def _on_advance(self) -> None:
        self._servers.tick()
        self._servers.timers.run_due()

    @on_thread
    def _each_store(
        self, topic: str, act: Callable[[Store], None], store_id: int | None = None, broker_id: int | None = None
    ) -> None:
        self._layouts(topic)
        for broker in self._chosen(broker_id):
            for number, store in broker.service.stores.of_topic(topic).items():
                if store_id in (None, number):
                    act(store)
