# SPDX-License-Identifier: Apache-2.0
"""The cluster of a history, embedded or real, and the ledger of its messages."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tests.histories.ledger import CRASH, ITSELF, RETENTION, Entry, Extent, Ledger, Positions, Row, Store, store_of
from tests.histories.script import Setting, TopicShape
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken
from tubemq_spark.errors import ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, Framing
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.metadata import Broker, Partition, parse_master_addresses
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, ServerConfig
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.stored_message import StoredMessage

PRODUCER_RETRY_FOR = 0.3  # seconds for which a producer retries
PATIENCE = 60.0  # seconds for which the rival tries to release its partitions when all servers run
RIVAL = "rival"
_FETCHED = 5  # entries of a fetch that ends late
GROUP = "readers"

Seen = Callable[[], Positions]


def pick(choices: Sequence[Any], number: int) -> Any:
    """Return item `number`, modulo the number of items."""
    return choices[number % len(choices)]


class World(Protocol):
    """A cluster. `seen` returns the ends of the query's last logged micro-batch. `topics` are the readable ones."""

    ledger: Ledger
    seen: Seen
    group: str

    @property
    def master(self) -> str: ...

    @property
    def framing(self) -> Framing: ...

    @property
    def topics(self) -> list[str]: ...

    @property
    def broker_ids(self) -> list[int]: ...

    def partitions(self) -> list[Partition]: ...

    def change(self, kind: str, args: dict[str, Any], types: Sequence[str]) -> None:
        """Carry out an event of the cluster."""
        ...

    def begin_group(self, partition: Partition, count: int, position: int, types: Sequence[str]) -> None:
        """Send `count` messages and move the group to `position`, before the query begins."""
        ...

    def end_troubles(self) -> None:
        """End faults and rivals, and start all servers that are down."""
        ...

    def sync(self, how: str) -> bool: ...

    def check_acknowledged(self) -> None: ...

    def group_offset(self, partition: Partition) -> int | None: ...

    def claims(self) -> dict[Partition, str]:
        """Return the client that holds each partition of the group; nothing if the server cannot show that."""
        ...

    def let_claims_expire(self) -> None: ...

    def pass_time(self, seconds: float) -> None:
        """Advance the servers' clock, if that is possible."""
        ...

    def end_fetch_later(self, stage: int, attempt: int, late: int) -> None:
        """Let the broker end a running fetch of a killed task after `late` more fetches have begun. Do nothing if the
        server cannot do that."""
        ...

    def close(self) -> None: ...


class Rivals:
    """Another consumer of the group, which only claims partitions."""

    def __init__(
        self,
        settings: Callable[[], ClientSettings],
        broker: Callable[[int], Broker],
        group: str,
        token: VisitToken = NO_TOKEN,
    ) -> None:
        self._settings, self._broker, self._group, self._token = settings, broker, group, token
        self.held: list[Partition] = []

    def come(self, partition: Partition) -> bool:
        calls = GroupRequests(self._settings(), self._group, self._token)
        call = calls.register(self._broker(partition.broker_id), partition, RIVAL)
        try:
            reply = unwrap_reply(send_requests(self._settings(), [call])[0], pb.RegisterResponseB2C, call.what)
        except TubeMQError:
            self.held.append(partition)  # the broker may have received the request
            return True
        if reply.errCode == 200:
            self.held.append(partition)
        return reply.errCode == 200

    def leave(self, timeout: float = 1.0) -> None:
        """Release all partitions. Those whose broker does not answer within `timeout` seconds are released the next
        time."""
        calls = GroupRequests(self._settings(), self._group, self._token)
        asked = [calls.unregister(self._broker(p.broker_id), p, RIVAL) for p in self.held]
        outcomes = send_requests(self._settings(), asked, timeout)
        left = map(self._has_left, asked, outcomes)
        self.held = [partition for partition, is_free in zip(self.held, left, strict=True) if not is_free]

    @staticmethod
    def _has_left(call: ServerRequest, outcome: Response | Failure | TransportError | ProtocolError) -> bool:
        try:
            reply = unwrap_reply(outcome, pb.RegisterResponseB2C, call.what)
        except TubeMQError:
            return False
        return reply.errCode in (ErrCode.SUCCESS, ErrCode.HB_NO_NODE, ErrCode.DUPLICATE_PARTITION)


