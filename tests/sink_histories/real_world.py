# SPDX-License-Identifier: Apache-2.0
"""A real TubeMQ that histories share; each has topics and groups of its own."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from tests import messages
from tests.clusters.real import RealCluster
from tests.histories.real_world import LAYOUTS
from tests.histories.world import pick
from tests.reading import next_claim, reader, register, unregister
from tests.sink_histories.script import Setting
from tests.sink_histories.world import FOREIGN, Message
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.message import decode_attributes, split_payload
from tubemq_spark.protocol.metadata import Partition

CLAIM_TIMEOUT = 15  # seconds


class RealServer:
    def __init__(self) -> None:
        self.cluster = RealCluster(brokers=2, claim_timeout=CLAIM_TIMEOUT)
        self.cluster.start()

    def close(self) -> None:
        self.cluster.close()

    def world(self, setting: Setting) -> RealWorld:
        return RealWorld(self.cluster, setting)


class RealWorld:
    """A `World` on real servers. A killed broker comes back at once, because only then it is known what it lost."""

    def __init__(self, cluster: RealCluster, setting: Setting) -> None:
        self._cluster = cluster
        self._group = f"o_{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count()
        self.topics = sorted(
            cluster.new_topic(LAYOUTS[shape.partitions, shape.stores]) for shape in setting.topics.values()
        )
        self.partitions = [one for topic in self.topics for one in messages.partitions(cluster, topic)]
        self.lost: dict[Message, float] = {}
        self.expired: dict[Message, float] = {}
        self.accidents: set[str] = set()

    def close(self) -> None:
        forget_servers()

    @property
    def master(self) -> str:
        return self._cluster.master

    @property
    def framing(self) -> Framing:
        return Framing(self._cluster.framing)

    def change(self, kind: str, args: Mapping[str, Any]) -> None:
        if kind == "foreign":
            topic = pick(self.topics, args["topic"])
            targets = [one for one in self.partitions if one.topic == topic]
            bodies = [FOREIGN + b"%d" % next(self._numbers) for _ in range(args["count"])]
            messages.send(self._cluster, [(pick(targets, n), body) for n, body in enumerate(bodies)])
        elif kind == "crash":
            self.accidents.add("crash")
            before = self.messages()
            self._cluster.kill_broker(pick(self._cluster.broker_ids, args["broker"]))
            self._cluster.start_broker(pick(self._cluster.broker_ids, args["broker"]))
            left = {message.identity for message in self.messages()}
            self.lost |= {message: time.monotonic() for message in before if message.identity not in left}
        elif kind == "crash_peer":
            self._crash_peer(args["address"])
        elif kind == "restart":
            self.accidents.add("stop")
            self._cluster.stop_broker(pick(self._cluster.broker_ids, args["broker"]))
            self._cluster.start_broker(pick(self._cluster.broker_ids, args["broker"]))
        else:
            raise AssertionError(f"unknown change {kind}")

    def fault(self, args: Mapping[str, Any]) -> None:
        raise AssertionError("real servers have no injected failures")

    def at_call(self, args: Mapping[str, Any], function: Callable[[], None]) -> None:
        raise AssertionError("requests to real servers cannot be observed")

    def tend(self) -> None:
        pass

    def calm(self) -> None:
        pass

    def _crash_peer(self, address: str) -> None:
        """Kill the server at `address`, and start it again."""
        brokers = [self._cluster.broker_address(broker) for broker in self._cluster.broker_ids]
        if address in brokers:
            self.change("crash", {"broker": brokers.index(address)})
            return
        assert address == self.master
        self._cluster.kill_master()
        self._cluster.start_master()

    def messages(self) -> list[Message]:
        return [message for partition in self.partitions for message in self._read(partition)]

    def _read(self, partition: Partition) -> Iterator[Message]:
        reply = register(self._cluster, self._group, partition, "o")
        assert reply.errCode == 200, reply
        assert unregister(self._cluster, self._group, partition, "o").errCode == 200
        if not reply.maxOffset:
            return
        place = itertools.count()
        for batch in reader(
            self._cluster, self._group, partition, 0, reply.maxOffset, claim=next_claim(), claim_timeout=20.0
        ).batches():
            for one in cast(list[Any], batch.messages):
                header, body = split_payload(one.payLoadData, one.flag)
                own = decode_attributes(header).own or {}
                yield Message(partition, next(place), one.messageId, body, tuple(sorted(own.items())))
