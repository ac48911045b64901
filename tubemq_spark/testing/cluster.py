"""EmbeddedTubeMQ: a master and brokers in this process, for tests and for a first look."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, Framing, Method
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_payload
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.flow_control import parse_data_limits
from tubemq_spark.testing.broker.group_offsets import Key
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.catalog import Catalog, FlowRule, TopicLayout
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig, parse_enum
from tubemq_spark.testing.faults import Calls, Conditions, Faults
from tubemq_spark.testing.listener import HOST
from tubemq_spark.testing.reply_status import filling_status
from tubemq_spark.testing.servers import Server, Servers
from tubemq_spark.testing.stored_message import StoredMessage
from tubemq_spark.testing.tls import TLSFiles

T = TypeVar("T")


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
        release: whose behaviour is shown where releases differ; by default that of `config`.
        framing: by default that of the release.
        tls: files with which the servers listen on a second port each (`tls_master`) as well.
        max_bytes: of memory that a topic may take on one broker, by default as in `config`; the oldest eighth goes when
            it is more.
        config: the servers' settings, as in `master.ini` and `broker.ini`.

    Raises `ConfigError` for what cannot be, here and in all methods, and `RuntimeError` once it is closed.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        masters: int = 1,
        port: int = 0,
        release: Release | str | None = None,
        framing: Framing | str | None = None,
        tls: TLSFiles | None = None,
        max_bytes: int | None = None,
        config: ServerConfig | None = None,
    ) -> None:
        if brokers < 1 or masters < 1:
            raise ConfigError(f"a cluster has a master and a broker at least, not {masters} and {brokers}")
        config = config or ServerConfig()
        self.release = parse_enum(Release, "release", config.release if release is None else release)
        self.framing = self.release.framing if framing is None else parse_enum(Framing, "framing", framing)
        self.clock = Clock(self._on_advance)
        limit = config.topic_max_bytes if max_bytes is None else max_bytes
        self._faults = Faults()
        self._servers = Servers(
            replace(config, release=self.release, topic_max_bytes=limit), self.framing, tls, self.clock, self._faults
        )
        self._spread = itertools.count()
        self._numbers = itertools.count(1)  # of flow rules and orders
        try:
            self._on_thread(lambda: self._servers.open(masters, brokers, port))
            for name, partitions in (topics or {}).items():
                self.create_topic(name, partitions)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EmbeddedTubeMQ:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.thread.close(self._servers.close)
        if error is None:
            self._faults.raise_errors()

    def __repr__(self) -> str:
        return f"<EmbeddedTubeMQ {self.release.value} at {self.master}>"

    def close(self) -> None:
        """Ends all servers; may be called again. Raises what a function of `Calls.run` raised and nobody was told of.
        `RuntimeError` when called by such a function.
        """
        self._servers.thread.close(self._servers.close)
        self._faults.raise_errors()

    # -- where it is ----------------------------------------------------------------------------------------------

    @property
    def master(self) -> str:
        """All masters as `host:port,host:port`, for `tubemq.master`."""
        return ",".join(f"{HOST}:{server.plain.port}" for server in self._servers.masters)

    @property
    def tls_master(self) -> str:
        """The same, of the ports with TLS; `ConfigError` without `tls`."""
        ports = [server.tls.port for server in self._servers.masters if server.tls is not None]
        if not ports:
            raise ConfigError("this cluster has no TLS: make it with tls=TLSFiles(cert, key)")
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def broker_ids(self) -> list[int]:
        return self._on_thread(lambda: sorted(self._servers.brokers))

    def broker_address(self, broker_id: int) -> str:
        """The broker's `host:port`."""
        return self._on_thread(lambda: f"{HOST}:{self._servers.broker(broker_id).plain.port}")

    @property
    def topics(self) -> list[str]:
        return self._on_thread(lambda: sorted(self._catalog.topics))

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
        if brokers is not None and not brokers:
            raise ConfigError(f"topic {name} needs a broker to be on")

        def create() -> None:
            for broker_id in self._servers.brokers if brokers is None else brokers:
                broker = self._servers.broker(broker_id).service
                before = self._catalog.layout(name, broker_id) or TopicLayout(partitions, stores)
                layout = replace(
                    before,
                    partitions=max(partitions, before.partitions),
                    stores=max(stores, before.stores),
                    max_msg_size=before.max_msg_size if max_msg_size is None else max_msg_size,
                )
                self._catalog.topics.setdefault(name, {})[broker_id] = layout
                broker.resize(name, layout)

        self._on_thread(create)

    def close_topic(self, name: str, *, publish: bool = True, subscribe: bool = True) -> None:
        """Takes it from producers, consumers or both, until `open_topic`."""
        self._set_access(name, publish=not publish, subscribe=not subscribe)

    def open_topic(self, name: str) -> None:
        self._set_access(name, publish=True, subscribe=True)

    def delete_topic(self, name: str) -> None:
        """With all its messages; the groups keep their positions."""

        def delete() -> None:
            self._layouts(name)
            del self._catalog.topics[name]
            for broker in self._servers.brokers.values():
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
        """Stores one message as if a producer had sent it, without a connection and without credentials.

        `partition` is a partition id, or `brokerId:partitionId`; without it the messages go round the brokers that run.
        `msg_time` is `yyyyMMddHHmm`. `ConfigError` when the message or its target cannot be.
        """
        if not isinstance(body, bytes):
            raise ConfigError(f"a message's body is bytes, not {type(body).__name__}: encode it")
        payload, flag = encode_payload(body, encode_attributes(attributes, msg_type, msg_time))

        def append() -> StoredMessage:
            broker_id, partition_id = self._target(topic, partition)
            server = self._servers.broker(broker_id)
            if not server.is_open:
                raise ConfigError(f"broker {broker_id} is down: bring it back with start_broker({broker_id})")
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
            with filling_status(reply):
                server.service.append(request, reply)
            if reply.errCode != ErrCode.SUCCESS:
                raise ConfigError(f"a message to {broker_id}:{topic}:{partition_id} was refused: {reply.errMsg}")
            return StoredMessage.of_payload(broker_id, partition_id, reply.appendOffset, reply.messageId, payload, flag)

        return self._on_thread(append)

    def messages(self, topic: str) -> list[StoredMessage]:
        """All that the topic holds now, by broker, store and position."""

        def collect() -> list[StoredMessage]:
            self._layouts(topic)
            return [
                StoredMessage.of_entry(broker_id, position, entry)
                for broker_id, broker in sorted(self._servers.brokers.items())
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
        if keep < 0:
            raise ConfigError(f"expire keeps 0 messages or more, not {keep}")
        self._each_store(topic, lambda store: store.keep(keep))

    # -- groups ---------------------------------------------------------------------------------------------------

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Where the group stands, confirmed; None when it has no position there."""

        def look() -> int | None:
            self._target(topic, f"{broker_id}:{partition}")
            return self._servers.broker(broker_id).service.offsets.confirmed(Key(group, topic, partition))

        return self._on_thread(look)

    def move_group(self, group: str, topic: str, broker_id: int, partition: int, position: int) -> None:
        """Sets where the group stands, as an administrator does, whoever reads there: the next read begins there."""

        def move() -> None:
            self._target(topic, f"{broker_id}:{partition}")
            broker = self._servers.broker(broker_id).service
            store = broker.store(topic, partition // STORE_PARTITION_BASE)
            within = 0 if store is None else max(store.min_offset, min(position, store.max_offset))
            broker.offsets.move(Key(group, topic, partition), within)

        self._on_thread(move)

    def claims(self) -> dict[tuple[str, str, int, int], str]:
        """The client ids that hold partitions now, by group, topic, broker id and partition id."""

        def collect() -> dict[tuple[str, str, int, int], str]:
            self._servers.tick()
            return {
                (key.group, key.topic, broker_id, key.partition_id): claim.client_id
                for broker_id, broker in self._servers.brokers.items()
                for key, claim in broker.service.claims.items()
            }

        return self._on_thread(collect)

    def remove_group(self, group: str, broker_id: int | None = None) -> None:
        """Forgets where the group stands, on all brokers or on one."""

        def remove() -> None:
            for broker in self._chosen(broker_id):
                broker.service.offsets.remove(group)

        self._on_thread(remove)

    def authorize(self, topic: str, *groups: str) -> None:
        """From now on only groups that were named here may read the topic. Takes them from its blacklist, too."""

        def change() -> None:
            self._layouts(topic)
            rules = self._catalog.rules
            rules.authorized.setdefault(topic, set()).update(groups)
            rules.blacklist -= {(topic, group) for group in groups}

        self._on_thread(change)

    def revoke(self, topic: str, group: str) -> None:
        """Puts the group on the topic's blacklist."""

        def change() -> None:
            self._layouts(topic)
            self._catalog.rules.blacklist.add((topic, group))
            self._catalog.rules.authorized.get(topic, set()).discard(group)

        self._on_thread(change)

    def restrict(self, topic: str, group: str, *msg_types: str) -> None:
        """Lets the group read these types of the topic alone, which must be under authorisation. Without types lifts
        that.
        """

        def change() -> None:
            self._layouts(topic)
            if topic not in self._catalog.rules.authorized:
                raise ConfigError(f"topic {topic} is not under authorisation: call authorize({topic!r}, …) first")
            if msg_types:
                self._catalog.rules.filters[topic, group] = frozenset(msg_types)
            else:
                self._catalog.rules.filters.pop((topic, group), None)

        self._on_thread(change)

    def consume_from_max(self, group: str) -> None:
        """Orders the group to go on at the latest; clients that obey (Java's with client-side balance) do so at their
        next heartbeat.
        """

        def change() -> None:
            self._catalog.rules.from_max[group] = next(self._numbers)

        self._on_thread(change)

    def set_flow_rule(self, info: str, group: str | None = None, *, qry_priority_id: int = 301) -> None:
        """A flow rule in the admin API's JSON, the default one or that of a group."""
        try:
            parse_data_limits(info)
        except ValueError as error:
            raise ConfigError(str(error)) from None

        def change() -> None:
            rule = FlowRule(next(self._numbers), info, qry_priority_id)
            if group is None:
                self._catalog.default_flow = rule
            else:
                self._catalog.group_flows[group] = rule

        self._on_thread(change)

    # -- servers --------------------------------------------------------------------------------------------------

    def add_broker(self) -> int:
        """One more broker, without topics until `create_topic` is called again; gives its id."""
        return self._on_thread(self._servers.add_broker)

    def stop_broker(self, broker_id: int) -> None:
        """An orderly stop: nothing is lost, and what readers have in flight is confirmed."""
        self._on_thread(lambda: self._servers.stop_broker(broker_id))

    def crash_broker(self, broker_id: int) -> None:
        """A kill: messages that were not flushed and positions of the last seconds are lost. The masters list it as
        before until they miss its heartbeats.
        """
        self._on_thread(lambda: self._servers.crash_broker(broker_id))

    def start_broker(self, broker_id: int) -> None:
        """On the port that it had."""
        self._on_thread(lambda: self._servers.start_broker(broker_id))

    def rotate_visit_token(self, times: int = 1) -> None:
        """The masters make a new visit token, as they do every few minutes. Brokers know the last six. They check them
        with `ServerConfig(start_visit_token_check=True, visit_token_check_in_valid_time=0.0)`.
        """
        for _ in range(times):
            self._on_thread(self._servers.rotate_visit_token)

    def switch_master(self, lists_fill_after: float = 0.0) -> None:
        """The next master becomes the active one (the same when there is but one). It knows no client, and no broker
        for so many seconds: its lists are empty until then.
        """
        self._on_thread(lambda: self._servers.switch_master(lists_fill_after))

    def stop_master(self, number: int = 1) -> None:
        """Its connections end; clients have to go to another, or wait."""
        self._on_thread(lambda: self._servers.master(number).close())

    def start_master(self, number: int = 1) -> None:
        """On the port that it had. It knows no client any more."""
        self._on_thread(lambda: self._servers.start_master(number))

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

        `client` is a part of the client id. The error for an unknown method names those that there are.
        """
        if broker is not None and master is not None:
            raise ConfigError("a call goes to a broker or to a master: name one of them")
        server = None
        if broker is not None:
            self._on_thread(lambda: self._servers.broker(broker))
            server = f"broker {broker}"
        elif master is not None:
            self._on_thread(lambda: self._servers.master(master))
            server = f"master {master}"
        name = method.name.lower() if isinstance(method, Method) else method
        return Calls(self._faults, Conditions(name, server, client, group, topic, partition, nth, times))

    def clear_faults(self) -> None:
        self._on_thread(self._faults.clear)

    # -- within ---------------------------------------------------------------------------------------------------

    @property
    def _catalog(self) -> Catalog:
        return self._servers.catalog

    def _on_thread(self, function: Callable[[], T]) -> T:
        return self._servers.thread.call(function)

    def _on_advance(self) -> None:
        def catch_up() -> None:
            self._servers.tick()
            self._servers.thread.run_timers()

        self._on_thread(catch_up)

    # The following are called on the servers' thread.

    def _layouts(self, topic: str) -> dict[int, TopicLayout]:
        try:
            return self._catalog.topics[topic]
        except KeyError:
            raise ConfigError(f"there is no topic {topic!r}: make it with create_topic") from None

    def _chosen(self, broker_id: int | None) -> list[Server[BrokerService]]:
        return list(self._servers.brokers.values()) if broker_id is None else [self._servers.broker(broker_id)]

    def _target(self, topic: str, partition: int | str | None) -> tuple[int, int]:
        layouts = self._layouts(topic)
        targets = [(n, p) for n, layout in sorted(layouts.items()) for p in layout.partition_ids]
        if partition is None:
            running = [target for target in targets if self._servers.broker(target[0]).is_open]
            if not running:
                raise ConfigError(f"all brokers of topic {topic} are down: bring one back with start_broker")
            return running[next(self._spread) % len(running)]
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
        def run() -> None:
            self._layouts(topic)
            for broker in self._chosen(broker_id):
                for number, store in broker.service.stores_of(topic).items():
                    if store_id in (None, number):
                        act(store)

        self._on_thread(run)

    def _set_access(self, topic: str, *, publish: bool, subscribe: bool) -> None:
        def change() -> None:
            for layout in self._layouts(topic).values():
                layout.accept_publish, layout.accept_subscribe = publish, subscribe

        self._on_thread(change)