def chosen(partitions: Sequence[Partition], args: dict[str, Any]) -> list[Partition]:
    """Return the partitions that a `send` writes to."""
    return list(dict.fromkeys(pick(partitions, args["to"] + n) for n in range(args["spread"])))


def put_fault(calls: Calls, how: str, fetches: int) -> None:
    if how == "end_late":
        calls.end_late(fetches)
    elif how == "delay":
        calls.delay(0.05)
    elif how == "fail":
        calls.fail(ErrCode.SERVICE_UNAVAILABLE, "by the history")
    elif how == "fail_limit":
        calls.fail(ErrCode.SERVER_CONSUME_SPEED_LIMIT, "by the history")
    else:
        getattr(calls, how)()


def refused_refill(ledger: Ledger, seen: Positions, store: Store) -> bool:
    """Return True if nobody may send to `store` now, because of the connector's one known limit.

    A store that lost a tail uses the tail's positions for new messages. If the query had read the tail, it continues at
    the end of the store that it finds next. It cannot distinguish messages that were sent before that from those that
    it had read. So the histories send nothing to a store while the query's offset log reaches beyond the store's end.
    The environment variable TUBEMQ_HISTORIES_REFILL removes this rule.
    """
    if os.environ.get("TUBEMQ_HISTORIES_REFILL"):
        return False
    extent = ledger.extents.get(store)
    return extent is not None and any(store_of(p) == store and at > extent.end for p, at in seen.items())


