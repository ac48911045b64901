# SPDX-License-Identifier: Apache-2.0
"""A real TubeMQ cluster that many histories share. Each history has its own topics and group."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from typing import Any

from tests import messages
from tests.clusters import Layout
from tests.clusters.real import RealCluster
from tests.clusters.unambiguous_ids import wait_until_ids_are_unambiguous
from tests.histories.ledger import CRASH, ITSELF, Entry, Extent, Ledger, Row, Store, store_of
from tests.histories.script import Setting
from tests.histories.world import PATIENCE, RIVAL, Rivals, Seen, chosen, pick, refused_refill
from tests.interop.java_client import JavaClient, Outgoing
from tests.reading import group_position, register, unregister
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition

CLAIM_TIMEOUT = 15  # seconds; clients send heartbeats every 8 s
LAYOUTS: dict[tuple[int, int], Layout] = {(1, 1): "one", (3, 1): "three", (2, 2): "stores"}


class RealServer:
    def __init__(self) -> None:
        self.cluster = RealCluster(brokers=2, claim_timeout=CLAIM_TIMEOUT)
        self.cluster.start()
        self._clock = self.cluster.new_topic("one")

    def close(self) -> None:
        self.cluster.close()

    def world(self, setting: Setting) -> RealWorld:
        self.wait_until_ids_are_unambiguous()
        return RealWorld(self.cluster, setting)

    def wait_until_ids_are_unambiguous(self) -> None:
        """Wait because a history may crash brokers."""
        wait_until_ids_are_unambiguous(self.cluster, self._clock, 150.0)


class RealWorld:
    """A `world.World` on the real cluster. A killed broker starts again at once, because only then its losses are
    known."""

    def __init__(self, cluster: RealCluster, setting: Setting) -> None:
        self._cluster = cluster
        self.ledger = Ledger()
        self.seen: Seen = dict
        self.group = f"g_{uuid.uuid4().hex[:12]}"
        self._observers = f"o_{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count()
        self._topics = [cluster.new_topic(LAYOUTS[shape.partitions, shape.stores]) for shape in setting.topics.values()]
        self._rivals = Rivals(
            lambda: messages.settings(cluster), lambda broker_id: messages.broker(cluster, broker_id), self.group
        )

    def close(self) -> None:
        self._rivals.leave()
        forget_servers()

    @property
    def master(self) -> str:
        return self._cluster.master

    @property
    def framing(self) -> Framing:
        return Framing(self._cluster.framing)

    @property
    def topics(self) -> list[str]:
        return sorted(self._topics)

    @property
    def broker_ids(self) -> list[int]:
        return list(self._cluster.broker_ids)

    def partitions(self) -> list[Partition]:
        return [partition for topic in self.topics for partition in messages.partitions(self._cluster, topic)]

    def change(self, kind: str, args: dict[str, Any], types: Sequence[str]) -> None:
        brokers = self.broker_ids
        if kind == "send":
            self._send(chosen(self.partitions(), args), args["count"], args["size"])
        elif kind == "java":
            self._send_by_java(pick(self.topics, args["topic"]), args["count"])
        elif kind == "crash":
            self._cluster.kill_broker(pick(brokers, args["broker"]))
            self._cluster.start_broker(pick(brokers, args["broker"]))
            self.sync(CRASH)
        elif kind == "restart":
            self._cluster.stop_broker(pick(brokers, args["broker"]))
            self._cluster.start_broker(pick(brokers, args["broker"]))
            self.sync(ITSELF)
        elif kind == "switch_master":
            self._cluster.kill_master()
            self._cluster.start_master()
        elif kind == "rival_comes":
            self._rivals.come(pick(self.partitions(), args["partition"]))
        elif kind == "rivals_leave":
            self._rivals.leave()
        elif kind == "move_group":
            partition = pick(self.partitions(), args["partition"])
            self._cluster.move_group(self.group, partition, args["to"] * UNIT)
        else:
            raise AssertionError(f"unknown event {kind}")

    def begin_group(self, partition: Partition, count: int, position: int, types: Sequence[str]) -> None:
        self._send([partition], count, 8)
        register(self._cluster, self.group, partition, RIVAL, position)
        unregister(self._cluster, self.group, partition, RIVAL)

    def end_troubles(self) -> None:
        self._rivals.leave(PATIENCE)
        self.sync(ITSELF)

    def sync(self, how: str) -> bool:
        """Record where the stores end now. Return True if messages are lost."""
        lost = False
        for partition in {store_of(partition): partition for partition in self.partitions()}.values():
            end = group_position(self._cluster, self._observers, partition).end
            lost |= self.ledger.set_extent(store_of(partition), Extent(0, end), how, self.seen())
        return lost

    def check_acknowledged(self) -> None:
        """Do nothing: this world adds only acknowledged messages to the ledger."""

    def group_offset(self, partition: Partition) -> int | None:
        return self._cluster.group_offset(self.group, partition.topic, partition.broker_id, partition.partition_id)

    def claims(self) -> dict[Partition, str]:
        return {}

    def let_claims_expire(self) -> None:
        time.sleep(CLAIM_TIMEOUT + 3)

    def pass_time(self, seconds: float) -> None:
        pass

    def end_fetch_later(self, stage: int, attempt: int, late: int) -> None:
        pass

    def _send(self, targets: Sequence[Partition], count: int, size: int) -> None:
        seen = self.seen()
        free = [p for p in targets if not refused_refill(self.ledger, seen, store_of(p))]
        if not free:
            return
        wanted = [(free[n % len(free)], self._body(size)) for n in range(count)]
        stored = messages.send(self._cluster, wanted)
        self._add(
            Entry(partition, sent.position, Row(sent.position, sent.message_id, sent.body))
            for partition, all_sent in stored.items()
            for sent in all_sent
        )

    def _send_by_java(self, topic: str, count: int) -> None:
        seen = self.seen()
        if any(refused_refill(self.ledger, seen, store) for store in self.ledger.extents if store.topic == topic):
            return
        bodies = [self._body(8) for _ in range(count)]
        receipts = JavaClient(self.master, self._cluster.framing).produce(topic, [Outgoing(body) for body in bodies])
        entries = []
        for body, receipt in zip(bodies, receipts, strict=True):
            broker_id, _, number = receipt.partition.split(":")
            partition = Partition(int(broker_id), topic, int(number))
            row = Row(receipt.append_offset, receipt.message_id, body)
            entries.append(Entry(partition, receipt.append_offset, row))
        self._add(entries)

    def _add(self, entries: Any) -> None:
        ends: dict[Store, int] = {}
        for entry in sorted(entries, key=lambda entry: entry.position):
            self.ledger.add(entry)
            ends[store_of(entry.partition)] = entry.position + UNIT
        for store, end in ends.items():
            self.ledger.set_extent(store, Extent(0, end), ITSELF, self.seen())

    def _body(self, size: int) -> bytes:
        return f"{next(self._numbers)} ".encode().ljust(size, b".")
