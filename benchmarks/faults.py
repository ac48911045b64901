# SPDX-License-Identifier: Apache-2.0
"""Rows per second of small batches before, during and after a fault of one broker of three.

A batch is what a task of a small micro-batch does: a new `Producer` sends its rows and waits until all are stored. The
embedded servers share one process, so two brokers are as fast as three: the figures show how long batches wait.

The fault is long enough for a silent broker: the first batch waits 10 s for it (`tubemq.rpc.timeoutMs`), and the next
ones leave it out. Afterwards there is time for the longest pause until a broker is tried again, which is 20 s here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import NamedTuple

from benchmarks.parts import Part
from benchmarks.processes import in_a_process
from benchmarks.results import MILLISECONDS, RATE, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import Scale
from tubemq_spark.client import forget_servers
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, Fault

STOPPED = "stopped broker"
FAULTS: dict[str, Callable[[Calls], Fault] | None] = {
    "silent broker": Calls.drop_request,
    "full broker": lambda sends: sends.fail(ErrCode.SERVER_RECEIVE_OVERFLOW),
    "broker that refuses the topic": lambda sends: sends.fail(ErrCode.FORBIDDEN),
    STOPPED: None,
}
PHASES = "before", "during", "after"
USED_AGAIN = "until it gets its share of rows again"  # from the end of the fault; the time of `after`, if it is longer

ROWS = 300  # of a batch
_SECONDS = (5.0, 15.0, 20.0)  # of the phases
_TOPIC = "bench_faults"
_BROKER = 1  # the faulty one
_ROW_BYTES = 100
_WARM_UP = 20  # batches
_SHARE = 0.8 * ROWS / 3  # rows of a batch that the faulty broker gets when it works again


class Cluster:
    """Three embedded brokers, of which one may be faulty; their process makes and asks it."""

    def __init__(self) -> None:
        self._tubemq = EmbeddedTubeMQ({_TOPIC: 3}, brokers=3, max_bytes=1 << 30)
        self._rule: Fault | None = None

    def master(self) -> str:
        return self._tubemq.master

    def begin(self, fault: str) -> None:
        add_rule = FAULTS[fault]
        if add_rule is None:
            self._tubemq.stop_broker(_BROKER)
        else:
            self._rule = add_rule(self._tubemq.on("send_message", broker=_BROKER, topic=_TOPIC))

    def end(self) -> None:
        if self._rule is None:
            self._tubemq.start_broker(_BROKER)
        else:
            self._rule.remove()

    def check(self, count: int, fault: str) -> None:
        """Raise `RuntimeError` unless all of `count` rows are stored, once each. A broker that stops may have stored
        rows without an answer: these are stored twice."""
        bodies = [one.body for one in self._tubemq.messages(_TOPIC)]
        different = len(set(bodies))
        if different != count or (len(bodies) > count and fault != STOPPED):
            raise RuntimeError(f"{fault}: {different} of {count} rows are stored, in {len(bodies)} messages")

    def close(self) -> None:
        self._tubemq.close()


class Writer:
    """Writes batches of rows that all differ; `count` of them so far."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.count = 0

    def write(self) -> int:
        """Write a batch. Return how many of its rows the faulty broker stored."""
        rows = [b"%0*d" % (_ROW_BYTES, self.count + at) for at in range(ROWS)]
        with Producer(self.settings) as producer:
            if not producer.send_together(_TOPIC, rows):
                producer.send(_TOPIC, rows[0])  # raises why
            stored = producer.flush()
        self.count += ROWS
        return sum(count for partition, count in stored.items() if partition.broker_id == _BROKER)


class Batch(NamedTuple):
    ended: float  # seconds since the measurement began
    on_broker: int  # rows that the faulty broker stored


def measure(scale: Scale, record: Recorder) -> None:
    seconds = [scale.seconds(one) for one in _SECONDS]
    values = defaultdict(list)
    for _ in range(scale.rounds):
        for fault in FAULTS:
            for name, quantity, value in figures(_disturbed(fault, *seconds), seconds):
                values[f"{fault}: {name}", quantity].append(value)
    for (name, quantity), found in values.items():
        record.add(name, quantity, found)


def _disturbed(fault: str, before: float, during: float, after: float) -> list[Batch]:
    """Write batches all the time; a thread makes the broker faulty meanwhile."""
    with in_a_process(Cluster) as cluster, ThreadPoolExecutor(1) as thread:
        writer = Writer(ClientSettings.from_options({"tubemq.master": cluster.master()}))

        def disturb() -> None:
            time.sleep(before)
            cluster.begin(fault)
            time.sleep(during)
            cluster.end()

        for _ in range(_WARM_UP):
            writer.write()
        disturbed, begin = thread.submit(disturb), time.perf_counter()
        batches: list[Batch] = []
        while not batches or batches[-1].ended < before + during + after:
            on_broker = writer.write()
            batches.append(Batch(time.perf_counter() - begin, on_broker))
        disturbed.result()
        cluster.check(writer.count, fault)
        forget_servers()  # before they end
    return batches


def figures(batches: Sequence[Batch], seconds: Sequence[float]) -> list[tuple[str, str, float]]:
    """Return name, quantity and value of each figure; `seconds` are those of the phases."""
    found, ends = [], list(accumulate(seconds))
    for phase, end, length in zip(PHASES, ends, seconds, strict=True):
        count = sum(end - length <= batch.ended < end for batch in batches)
        found.append((phase, RATE, ROWS * count / length))
    _, fault_ended, end = ends
    again = (batch.ended for batch in batches if batch.ended > fault_ended and batch.on_broker >= _SHARE)
    return [*found, (USED_AGAIN, MILLISECONDS, 1000 * (min(again, default=end) - fault_ended))]


PART = Part(
    "faults",
    "small batches before, during and after a fault of one broker of three",
    8,
    tuple(
        Key("faults", f"{fault}: {name}", quantity)
        for fault in FAULTS
        for name, quantity in (*((phase, RATE) for phase in PHASES), (USED_AGAIN, MILLISECONDS))
    ),
    measure,
)
