# SPDX-License-Identifier: Apache-2.0
"""The cluster of a history, whichever server it is, and all that ever stood there."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.histories.script import TopicShape
from tests.histories.world import pick
from tests.sink_histories.script import Setting
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, Framing
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, ServerConfig
from tubemq_spark.testing.config import Release

DEAD = "dead_letters"
FOREIGN = b"foreign "  # begins the messages of another writer
PEER_BACK = 0.3  # seconds after which a server starts again that a request has met with a crash

CODES = {
    "fail": ErrCode.SERVICE_UNAVAILABLE,
    "fail_overflow": ErrCode.SERVER_RECEIVE_OVERFLOW,
    "fail_forbidden": ErrCode.FORBIDDEN,
    "fail_internal": ErrCode.INTERNAL_SERVER_ERROR,
}


@dataclass(frozen=True)
class Message:
    """A stored message; `place` orders the messages of a partition."""

    partition: Partition
    place: int
    message_id: int
    body: bytes
    attributes: tuple[tuple[str, str], ...]

    @property
    def identity(self) -> tuple[Partition, int, bytes]:
        return self.partition, self.message_id, self.body


class World(Protocol):
    """The servers of a history.

    `lost` has messages that crashes removed, with the time on the monotonic clock; `expired` those that retention
    removed. `accidents` names what happened to the cluster: a crash, a stop, growth, retention.
    """

    topics: list[str]
    partitions: list[Partition]
    lost: dict[Message, float]
    expired: dict[Message, float]
    accidents: set[str]

    @property
    def master(self) -> str: ...

    @property
    def framing(self) -> Framing: ...

    def change(self, kind: str, args: Mapping[str, Any]) -> None:
        """Change the cluster."""
        ...

    def fault(self, args: Mapping[str, Any]) -> None: ...

    def at_call(self, args: Mapping[str, Any], function: Callable[[], None]) -> None:
        """Call `function` at a request to the servers."""
        ...

    def tend(self) -> None:
        """Restart the brokers that are due."""
        ...

    def calm(self) -> None:
        """End all faults, and restart all servers."""
        ...

    def messages(self) -> list[Message]: ...

    def close(self) -> None: ...


class EmbeddedWorld:
    """A fresh embedded cluster."""

    def __init__(self, setting: Setting) -> None:
        # Only the history flushes stores. The claims of dead processes expire soon.
        config: dict[str, Any] = {"consumer_reg_timeout": 1.0, "mem_cache_flush_interval": 3600.0, **setting.config}
        self.tubemq = EmbeddedTubeMQ(
            brokers=setting.brokers, framing=Framing.STANDARD, release=Release.V2_5, config=ServerConfig(**config)
        )
        self.lost: dict[Message, float] = {}
        self.expired: dict[Message, float] = {}
        self.accidents: set[str] = set()
        self._keeps_positions = setting.mode == "once"
        self._back: dict[int, float] = {}  # brokers that are down, and when they start again
        self._master_back: float | None = None
        self._numbers = itertools.count()
        self._shapes = dict(setting.topics)
        self._homes = {name: pick(self.tubemq.broker_ids, home) for name, home in setting.homes.items()}
        for name, shape in setting.topics.items():
            self._create(name, shape)
        if setting.failed_rows == "deadLetter":
            self.tubemq.create_topic(DEAD, 1)
        self._dead = [DEAD] if setting.failed_rows == "deadLetter" else []
        self.topics = sorted(setting.topics)
        self.partitions = self._partitions()

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

    def change(self, kind: str, args: Mapping[str, Any]) -> None:
        if kind in ("crash", "stop"):
            self._take_down(kind, pick(self.tubemq.broker_ids, args["broker"]), args["back"])
        elif kind == "expire":
            self._gone(self.expired, lambda: self.tubemq.expire(pick(self.topics, args["topic"]), args["keep"]))
            self.accidents.add("expire")
        elif kind == "flush":
            self.tubemq.flush(pick(self.topics, args["topic"]))
        elif kind == "grow":
            self._grow(pick(self.topics, args["topic"]), args["partitions"], args["stores"])
        elif kind == "foreign":
            self._send(pick(self.topics, args["topic"]), args["count"])
        elif kind == "switch_master":
            self.tubemq.switch_master()
        elif kind == "crash_peer":
            self._crash_peer(args["address"])
        else:
            raise AssertionError(f"unknown change {kind}")

    def fault(self, args: Mapping[str, Any]) -> None:
        calls = self._calls(args)
        how = args["how"]
        if how in CODES:
            calls.fail(CODES[how], "by the history")
        elif how == "delay":
            calls.delay(0.02)
        else:
            getattr(calls, how)()

    def at_call(self, args: Mapping[str, Any], function: Callable[[], None]) -> None:
        self._calls({**args, "times": 1}).run(function, after=args["after"])

    def tend(self) -> None:
        now = time.monotonic()
        for broker in [broker for broker, back in self._back.items() if back <= now]:
            del self._back[broker]
            self.tubemq.start_broker(broker)
        if self._master_back is not None and self._master_back <= now:
            self._start_master()

    def calm(self) -> None:
        self.tubemq.clear_faults()
        self._start_master()
        for broker in list(self._back):
            del self._back[broker]
            self.tubemq.start_broker(broker)

    def messages(self) -> list[Message]:
        return [
            Message(
                Partition(one.broker_id, topic, one.partition),
                one.offset,
                one.message_id,
                one.body,
                tuple(sorted((one.attributes or {}).items())),
            )
            for topic in [*self.topics, *self._dead]
            for one in self.tubemq.messages(topic)
        ]

    def _calls(self, args: Mapping[str, Any]) -> Calls:
        broker = args.get("broker")
        return self.tubemq.on(
            args["method"],
            nth=args["nth"],
            times=args["times"],
            broker=None if broker is None else pick(self.tubemq.broker_ids, broker),
        )

    def _take_down(self, kind: str, broker: int, back: float) -> None:
        if broker in self._back:
            return
        self.accidents.add(kind)
        self._back[broker] = time.monotonic() + back
        if kind == "stop":
            self.tubemq.stop_broker(broker)
            return
        if self._keeps_positions:  # a group without a position on disk begins anew, as documented
            self.tubemq.clock.advance(7.0)
        self._gone(self.lost, lambda: self.tubemq.crash_broker(broker))

    def _crash_peer(self, address: str) -> None:
        """Let the server at `address` crash. A broker has flushed everything before."""
        brokers = {self.tubemq.broker_address(broker): broker for broker in self.tubemq.broker_ids}
        if address in brokers:
            for topic in [*self.topics, *self._dead]:
                self.tubemq.flush(topic, broker_id=brokers[address])
            self._take_down("crash", brokers[address], PEER_BACK)
            return
        assert address == self.master
        self._master_back = time.monotonic() + PEER_BACK
        self.tubemq.stop_master()

    def _start_master(self) -> None:
        self._master_back = None
        self.tubemq.start_master()

    def _gone(self, where: dict[Message, float], change: Callable[[], None]) -> None:
        before = self.messages()
        change()
        left = {message.identity for message in self.messages()}
        where |= {message: time.monotonic() for message in before if message.identity not in left}

    def _grow(self, topic: str, partitions: int, stores: int) -> None:
        shape = self._shapes[topic]
        grown = TopicShape(max(shape.partitions, partitions), max(shape.stores, stores))
        if grown != shape:
            self.accidents.add("grow")
            self._shapes[topic] = grown
            self._create(topic, grown)

    def _create(self, topic: str, shape: TopicShape) -> None:
        self.tubemq.create_topic(topic, shape.partitions, shape.stores, brokers=self._brokers_of(topic))

    def _brokers_of(self, topic: str) -> list[int]:
        return [self._homes[topic]] if topic in self._homes else self.tubemq.broker_ids

    def _send(self, topic: str, count: int) -> None:
        up = [one for one in self._partitions() if one.topic == topic and one.broker_id not in self._back]
        for number in range(count if up else 0):
            partition = pick(up, number)
            target = f"{partition.broker_id}:{partition.partition_id}"
            self.tubemq.send(topic, FOREIGN + b"%d" % next(self._numbers), target)

    def _partitions(self) -> list[Partition]:
        return [
            Partition(broker_id, topic, store * STORE_PARTITION_BASE + number)
            for topic, shape in sorted(self._shapes.items())
            for broker_id in self._brokers_of(topic)
            for store in range(shape.stores)
            for number in range(shape.partitions)
        ]
