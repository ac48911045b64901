"""The cluster of a history, whichever server it is, and the ledger of what it stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tests.histories.ledger import Entry, Extent, Ledger, Positions, Row, Store, store_of
from tests.histories.script import Setting, TopicShape
from tubemq_spark.client import forget_servers
from tubemq_spark.client.calls import GroupCalls
from tubemq_spark.client.producer import Producer
from tubemq_spark.client.rounds import answer, call_all
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, UNKNOWN_ID, Framing
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.metadata import Broker, Partition, parse_master_addresses
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.messages import StoredMessage

RIVAL = "rival"
GROUP = "readers"

Seen = Callable[[], Positions]


def pick(choices: Sequence[Any], number: int) -> Any:
    """The `number`-th of them, counting round."""
    return choices[number % len(choices)]


class World(Protocol):
    """`seen` gives up to where the query has logged offsets. `topics` are those that the query reads."""

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
    def down(self) -> set[int]: ...

    def partitions(self) -> list[Partition]: ...

    def send(self, targets: Sequence[Partition], count: int, size: int, types: Sequence[str]) -> int: ...

    def crash(self, broker: int) -> None: ...

    def restart(self, broker: int) -> None: ...

    def start_all(self) -> None: ...

    def switch_master(self, lists_fill_after: float) -> None: ...

    def move_group(self, partition: Partition, position: int) -> None: ...

    def group_offset(self, partition: Partition) -> int | None: ...

    def rival_comes(self, partition: Partition) -> bool: ...

    def rivals_leave(self) -> None: ...

    def let_claims_expire(self) -> None: ...

    def sync(self, how: str) -> bool: ...


class Rivals:
    """Another consumer of the group, which claims partitions and does nothing else."""

    def __init__(self, settings: Callable[[], ClientSettings], broker: Callable[[int], Broker], group: str) -> None:
        self._settings, self._broker, self._group = settings, broker, group
        self.held: list[Partition] = []

    def come(self, partition: Partition) -> bool:
        calls = GroupCalls(self._settings(), self._group, UNKNOWN_ID)
        call = calls.register(self._broker(partition.broker_id), partition, RIVAL)
        try:
            reply = answer(call_all(self._settings(), [call])[0], pb.RegisterResponseB2C, call.what)
        except TubeMQError:
            return False
        if reply.errCode == 200:
            self.held.append(partition)
        return reply.errCode == 200

    def leave(self) -> None:
        calls = GroupCalls(self._settings(), self._group, UNKNOWN_ID)
        call_all(
            self._settings(), [calls.unregister(self._broker(p.broker_id), p, RIVAL) for p in self.held], timeout=1.0
        )
        self.held = []


def refused_refill(ledger: Ledger, seen: Positions, store: Store) -> bool:
    """The one known limit of the connector, a rule of its own so that it can be lifted.

    A store that lost a tail which the query had read uses the positions for new messages. The query goes on at the end
    of the store as it finds it then, so messages that are sent before it looks cannot be told from those it had read.
    As long as it has not looked (its offset log reaches beyond the store's end), nobody sends there.
    """
    extent = ledger.extents.get(store)
    return extent is not None and any(store_of(p) == store and at > extent.end for p, at in seen.items())


class EmbeddedWorld:
    """A fresh embedded cluster."""

    def __init__(self, setting: Setting) -> None:
        config = ServerConfig(**{"offset_file_interval": 5.0, **setting.config})  # type: ignore[arg-type]
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
        self._rivals = Rivals(self._settings, self._broker, self.group)
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

    def partitions(self) -> list[Partition]:
        return [
            Partition(broker_id, topic, store * STORE_PARTITION_BASE + number)
            for (topic, broker_id), shape in sorted(self._shapes.items())
            for store in range(shape.stores)
            for number in range(shape.partitions)
        ]

    # -- messages -------------------------------------------------------------------------------------------------

    def send(self, targets: Sequence[Partition], count: int, size: int, types: Sequence[str]) -> int:
        """Deals messages to `targets`, but for those that cannot have any now; how many were stored."""
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
        self.sync("itself")
        return count if free else 0

    def produce(self, topic: str, count: int, size: int, types: Sequence[str], retry_for: float) -> None:
        """The same by our own producer, over the network; what it could not send may be stored or not."""
        seen = self.seen()
        if any(refused_refill(self.ledger, seen, store) for store in self.ledger.extents if store.topic == topic):
            return
        bodies = [self._body(size) for _ in range(count)]
        try:
            with Producer(replace(self._settings(), retry_for=retry_for)) as producer:
                for number, body in enumerate(bodies):
                    msg_type = pick(types, number) if types else None
                    producer.send(topic, body, encode_attributes(None, msg_type, None), msg_type)
            self.ledger.acknowledged += [(None, body) for body in bodies]
        except TubeMQError:
            pass
        self.sync("itself")

    def sync(self, how: str) -> bool:
        """Takes over what the stores have now; what is gone went by `how`. True when something did."""
        seen = self.seen()
        return self.tubemq._on_thread(lambda: self._look(how, seen))

    def _look(self, how: str, seen: Positions) -> bool:
        lost = False
        for broker_id, server in self.tubemq._servers.brokers.items():
            for topic in self.topics:
                for number, store in server.service.stores_of(topic).items():
                    key = Store(broker_id, topic, number)
                    known = self.ledger.extents.get(key, Extent(0, 0)).end
                    lost |= self.ledger.stands(key, Extent(store.min_offset, store.max_offset), how, seen)
                    for position, entry in store.entries() if store.max_offset > known else ():
                        if position >= known:
                            message = StoredMessage.of_entry(broker_id, position, entry)
                            row = Row(position, message.message_id, message.body, message.msg_type)
                            partition = Partition(broker_id, topic, message.partition)
                            self.ledger.learn(Entry(partition, position, row))
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
        self.sync("itself")
        self.tubemq.crash_broker(broker)
        self.down.add(broker)
        self.sync("crash")

    def stop_broker(self, broker: int) -> None:
        self.tubemq.stop_broker(broker)
        self.down.add(broker)
        self.sync("itself")

    def start(self, broker: int) -> None:
        self.tubemq.start_broker(broker)
        self.down.discard(broker)

    def restart(self, broker: int) -> None:
        self.stop_broker(broker)
        self.start(broker)

    def start_all(self) -> None:
        for broker in list(self.down):
            self.start(broker)
        for number in range(1, len(self.tubemq._servers.masters) + 1):
            self.tubemq.start_master(number)

    def expire(self, topic: str, keep: int) -> None:
        self.sync("itself")
        self.tubemq.expire(topic, keep)
        self.sync("retention")

    def flush(self, topic: str) -> None:
        self.tubemq.flush(topic)

    def advance(self, seconds: float) -> None:
        self.tubemq.clock.advance(seconds)

    def switch_master(self, lists_fill_after: float) -> None:
        self.tubemq.switch_master(lists_fill_after)

    def grow(self, topic: str, partitions: int, stores: int, brokers: Iterable[int] | None = None) -> None:
        """Never fewer than there are."""
        for broker in brokers or self.tubemq.broker_ids:
            before = self._shapes.get((topic, broker), TopicShape(1, 1))
            shape = TopicShape(max(partitions, before.partitions), max(stores, before.stores))
            self.tubemq.create_topic(topic, shape.partitions, shape.stores, brokers=[broker])
            self._shapes[topic, broker] = shape
        self.sync("itself")

    def add_broker(self, topic: str, partitions: int, stores: int) -> None:
        self.grow(topic, partitions, stores, [self.tubemq.add_broker()])

    # -- groups ---------------------------------------------------------------------------------------------------

    def move_group(self, partition: Partition, position: int) -> None:
        self.tubemq.move_group(self.group, partition.topic, partition.broker_id, partition.partition_id, position)

    def group_offset(self, partition: Partition) -> int | None:
        return self.tubemq.group_offset(self.group, partition.topic, partition.broker_id, partition.partition_id)

    def claims(self) -> dict[Partition, str]:
        return {Partition(b, topic, p): name for (_, topic, b, p), name in self.tubemq.claims().items()}

    def rival_comes(self, partition: Partition) -> bool:
        return partition.broker_id not in self.down and self._rivals.come(partition)

    def rivals_leave(self) -> None:
        self._rivals.leave()

    def let_claims_expire(self) -> None:
        self.tubemq.clock.advance(40.0)

    def _settings(self) -> ClientSettings:
        return ClientSettings(
            masters=parse_master_addresses(self.master), rpc_timeout=2.0, framing=self.framing, retry_for=2.0
        )

    def _broker(self, broker_id: int) -> Broker:
        (address,) = parse_master_addresses(self.tubemq.broker_address(broker_id))
        return Broker(broker_id, address)