class EmbeddedWorld:
    """A `World` on a new embedded cluster."""

    def __init__(self, setting: Setting) -> None:
        usual = {"offset_file_interval": 5.0, "visit_token_check_in_valid_time": 0.0}
        config = ServerConfig(**{**usual, **setting.config})  # type: ignore[arg-type]
        self.tubemq = EmbeddedTubeMQ(
            brokers=setting.brokers, masters=setting.masters, framing=Framing.STANDARD, release=Release.V2_5,
            config=config,
        )  # fmt: skip
        self.ledger = Ledger()
        self.seen: Seen = dict
        self.group = GROUP
        self.down: set[int] = set()
        self._numbers = itertools.count()
        self._shapes: dict[tuple[str, int], TopicShape] = {}
        token = VisitToken(lambda: self.tubemq._on_thread(lambda: self.tubemq._servers._tokens.current))
        self._rivals = Rivals(self._settings, self._broker, self.group, token)
        for name, shape in setting.topics.items():
            self.grow(name, shape.partitions, shape.stores)

    def close(self) -> None:
        self.tubemq.clear_faults()
        forget_servers()
        self.tubemq.close()

    @property
    def master(self) -> str:
        return self.tubemq.master

    @property
    def framing(self) -> Framing:
        return self.tubemq.framing

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._shapes})

    @property
    def broker_ids(self) -> list[int]:
        return self.tubemq.broker_ids

    def partitions(self) -> list[Partition]:
        return [
            Partition(broker_id, topic, store * STORE_PARTITION_BASE + number)
            for (topic, broker_id), shape in sorted(self._shapes.items())
            for store in range(shape.stores)
            for number in range(shape.partitions)
        ]

    def change(self, kind: str, args: dict[str, Any], types: Sequence[str]) -> None:
        topics, brokers = self.topics, self.broker_ids
        if kind == "send":
            self.send(chosen(self.partitions(), args), args["count"], args["size"], types)
        elif kind == "produce":
            self.produce(pick(topics, args["topic"]), args["count"], args["size"], types)
        elif kind == "crash":
            self.crash(pick(brokers, args["broker"]))
        elif kind == "start":
            self.start(pick(brokers, args["broker"]))
        elif kind == "restart":
            self.restart(pick(brokers, args["broker"]))
        elif kind == "switch_master":
            self.tubemq.switch_master(args["empty_for"])
        elif kind == "fault":
            calls = self.tubemq.on(args["method"], nth=args["nth"], times=args["times"])
            put_fault(calls, args["how"], args.get("fetches", 0))
        elif kind == "during":
            call = self.tubemq.on(args["method"], nth=args["nth"], times=1)
            call.run(lambda: self.change(args["what"], args["args"], types), after=args["after"])
        elif kind == "expire":
            self.expire(pick(topics, args["topic"]), args["keep"])
        elif kind == "flush":
            self.tubemq.flush(pick(topics, args["topic"]))
        elif kind == "advance":
            self.tubemq.clock.advance(args["seconds"])
        elif kind == "rotate":
            self.tubemq.rotate_visit_token(args["times"])
        elif kind == "grow":
            self.grow(pick(topics, args["topic"]), args["partitions"], args["stores"])
        elif kind == "add_broker":
            self.grow(pick(topics, args["topic"]), 1, 1, [self.tubemq.add_broker()])
        elif kind == "rival_comes":
            partition = pick(self.partitions(), args["partition"])
            if partition.broker_id not in self.down:
                self._rivals.come(partition)
        elif kind == "rivals_leave":
            self._rivals.leave()
        elif kind == "move_group":
            self.move_group(pick(self.partitions(), args["partition"]), args["to"] * UNIT)
        else:
            raise AssertionError(f"unknown event {kind}")

    def begin_group(self, partition: Partition, count: int, position: int, types: Sequence[str]) -> None:
        self.send([partition], count, 8, types)
        self.move_group(partition, position)

    def end_troubles(self) -> None:
        self.tubemq.clear_faults()
        for broker in list(self.down):
            self.start(broker)
        self._rivals.leave(PATIENCE)
        self.sync(ITSELF)

    # -- messages -------------------------------------------------------------------------------------------------

    def send(self, targets: Sequence[Partition], count: int, size: int, types: Sequence[str]) -> int:
        """Send messages to `targets` in turn, except those that accept none now. Return how many were stored."""
        seen = self.seen()
        free = [p for p in targets if p.broker_id not in self.down]
        free = [p for p in free if not refused_refill(self.ledger, seen, store_of(p))]
        for number in range(count if free else 0):
            partition = free[number % len(free)]
            body = self._body(size)
            target = f"{partition.broker_id}:{partition.partition_id}"
            msg_type = pick(types, number) if types else None
            self.tubemq.send(partition.topic, body, target, msg_type=msg_type)
            self.ledger.acknowledged.append((partition, body))
        self.sync(ITSELF)
        return count if free else 0

    def produce(self, topic: str, count: int, size: int, types: Sequence[str]) -> None:
        """Send messages with our own producer, over the network. Those that it could not send may be stored."""
        seen = self.seen()
        if any(refused_refill(self.ledger, seen, store) for store in self.ledger.extents if store.topic == topic):
            return
        bodies = [self._body(size) for _ in range(count)]
        try:
            with Producer(replace(self._settings(), retry_for=PRODUCER_RETRY_FOR)) as producer:
                for number, body in enumerate(bodies):
                    msg_type = pick(types, number) if types else None
                    producer.send(topic, body, encode_attributes(None, msg_type, None), msg_type)
            self.ledger.acknowledged += [(None, body) for body in bodies]
        except TubeMQError:
            pass
        self.sync(ITSELF)

    def sync(self, how: str) -> bool:
        """Copy the state of the stores to the ledger. `how` is the cause of losses. Return True if there are any."""
        seen = self.seen()
        return self.tubemq._on_thread(lambda: self._read_state(how, seen))

    def _read_state(self, how: str, seen: Positions) -> bool:
        lost = False
        for broker_id, server in self.tubemq._servers.brokers.items():
            for topic in self.topics:
                for number, store in server.service.stores.of_topic(topic).items():
                    key = Store(broker_id, topic, number)
                    known = self.ledger.extents.get(key, Extent(0, 0)).end
                    lost |= self.ledger.set_extent(key, Extent(store.min_offset, store.max_offset), how, seen)
                    for position, entry in store.entries() if store.max_offset > known else ():
                        if position >= known:
                            message = StoredMessage.of_entry(broker_id, position, entry)
                            row = Row(position, message.message_id, message.body, message.msg_type)
                            partition = Partition(broker_id, topic, message.partition)
                            self.ledger.add(Entry(partition, position, row))
        return lost

    def check_acknowledged(self) -> None:
        stored = {(entry.partition, entry.row.body) for entries in self.ledger.entries.values() for entry in entries}
        bodies = {body for _, body in stored}
        for partition, body in self.ledger.acknowledged:
            assert body in bodies if partition is None else (partition, body) in stored, f"{body!r} was never stored"

    def _body(self, size: int) -> bytes:
        return f"{next(self._numbers)} ".encode().ljust(size, b".")

    # -- events ---------------------------------------------------------------------------------------------------

    def crash(self, broker: int) -> None:
        self.sync(ITSELF)
        self.tubemq.crash_broker(broker)
        self.down.add(broker)
        self.sync(CRASH)

    def stop_broker(self, broker: int) -> None:
        self.tubemq.stop_broker(broker)
        self.down.add(broker)
        self.sync(ITSELF)

    def start(self, broker: int) -> None:
        self.tubemq.start_broker(broker)
        self.down.discard(broker)

    def restart(self, broker: int) -> None:
        self.stop_broker(broker)
        self.start(broker)

    def expire(self, topic: str, keep: int) -> None:
        self.sync(ITSELF)
        self.tubemq.expire(topic, keep)
        self.sync(RETENTION)

    def grow(self, topic: str, partitions: int, stores: int, brokers: Iterable[int] | None = None) -> None:
        """Add partitions and stores to a topic. Their number never decreases."""
        for broker in brokers or self.tubemq.broker_ids:
            before = self._shapes.get((topic, broker), TopicShape(1, 1))
            shape = TopicShape(max(partitions, before.partitions), max(stores, before.stores))
            self.tubemq.create_topic(topic, shape.partitions, shape.stores, brokers=[broker])
            self._shapes[topic, broker] = shape
        self.sync(ITSELF)

    # -- groups ---------------------------------------------------------------------------------------------------

    def move_group(self, partition: Partition, position: int) -> None:
        self.tubemq.move_group(self.group, partition.topic, partition.broker_id, partition.partition_id, position)

    def group_offset(self, partition: Partition) -> int | None:
        return self.tubemq.group_offset(self.group, partition.topic, partition.broker_id, partition.partition_id)

    def claims(self) -> dict[Partition, str]:
        return {Partition(b, topic, p): name for (_, topic, b, p), name in self.tubemq.claims().items()}

    def let_claims_expire(self) -> None:
        self.tubemq.clock.advance(40.0)

    def pass_time(self, seconds: float) -> None:
        self.tubemq.clock.advance(seconds)

    def end_fetch_later(self, stage: int, attempt: int, late: int) -> None:
        def advance() -> None:
            for server in self.tubemq._servers.brokers.values():
                for key, claim in server.service.claims.items():
                    holder = ClaimId.parse(claim.client_id)
                    if holder is not None and (holder.stage, holder.attempt) == (stage, attempt):
                        server.service.offsets.advance_later(key, _FETCHED * UNIT, late)

        self.tubemq._on_thread(advance)

    def _settings(self) -> ClientSettings:
        return ClientSettings(
            masters=parse_master_addresses(self.master), rpc_timeout=2.0, framing=self.framing, retry_for=2.0
        )

    def _broker(self, broker_id: int) -> Broker:
        (address,) = parse_master_addresses(self.tubemq.broker_address(broker_id))
        return Broker(broker_id, address)
