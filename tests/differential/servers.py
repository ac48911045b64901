# SPDX-License-Identifier: Apache-2.0
"""The two kinds of servers for scripts, with their ways to flush and to let claims expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Protocol

from tests.differential.play import Target
from tests.differential.script import Step
from tests.real import jars
from tests.real.cluster import RealTubeMQ, TopicSpec
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, Framing
from tubemq_spark.protocol.metadata import parse_addresses, parse_brokers
from tubemq_spark.testing import EmbeddedTubeMQ, Release, ServerConfig

Store = tuple[str, int]
"""Topic and number of a store."""

PARTITIONS = {"calm1": 1, "calm3": 3, "quick1": 1, "quick3": 3}
SEGMENT = 20_000  # index entries of a segment
MAX_STORES = 240  # that a broker can open: each takes about 5 MB of its 2 GB
_NEVER = 2_000_000_000  # ms
_SOON = 4_000  # ms, the minimum; the broker checks every 10 s
_CLAIM_TIMEOUT_MS = 32_000  # longer than two flushes, so that claims do not expire between them
_MEMBER_TIMEOUT_MS = 15_000
_TIMEOUT = 120.0

PHASE_LIMIT = 10.0  # seconds for a part of a script, so that members of the real server do not expire in it
CLAIM_LIMIT = 28.0  # seconds for a whole script, so that its claims do not expire


class Server(Protocol):
    target: Target

    def flush(self, stores: Iterable[Store]) -> None:
        """Write everything in the memory of these stores to their files."""

    def expire(self) -> None:
        """Let all claims and members expire that get no heartbeats."""


class Real:
    """A real server: waits for its timers."""

    def __init__(self, cluster: RealTubeMQ) -> None:
        (master,) = parse_addresses(cluster.master)
        (broker,) = parse_addresses(cluster.broker_address(1))
        self._cluster = cluster
        self.release = cluster.release
        self.target = Target(f"TubeMQ {cluster.release}", master, broker, Framing(cluster.framing))
        self._sentinels = 0

    def flush(self, stores: Iterable[Store]) -> None:
        waiting = list(stores)

        def is_done() -> bool:
            while waiting and self._is_flushed(waiting[-1]):
                waiting.pop()
            return not waiting

        _wait("a flush", is_done, 0.2)

    def _is_flushed(self, store: Store) -> bool:
        topic, number = store
        partition_id = number * STORE_PARTITION_BASE
        return self.target.file_end(topic, partition_id) == self.target.end(topic, partition_id)

    def expire(self) -> None:
        """The broker lists its claims. The master does not list its producers, and a request of a producer keeps it
        alive. So the last ones are sentinels, and each sends only one request.
        """
        sentinels = [f"sentinel{self._sentinels + n}" for n in range(int(_TIMEOUT))]
        self._sentinels += len(sentinels)
        for name in sentinels:
            for step in _comes(name):
                assert self.target.ask(step)["errCode"] == 200

        def are_forgotten() -> bool:
            name = sentinels.pop()
            return all(self.target.ask(step)["errCode"] == 411 for step in _asks(name))

        def is_free() -> bool:
            claims = self._cluster.broker_admin(1, method="admin_query_consumer_regmap")["dataSet"]
            return all(claim["Consumer"] == "probe" for claim in claims)

        _wait("members to be forgotten", are_forgotten, 1.0)
        assert are_forgotten()
        _wait("claims to expire", is_free, 0.5)


def _comes(name: str) -> list[Step]:
    return [
        {"call": "producer_register", "client": name, "topics": (), "sum": -1},
        {"call": "member_register", "client": name, "group": name, "sources": 0, "node": 0, "topics": ("calm1",)},
    ]


def _asks(name: str) -> list[Step]:
    return [
        {"call": "producer_heartbeat", "client": name, "topics": (), "sum": -1},
        {"call": "member_heartbeat", "client": name, "group": name},
    ]


@contextmanager
def real(release: jars.Release = "1.2.0", framing: jars.Framing = "standard") -> Iterator[Real]:
    """Yield one master and one broker for scripts: short timeouts, and topics of all layouts."""
    intervals = {"calm": _NEVER, "quick": _SOON}
    cluster = RealTubeMQ(
        topics={
            name: TopicSpec(partitions, settings={"memCacheFlushIntvl": str(intervals[name[:-1]])})
            for name, partitions in PARTITIONS.items()
        },
        release=release,
        framing=framing,
        broker_options={
            "consumerRegTimeoutMs": str(_CLAIM_TIMEOUT_MS),
            "maxIndexSegmentSize": str(28 * SEGMENT),
        },
        master_options={
            "consumerHeartbeatTimeoutMs": str(_MEMBER_TIMEOUT_MS),
            "producerHeartbeatTimeoutMs": str(_MEMBER_TIMEOUT_MS),
        },
    )
    with cluster:
        server = Real(cluster)
        with closing(server.target):
            yield server


class Embedded:
    """An embedded server: does at once what a real server does by its timers."""

    def __init__(self, tubemq: EmbeddedTubeMQ) -> None:
        (master,) = parse_addresses(tubemq.master)
        with closing(Target("", master, master, tubemq.framing)) as asked:
            broker = parse_brokers(asked.ask(_comes("lists")[0])["brokerInfos"])[1].address
        self._tubemq = tubemq
        self.target = Target("EmbeddedTubeMQ", master, broker, tubemq.framing)

    def flush(self, stores: Iterable[Store]) -> None:
        for topic, number in stores:
            self._tubemq.flush(topic, number)

    def expire(self) -> None:
        self._tubemq.clock.advance(2 * _CLAIM_TIMEOUT_MS / 1000)


@contextmanager
def embedded(release: str, framing: str = "standard") -> Iterator[Embedded]:
    """Yield an embedded server with the same settings as `real`; `release` is that of a server jar."""
    config = ServerConfig(
        max_index_segment_entries=SEGMENT,
        mem_cache_flush_interval=_NEVER / 1000,
        consumer_reg_timeout=_CLAIM_TIMEOUT_MS / 1000,
        consumer_heartbeat_timeout=_MEMBER_TIMEOUT_MS / 1000,
        producer_heartbeat_timeout=_MEMBER_TIMEOUT_MS / 1000,
    )
    shown = Release.V1_2 if release.startswith("1.2") else Release.V2_5
    with EmbeddedTubeMQ(topics=PARTITIONS, release=shown, framing=Framing(framing), config=config) as tubemq:
        server = Embedded(tubemq)
        with closing(server.target):
            yield server


def _wait(what: str, is_done: Callable[[], bool], period: float) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_TIMEOUT:.0f} s for {what}")
        time.sleep(period)
