# SPDX-License-Identifier: Apache-2.0
"""The embedded servers in a world, and the truth: every message that was ever stored, and what became of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tests.simulation.machine import Replacement
from tests.simulation.network import Network
from tests.simulation.world import EPOCH, World, the_world
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.message import split_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.dispatch import Service
from tubemq_spark.testing.port import Host, Port

T = TypeVar("T")

StoreKey = tuple[int, str, int]
"""Broker id, topic, store id."""

DAMAGED = b"damaged "
"""A body that begins like this is stored with a wrong check sum."""
CRASH, RETENTION, DELETED = "a crash", "retention", "deletion"


@dataclass
class Message:
    """A message that was stored once. `position` is its own, in its store."""

    partition: Partition
    position: int
    message_id: int
    body: bytes
    header: bytes
    at: float
    lost: str | None = None
    lost_at: float = 0.0

    def __str__(self) -> str:
        lost = f", lost by {self.lost}" if self.lost else ""
        return f"{self.body[:24].decode('latin-1')} at {self.position} of {self.partition}{lost}"


class Loss(NamedTuple):
    """What a store lost at once. `has_index` is True if retention left entries in the index whose data has gone."""

    store: StoreKey
    first: int
    end: int
    how: str
    at: float
    has_index: bool = False


class SimulatedHost(Host):
    """Where the servers run: the hub of the world."""

    def __init__(self, world: World, network: Network) -> None:
        self._world, self._network = world, network
        self._closed = False

    def now(self) -> float:
        return self._world.now + 1_000_000.0

    def wall_ms(self) -> int:
        return int((EPOCH + self._world.now + self._world.wall_steps.get("servers", 0.0)) * 1000)

    def call(self, function: Callable[[], T]) -> T:
        return function()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self._world.at(seconds, function)

    def listen(self, port: Port) -> None:
        if not port.port:
            port.port = self._network.next_port
            self._network.next_port += 1
        self._network.ports[port.port] = port

    def stop_listening(self, port: Port) -> None:
        pass

    def close(self, last: Callable[[], None]) -> None:
        if not self._closed:
            self._closed = True
            last()


class SimulatedTubeMQ(EmbeddedTubeMQ):
    """An `EmbeddedTubeMQ` in the hub of a world. Create it with `within`."""

    _next: tuple[World, Network]

    @classmethod
    def within(cls, world: World, network: Network, **given: Any) -> SimulatedTubeMQ:
        cls._next = world, network
        return cls(**given)

    def _new_host(self) -> Host:
        self.world, self.network = self._next
        self.truth = self.world.truth = Truth(self)
        return SimulatedHost(self.world, self.network)

    @property
    def servers(self) -> Any:
        return self._servers


class Truth:
    """All messages that were ever stored, by store, in the order of their storing."""

    def __init__(self, tubemq: SimulatedTubeMQ) -> None:
        self.messages: dict[StoreKey, list[Message]] = defaultdict(list)
        self.losses: list[Loss] = []
        self.sizes: dict[StoreKey, tuple[int, int]] = {}
        self.moved = True  # a group was, since the schedule has looked last
        self._tubemq = tubemq

    def stored(self, broker_id: int, request: pb.SendMessageRequestP2B, reply: pb.SendMessageResponseB2P) -> None:
        partition = Partition(broker_id, request.topicName.strip(), request.partitionId)
        header, body = split_payload(request.data, request.flag)
        self.messages[partition.store].append(
            Message(
                partition,
                reply.appendOffset,
                reply.messageId,
                bytes(body),
                bytes(header),
                self._tubemq.world.now,
            )
        )

    def of(self, partition: Partition) -> list[Message]:
        return [message for message in self.messages[partition.store] if message.partition == partition]

    def of_topic(self, topic: str) -> list[Message]:
        return [message for key, stored in self.messages.items() if key[1] == topic for message in stored]

    def note_losses(self, how: str) -> None:
        """Record what is gone from the stores, after an event that may have removed messages."""
        brokers = self._tubemq.servers.brokers
        now = self._tubemq.world.now
        for key, stored in self.messages.items():
            broker_id, topic, store_id = key
            store = brokers[broker_id].service.stores.get(topic, store_id)
            low, high = (0, 0) if store is None else (store.data_offset, store.max_offset)
            gone = [one for one in stored if one.lost is None and not low <= one.position < high]
            for message in gone:
                message.lost, message.lost_at = how, now
            if gone or (how == DELETED and stored and not high):  # also a store that retention had emptied
                first, end = (gone[0].position, gone[-1].position + 28) if gone else (0, 0)
                has_index = store is not None and how == RETENTION and store.min_offset < end
                self.losses.append(Loss(key, first, end, how, now, has_index))
                what = "the data of " if has_index else ""
                self._tubemq.world.tell(f"broker {broker_id}", f"loses {what}[{first}, {end}) of {topic} to {how}")


def replacements() -> list[Replacement]:
    """Return what lets the servers of a world record what they store and execute."""
    from tubemq_spark.testing.broker.group_offsets import GroupOffsets
    from tubemq_spark.testing.broker.service import BrokerService

    append, answer = BrokerService.append, Service.answer
    set_position, find_record, restart = GroupOffsets._set, GroupOffsets._record, GroupOffsets.restart

    def recording_append(
        self: BrokerService, request: pb.SendMessageRequestP2B, reply: pb.SendMessageResponseB2P
    ) -> None:
        append(self, request, reply)
        if request.data.endswith(DAMAGED, 0, request.data.find(DAMAGED) + len(DAMAGED)):
            damage(self.stores.get(request.topicName.strip(), request.partitionId // 10_000))
        the_world().truth.stored(self.broker_id, request, reply)

    def damage(store: Any) -> None:
        entry = store._block.entries[-1]
        found = pb.GetMessageResponseB2C.FromString(entry.wire)
        found.messages[0].checkSum ^= 1
        store._block.entries[-1] = entry._replace(wire=found.SerializePartialToString())

    def recording_answer(self: Service, request: Request, *, tls: bool = False) -> Response | Failure | None:
        world = the_world()
        reply = answer(self, request, tls=tls)
        if world.serving is not None:
            world.executed(request, reply)
        return reply

    def recording_set(self: GroupOffsets, record: Any, position: int) -> None:
        if position != record.confirmed:
            the_world().truth.moved = True
        set_position(self, record, position)

    def recording_find(self: GroupOffsets, key: Any, start: int) -> Any:
        record = find_record(self, key, start)
        if record.fresh:
            the_world().truth.moved = True
        return record

    def recording_restart(self: GroupOffsets) -> None:
        the_world().truth.moved = True
        restart(self)

    return [
        (BrokerService, "append", recording_append),
        (Service, "answer", recording_answer),
        (GroupOffsets, "_set", recording_set),
        (GroupOffsets, "_record", recording_find),
        (GroupOffsets, "restart", recording_restart),
    ]
