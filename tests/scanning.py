# SPDX-License-Identifier: Apache-2.0
"""Topics with known messages, and scans of their partitions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tests import messages, reading
from tests.clusters import Cluster
from tests.reading import UNIT
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer import partition_scan
from tubemq_spark.client.consumer.partition_scan import MARGIN, ScannedMessage, scan_groups, scan_partition
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import Origin, Stamp, encode

STAMP = Stamp(Origin("q", 7, 0), 5, None)
KINDS = (b"$msgType$=a,kind=b", b"", encode(STAMP.origin) + b"5")
MANY = 18_000  # messages: a scan has not fetched all of them when it returns the first


class FilledTopic:
    """A topic, and all messages that were sent to it, with their positions."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = messages.partitions(cluster, topic)
        self._stored: dict[Partition, list[tuple[int, ScannedMessage]]] = {
            partition: [] for partition in self.partitions
        }

    def send(self, count: int, attributes: bytes = b"", partitions: Sequence[Partition] = (), size: int = 40) -> None:
        wanted = messages.numbered(partitions or self.partitions, count, size)
        for partition, sent in messages.send(self.cluster, wanted, attributes=attributes).items():
            sole = reading.owns_store(self.cluster, partition)
            for one in sent:
                seen = ScannedMessage(attributes, one.message_id, one.position if sole else None)
                self._stored[partition].append((one.position, seen))

    def end(self, partition: Partition) -> int:
        """Return the end of the partition's store."""
        positions = (
            position
            for other, stored in self._stored.items()
            for position, _ in stored
            if (other.broker_id, other.store_id) == (partition.broker_id, partition.store_id)
        )
        return max(positions, default=-UNIT) + UNIT

    def rows(self, partition: Partition, start: int = 0, end: int | None = None) -> list[ScannedMessage]:
        end = self.end(partition) if end is None else end
        return [seen for position, seen in self._stored[partition] if start <= position < end]

    def lose(self, partition: Partition, end: int) -> int:
        """Forget the messages from `end` on. Return how many they are."""
        left = [(position, seen) for position, seen in self._stored[partition] if position < end]
        lost = len(self._stored[partition]) - len(left)
        self._stored[partition] = left
        return lost


def new_claim() -> ClaimId:
    """Return a claim that takes a partition from nobody."""
    return ClaimId(f"look-{uuid.uuid4().hex}", run=1, batch=0, task=0)


@dataclass(frozen=True)
class Scanner:
    """Scans a topic in groups of its own."""

    session: ProducerSession
    base: str
    filled: FilledTopic

    def scan_partition(
        self,
        partition: Partition,
        since: int = 0,
        until: int | None = None,
        margin: int = MARGIN,
        claim: ClaimId | None = None,
        retry_for: float | None = None,
    ) -> Iterator[ScannedMessage]:
        with mock.patch.object(partition_scan, "MARGIN", margin):
            yield from scan_partition(
                self.session, self.base, partition, since, claim or new_claim(), until=until, retry_for=retry_for
            )

    @property
    def groups(self) -> list[str]:
        return scan_groups(self.base)

    def claim(self, client_id: object, partition: Partition, group: int = 0) -> int:
        """Return the error code. `group` counts in the order in which a scan tries the groups."""
        cluster = self.filled.cluster
        return reading.register(cluster, self.groups[group], partition, str(client_id)).errCode

    def free(self, client_id: object, partition: Partition, group: int = 0) -> int:
        cluster = self.filled.cluster
        return reading.unregister(cluster, self.groups[group], partition, str(client_id)).errCode


NewScanner = Callable[..., Scanner]


@contextmanager
def scanners(group: str) -> Iterator[NewScanner]:
    """Yield a factory of scanners. They wait `retry_for` seconds, by default longer than any turn takes."""
    with ExitStack() as stack:

        def make(filled: FilledTopic, retry_for: float = 300.0, **others: Any) -> Scanner:
            settings = replace(messages.settings(filled.cluster), retry_for=retry_for, **others)
            session = stack.enter_context(SESSIONS().lease(settings))
            session.add_topics([filled.topic])
            return Scanner(session, group, filled)

        yield make
