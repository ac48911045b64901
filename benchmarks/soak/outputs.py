# SPDX-License-Identifier: Apache-2.0
"""Reads the outputs into the ledger while they grow, before retention removes their messages.

Each round is a batch read from the end of the last one. Each partition has a store of its own, so a range has exactly
one message for each index entry: the reader checks the count, in addition to what the connector checks.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from benchmarks.soak.ledger import Ledger
from benchmarks.soak.programs import RETRY_MS
from benchmarks.soak.servers import OUTPUTS, SoakTubeMQ
from tests.rounds import Rounds
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition

_PERIOD = 8.0  # seconds between two rounds


class OutputReader(Rounds):
    """A thread that reads until it is stopped."""

    def __init__(self, tubemq: SoakTubeMQ, ledger: Ledger, sent: Path) -> None:
        super().__init__(_PERIOD, self.read)
        self.tokens: set[int] = set()
        """The visit tokens that the producer has had."""
        self.lock = threading.Lock()
        """Held while the ledger changes."""
        self._tubemq = tubemq
        self._ledger = ledger
        self._sent = sent
        self._read_until = 0
        self._next = {one: 0 for topic in OUTPUTS.values() for one in tubemq.partitions(topic)}

    def read(self) -> None:
        """Read what is new in the outputs and in the producer's log."""
        for query, topic in OUTPUTS.items():
            bodies = self._new_messages(topic)
            with self.lock:
                self._ledger.found(query, bodies)
        with self.lock:
            self._read_log()

    def _new_messages(self, topic: str) -> list[bytes]:
        mine = {partition: start for partition, start in self._next.items() if partition.topic == topic}
        starts = {f"{one.broker_id}:{one.partition_id}": start for one, start in mine.items()}
        source = TubeMQDataSource(
            {
                "tubemq.master": self._tubemq.master,
                "tubemq.group": "soak_ledger",
                "subscribe": topic,
                "tubemq.retry.maxElapsedMs": RETRY_MS,
                "startingOffsets": json.dumps({topic: starts}),
            }
        )
        reader = source.reader(source.schema())
        found: list[bytes] = []
        for task in reader.partitions():
            assert isinstance(task, TubeMQInputPartition)
            before = len(found)
            for batch in task.read():
                found += batch.column("value").to_pylist()
            entries = sum(wanted.end - wanted.start for wanted, _ in task.ranges) // INDEX_MSG_UNIT_SIZE
            if len(found) - before != entries:
                raise AssertionError(f"{task.ranges}: {len(found) - before} messages in {entries} index entries")
            for wanted, _ in task.ranges:
                self._follow(wanted.partition, wanted.start, wanted.end)
        return found

    def _follow(self, partition: Partition, start: int, end: int) -> None:
        if start != self._next[partition]:
            raise AssertionError(f"retention removed messages of {partition} from {self._next[partition]} to {start}")
        self._next[partition] = end

    def _read_log(self) -> None:
        if not self._sent.exists():
            return
        with open(self._sent) as log:
            log.seek(self._read_until)
            while (line := log.readline()).endswith("\n"):
                outcome = json.loads(line)
                self._ledger.sent(outcome["acknowledged"], outcome["unknown"])
                self.tokens.add(outcome["token"])
                self._read_until = log.tell()
