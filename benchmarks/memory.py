# SPDX-License-Identifier: Apache-2.0
"""Peak of a Python worker's resident memory, and the rate, while it reads one partition of 10 MB to 4 GB."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.filling import fill
from benchmarks.pack_bodies import pack_of
from benchmarks.parts import Part
from benchmarks.results import MEMORY, RATE, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import RELEASE, Scale
from benchmarks.spark import Meter, drain_batch, spark_session
from tests.real.cluster import RealTubeMQ, TopicSpec

KIB, MIB, PACKS = "messages of 1 KiB", "messages of 1 MiB", "packs"

_SMALLER = (10, 100)  # MB
_QUICK, _FULL = 400, 4_000  # MB
_PACK_ROWS, _PACK_BODY = 500, 1024


@dataclass(frozen=True)
class _Backlog:
    """``count`` messages, each with ``rows`` rows, in a partition of its own."""

    name: str
    topic: str
    body: bytes
    megabytes: float
    rows: int = 1

    @property
    def count(self) -> int:
        return max(1, round(self.megabytes * 1e6 / len(self.body)))


def _backlogs(scale: Scale) -> list[_Backlog]:
    largest = (_FULL if scale.full else _QUICK) * min(1.0, scale.scale)
    kib, mib = b"m" * 1024, b"m" * (1 << 20)
    pack = pack_of(_PACK_ROWS, _PACK_BODY)
    smaller = [_Backlog(backlog(size), f"bench_backlog_{size}", kib, size * min(1.0, scale.scale)) for size in _SMALLER]
    return [
        *smaller,
        _Backlog(KIB, "bench_kib", kib, largest),
        _Backlog(MIB, "bench_mib", mib, largest),
        _Backlog(PACKS, "bench_packs", pack, largest, _PACK_ROWS),
    ]


def backlog(megabytes: int) -> str:
    return f"messages of 1 KiB, backlog of {megabytes} MB"


def measure(scale: Scale, record: Recorder) -> None:
    backlogs = _backlogs(scale)
    with RealTubeMQ(
        topics={one.topic: TopicSpec(partitions=1) for one in backlogs}, release=RELEASE, quick_start=False
    ) as tubemq:
        for one in backlogs:
            fill(tubemq.master, one.topic, one.count, one.body)
        for one in backlogs:
            tubemq.wait_flushed(one.topic, timeout=300)
            options = {"tubemq.master": tubemq.master, "subscribe": one.topic, "tubemq.group": f"{one.topic}_group"}
            if one.rows > 1:
                options["messageFormat"] = "inlongmsg"
            with spark_session() as spark:  # a new one starts new workers
                meter = Meter(spark)
                sample = meter.timed(one.count * one.rows, partial(drain_batch, spark, "tubemq", options))
                record.add(one.name, MEMORY, [meter.peak_memory()])
                record.add(one.name, RATE, [sample.count / sample.seconds])


PART = Part(
    "memory",
    "a worker's peak memory with a backlog of 10 to 400 MB; 4 GB with --full",
    2,
    tuple(Key("memory", name, MEMORY) for name in (*map(backlog, _SMALLER), KIB, MIB, PACKS)),
    measure,
)
