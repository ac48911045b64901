"""EmbeddedTubeMQ: a master and brokers in this process, for tests and for a first look."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Generic, TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, Framing, Method
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import (
    check_sum,
    encode_attributes,
    encode_payload,
)
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.authentication import VisitTokens, check_authorization
from tubemq_spark.testing.broker.flow import parse_data_limits
from tubemq_spark.testing.broker.offsets import Key
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.catalog import BrokerEntry, Catalog, FlowRule, Layout
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import Service
from tubemq_spark.testing.faults import Calls, Conditions, Faults
from tubemq_spark.testing.master.service import MasterService
from tubemq_spark.testing.messages import StoredMessage
from tubemq_spark.testing.replies import answering
from tubemq_spark.testing.server import HOST, Listener, LoopThread, Node
from tubemq_spark.testing.tls import TLSFiles

T = TypeVar("T")
S = TypeVar("S")

MEBIBYTE = 1024 * 1024


class EmbeddedTubeMQ:
    """A TubeMQ cluster on free ports of 127.0.0.1 that any TubeMQ client can use; best used as a context manager.

        with EmbeddedTubeMQ(topics={"demo": 3}) as tubemq:
            tubemq.send("demo", b"hello")
            spark.read.format("tubemq").option("tubemq.master", tubemq.master) ...

    It answers as a real server does, timeouts and crashes included. Nothing is written to disk. Brokers are numbered
    from 1. All times are those of `clock`, which a test may advance.

    Args:
        topics: name to number of partitions; all of them on every broker.
        brokers, masters: how many. The first master is the active one, the others stand by.
        port: of the first master; 0 takes a free one. `OSError` when it is in use.
        release: whose behaviour is shown where releases differ.
        framing: by default that of the release.
        tls: files with which the servers listen on a second port each (`tls_master`) as well.
        max_bytes: what a topic may keep on one broker; the oldest eighth goes when it is more.
        config: the servers' settings, as in `master.ini` and `broker.ini`. Its release counts for nothing.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        masters: int = 1,
        port: int = 0,
        release: Release | str = Release.V2_5,
        framing: Framing | None = None,
        tls: TLSFiles | None = None,
        max_bytes: int = 256 * MEBIBYTE,
        config: ServerConfig | None = None,
    ) -> None:
        if brokers < 1 or masters < 1:
            raise ValueError(f"a cluster has a master and a broker at least, not {masters} and {brokers}")
        self.release = Release(release)
        self.framing = framing or self.release.framing
        self.clock = Clock(self._on_advance)
        self._faults = Faults()
        self._config = replace(
            config or ServerConfig(),
            release=self.release,
            topic_max_bytes=max_bytes,
        )
        self._catalog = Catalog()
        self._tokens = VisitTokens(self.clock, self._config)
        self._tls = tls
        self._thread = LoopThread(self.clock)
        self._brokers: dict[int, _Server[BrokerService]] = {}
        self._masters: list[_Server[MasterService]] = []
        self._closed = False
        self._spread = itertools.count()
        self._rule_ids = itertools.count(1)
        self._open_all(masters, brokers, port)
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def __enter__(self) -> EmbeddedTubeMQ:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all servers; may be called again."""
        if self._closed:
            return
        self._closed = True

        def end() -> None:
            for master in self._masters:
                master.close()
            for broker in self._brokers.values():
                broker.close()

        self._thread.call(end)
        self._thread.close()

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def master(self) -> str:
        """All masters as `host:port,host:port`, for `tubemq.master`."""
        return ",".join(f"{HOST}:{server.plain.port}" for server in self._masters)

    @property
    def tls_master(self) -> str:
        """The same, of the ports with TLS; `ConfigError` without `tls`."""
        ports = [server.tls.port for server in self._masters if server.tls is not None]
        if not ports:
            raise ConfigError("this cluster has no TLS: make it with tls=TLSFiles(cert, key)")
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    def broker_address(self, broker_id: int) -> str:
        """The broker's `host:port`."""
        return f"{HOST}:{self._broker(broker_id).plain.port}"

    @property
    def topics(self) -> list[str]:
        return sorted(self._catalog.topics)

    # -- topics ---------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 3,
        stores: int = 1,
        *,
        max_msg_size: int | None = None,
        brokers: Collection[int] | None = None,
    ) -> None:
        """A topic on every broker, or on `brokers`, with `stores` stores of `partitions` partitions each. One that is
        there gets more of them. `max_msg_size` is in bytes, by default the cluster's.
        """
        if re.fullmatch(r"[a-zA-Z]\w{0,63}", name, re.ASCII) is None:
            raise ConfigError(
                f"the topic name {name!r} must start with a letter and have 1 to 64 letters, digits and _"
            )
        if partitions < 1 or stores < 1:
            raise ConfigError(f"topic {name} needs a partition and a store at least, not {partitions} and {stores}")
        chosen = {broker_id: self._broker(broker_id) for broker_id in (self._brokers if brokers is None else brokers)}

        def create() -> None:
            for broker_id, broker in chosen.items():
                before = self._catalog.layout(name, broker_id) or Layout(0, 0)
                layout = Layout(max(partitions, before.partitions), max(stores, before.stores), max_msg_size)
                self._catalog.topics.setdefault(name, {})[broker_id] = layout
                for store in broker.service.stores_of(name).values():
                    store.set_partitions(layout.partitions)
            self._catalog.changed()

        self._on_thread(create)

    def close_topic(self, name: str, *, publish: bool = True, subscribe: bool = True) -> None:
        """Takes it from producers, consumers or both, until `open_topic`."""
        self._set_access(name, publish=not publish, subscribe=not subscribe)

    def open_topic(self, name: str) -> None:
        self._set_access(name, publish=True, subscribe=True)

    def delete_topic(self, name: str) -> None:
        """With all its messages; the groups keep their positions."""
        self._layouts(name)

        def delete() -> None:
            del self._catalog.topics[name]
            self._catalog.changed()
            for broker in self._brokers.values():
                broker.service.drop_topic(name)

        self._on_thread(delete)

    # -- messages -------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes,
        partition: int | str | None = None,
        attributes: Mapping[str, str] | None = None,
        msg_type: str | None = None,
        msg_time: str | None = None,
    ) -> StoredMessage:
        """Sends one message as a producer does, without a connection.

        `partition` is a partition id, or `brokerId:partitionId`; without it the messages go round. `msg_time` is
        `yyyyMMddHHmm`. `ConfigError` when the message or its target cannot be.
        """
        broker_id, partition_id = self._target(topic, partition)
        payload, flag = encode_payload(body, encode_attributes(attributes, msg_type, msg_time))
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
        broker = self._broker(broker_id).service
        reply = pb.SendMessageResponseB2P()

        def append() -> None:
            broker.tick()
            with answering(reply):
                broker.append(request, reply)

        self._on_thread(append)
        if reply.errCode != ErrCode.SUCCESS:
            raise ConfigError(f"a message to {broker_id}:{topic}:{partition_id} was refused: {reply.errMsg}")
        return StoredMessage.of_payload(broker_id, partition_id, reply.appendOffset, reply.messageId, payload, flag)

    def messages(self, topic: str) -> list[StoredMessage]:
        """All that the topic holds now, by broker, store and position."""
        self._layouts(topic)

        def collect() -> list[StoredMessage]:
            return [
                StoredMessage.of_entry(broker_id, position, entry)
                for broker_id, broker in sorted(self._brokers.items())
                for _, store in sorted(broker.service.stores_of(topic).items())
                for position, entry in store.entries()
                if entry.wire is not None
            ]

        return self._on_thread(collect)

    def flush(self, topic: str, store_id: int | None = None, broker_id: int | None = None) -> None:
        """Writes what is in memory into files, where a crash leaves it."""
        self._each_store(topic, Store.flush, store_id, broker_id)

    def expire(self, topic: str, keep: int = 0) -> None:
        """Retention: only the last `keep` messages of each store stay."""
        self._each_store(topic, lambda store: store.keep(keep))

    # -- groups ---------------------------------------------------------------------------------------------------

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Where the group stands, confirmed; None when it has no position there."""
        broker = self._broker(broker_id).service
        return self._on_thread(lambda: broker.offsets.confirmed(Key(group, topic, partition)))

    def move_group(self, group: str, topic: str, broker_id: int, partition: int, position: int) -> None:
        """Sets where the group stands, as an administrator does, whoever reads there: the next read begins there."""
        self._target(topic, f"{broker_id}:{partition}")
        broker = self._broker(broker_id).service

        def move() -> None:
            store = broker.store(topic, partition // STORE_PARTITION_BASE)
            within = 0 if store is None else max(store.min_offset, min(position, store.max_offset))
            broker.offsets.move(Key(group, topic, partition), within)

        self._on_thread(move)

    def claims(self) -> dict[tuple[str, str, int, int], str]:
        """The client ids that hold partitions now, by group, topic, broker id and partition id."""

        def collect() -> dict[tuple[str, str, int, int], str]:
            self._tick()
            return {
                (key.group, key.topic, broker_id, key.partition_id): claim.client_id
                for broker_id, broker in self._brokers.items()
                for key, claim in broker.service.claims.items()
            }

        return self._on_thread(collect)

    def remove_group(self, group: str) -> None:
        """Forgets where the group stands, everywhere."""

        def remove() -> None:
            for broker in self._brokers.values():
                broker.service.offsets.remove(group)

        self._on_thread(remove)

    def authorize(self, topic: str, *groups: str) -> None:
        """From now on only groups that were named here may read the topic."""

        def change() -> None:
            self._catalog.rules.authorized.setdefault(topic, set()).update(groups)
            self._catalog.changed()

        self._on_thread(change)

    def revoke(self, topic: str, group: str) -> None:
        """Puts the group on the topic's blacklist."""

        def change() -> None:
            self._catalog.rules.blacklist.add((topic, group))
            self._catalog.rules.authorized.get(topic, set()).discard(group)
            self._catalog.changed()

        self._on_thread(change)

    def set_flow_rule(self, info: str, group: str | None = None, *, qry_priority_id: int = 301) -> None:
        """A flow rule in the admin API's JSON, the default one or that of a group; `ValueError` when it is none."""
        parse_data_limits(info)

        def change() -> None:
            rule = FlowRule(next(self._rule_ids), info, qry_priority_id)
            if group is None:
                self._catalog.default_flow = rule
            else:
                self._catalog.group_flows[group] = rule

        self._on_thread(change)

    # -- servers --------------------------------------------------------------------------------------------------

    def add_broker(self) -> int:
        """One more broker, without topics until `create_topic` is called again; gives its id."""

        def add() -> int:
            broker_id = max(self._brokers) + 1
            self._add_broker(broker_id)
            self._catalog.changed()
            return broker_id

        return self._on_thread(add)

    def stop_broker(self, broker_id: int) -> None:
        """An orderly stop: nothing is lost, and what readers have in flight is confirmed."""

        def stop(broker: BrokerService) -> None:
            broker.stop()
            self._catalog.brokers[broker_id].online = False  # it says good-bye to the masters

        self._end_broker(broker_id, stop)

    def crash_broker(self, broker_id: int) -> None:
        """A kill: messages that were not flushed and positions of the last seconds are lost. The masters list it as
        before until they miss its heartbeats.
        """
        server = self._broker(broker_id)

        def miss() -> None:
            self._catalog.brokers[broker_id].online = server.plain.is_open

        def crash(broker: BrokerService) -> None:
            broker.crash()
            self._thread.after(self._config.broker_heartbeat_timeout, miss)

        self._end_broker(broker_id, crash)

    def start_broker(self, broker_id: int) -> None:
        server = self._broker(broker_id)

        def start() -> None:
            server.open()
            self._catalog.brokers[broker_id].online = True

        self._on_thread(start)

    def switch_master(self, lists_fill_after: float = 0.0) -> None:
        """The next master becomes the active one (the same when there is but one). It knows no client, and no broker
        for so many seconds: its lists are empty until then.
        """

        def switch() -> None:
            active = next(n for n, server in enumerate(self._masters) if not server.service.standby)
            for server in self._masters:
                server.service.standby = True
            chosen = self._masters[(active + 1) % len(self._masters)].service
            chosen.standby = False
            chosen.forget(lists_fill_after)

        self._on_thread(switch)

    def stop_master(self, number: int = 1) -> None:
        """Its connections end; clients have to go to another, or wait."""
        self._on_thread(self._masters[number - 1].close)

    def start_master(self, number: int = 1) -> None:
        """It knows no client any more."""

        def start() -> None:
            self._masters[number - 1].service.forget()
            self._masters[number - 1].open()

        self._on_thread(start)

    # -- faults ---------------------------------------------------------------------------------------------------

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
        """Calls of `method` that fit all conditions, from the `nth` on, `times` of them or all; say then what becomes
        of them: `tubemq.on("send_message", nth=3, times=1).drop_reply()`.

        `client` is a part of the client id. `ValueError` names the methods that there are.
        """
        name = method.name.lower() if isinstance(method, Method) else method
        server = f"broker {broker}" if broker is not None else f"master {master}" if master is not None else None
        return Calls(self._faults, Conditions(name, server, client, group, topic, partition, nth, times))

    def clear_faults(self) -> None:
        self._on_thread(self._faults.clear)

    # -- within ---------------------------------------------------------------------------------------------------

    def _on_thread(self, function: Callable[[], T]) -> T:
        if self._closed:
            raise RuntimeError("this EmbeddedTubeMQ is closed")
        return self._thread.call(function)

    def _on_advance(self) -> None:
        def catch_up() -> None:
            self._tick()
            self._thread.run_timers()

        self._on_thread(catch_up)

    def _tick(self) -> None:
        for master in self._masters:
            master.service.tick()
        for broker in self._brokers.values():
            broker.service.tick()

    def _open_all(self, masters: int, brokers: int, port: int) -> None:
        try:
            self._on_thread(lambda: self._open(masters, brokers, port))
        except BaseException:
            self.close()
            raise

    def _open(self, masters: int, brokers: int, port: int) -> None:
        for number in range(1, masters + 1):
            service = MasterService(self._catalog, self.clock, self._config, self._tokens)
            service.standby = number > 1
            name = f"master {number}"
            plain = self._listener(name, service.service, service.tick)
            tls = None
            if self._tls is not None:
                tls = self._listener(name, service.tls_service, service.tick, self._tls)
            self._masters.append(_Server(service, plain, tls))
        self._masters[0].plain.port = port
        for broker_id in range(1, brokers + 1):
            self._add_broker(broker_id)
        for server in self._masters:
            server.open()
            server.service.address = f"{HOST}:{server.plain.port}"

    def _add_broker(self, broker_id: int) -> None:
        registered_at = self.clock.now()

        def authorize(info: pb.AuthorizedInfo, produces: bool) -> None:
            check_authorization(
                info, self._config, self.clock, self._tokens, produce=produces, registered_at=registered_at
            )

        service = BrokerService(broker_id, HOST, self._catalog, self._config, self.clock, authorize)
        name = f"broker {broker_id}"
        plain = self._listener(name, service.service, service.tick)
        tls = None if self._tls is None else self._listener(name, service.service, service.tick, self._tls)
        server = _Server(service, plain, tls)
        server.open()
        self._brokers[broker_id] = server
        self._catalog.brokers[broker_id] = BrokerEntry(broker_id, HOST, plain.port, None if tls is None else tls.port)

    def _listener(self, name: str, service: Service, tick: Callable[[], None], tls: TLSFiles | None = None) -> Listener:
        return Listener(Node(name, service, tick), self._thread, self._faults, self.framing, tls)

    def _end_broker(self, broker_id: int, end: Callable[[BrokerService], None]) -> None:
        server = self._broker(broker_id)

        def run() -> None:
            server.service.tick()
            server.close()
            end(server.service)

        self._on_thread(run)

    def _broker(self, broker_id: int) -> _Server[BrokerService]:
        try:
            return self._brokers[broker_id]
        except KeyError:
            raise ConfigError(f"there is no broker {broker_id}; the brokers are {self.broker_ids}") from None

    def _layouts(self, topic: str) -> dict[int, Layout]:
        try:
            return self._catalog.topics[topic]
        except KeyError:
            raise ConfigError(f"there is no topic {topic!r}: make it with create_topic") from None

    def _target(self, topic: str, partition: int | str | None) -> tuple[int, int]:
        layouts = self._layouts(topic)
        targets = [(n, p) for n, layout in sorted(layouts.items()) for p in layout.partition_ids]
        if partition is None:
            return targets[next(self._spread) % len(targets)]
        broker_text, _, partition_text = str(partition).rpartition(":")
        try:
            target = int(broker_text or min(layouts)), int(partition_text)
        except ValueError:
            raise ConfigError(f"{partition!r} is no partition id and no brokerId:partitionId") from None
        if target not in targets:
            known = ", ".join(f"{n}:{p}" for n, p in targets)
            raise ConfigError(f"topic {topic} has no partition {partition!r}; it has {known}")
        return target

    def _each_store(
        self, topic: str, act: Callable[[Store], None], store_id: int | None = None, broker_id: int | None = None
    ) -> None:
        self._layouts(topic)

        def run() -> None:
            for number, broker in self._brokers.items():
                for store, its_store in broker.service.stores_of(topic).items():
                    if store_id in (None, store) and broker_id in (None, number):
                        act(its_store)

        self._on_thread(run)

    def _set_access(self, topic: str, *, publish: bool, subscribe: bool) -> None:
        layouts = self._layouts(topic)

        def change() -> None:
            for layout in layouts.values():
                layout.accept_publish, layout.accept_subscribe = publish, subscribe
            self._catalog.changed()

        self._on_thread(change)


class _Server(Generic[S]):
    """A service and its ports."""

    def __init__(self, service: S, plain: Listener, tls: Listener | None) -> None:
        self.service = service
        self.plain = plain
        self.tls = tls

    def open(self) -> None:
        for listener in self._listeners():
            listener.open()

    def close(self) -> None:
        for listener in self._listeners():
            listener.close()

    def _listeners(self) -> list[Listener]:
        return [self.plain] if self.tls is None else [self.plain, self.tls]
