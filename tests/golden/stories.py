# SPDX-License-Identifier: Apache-2.0
"""The messages on the server when a golden checkpoint was written, and functions to send them again.

On an embedded server the same messages get the same brokers, partitions and positions. Message ids come from a clock:
the story has them, because the checkpoint has some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.stored_message import StoredMessage

FOLDER = Path(__file__).parent / "checkpoints"
FILE = "story.json"


@dataclass(frozen=True)
class Story:
    """The history of a query. The messages of `runs[n]` were sent before its run n, which ended by itself after one
    micro-batch. A message is its partition, as `topic brokerId:partitionId`.
    """

    spark: str  # the release that wrote the checkpoint
    brokers: int
    topics: Mapping[str, tuple[int, int]]  # partitions of a store, and stores
    options: Mapping[str, str]
    runs: Sequence[Sequence[str]]
    message_ids: Sequence[int] = ()  # of all messages, in the order in which they were sent

    @classmethod
    def read(cls, folder: Path) -> Story:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return cls(**{**data, "topics": {name: tuple(layout) for name, layout in data["topics"].items()}})

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def create_topics(self, tubemq: EmbeddedTubeMQ) -> None:
        for name, (partitions, stores) in self.topics.items():
            tubemq.create_topic(name, partitions, stores)

    def targets(self) -> list[str]:
        """Return all partitions."""
        return [
            f"{topic} {broker_id}:{store * 10_000 + partition}"
            for topic, (partitions, stores) in self.topics.items()
            for broker_id in range(1, self.brokers + 1)
            for store in range(stores)
            for partition in range(partitions)
        ]


def send(tubemq: EmbeddedTubeMQ, targets: Sequence[str], what: str) -> list[tuple[str, StoredMessage]]:
    """Send a message to each of `targets` and return them with their topics, as stored. Bodies contain `what`."""
    stored = []
    for number, target in enumerate(targets):
        topic, partition = target.split()
        stored.append((topic, tubemq.send(topic, f"{what}.{number}".encode(), partition=partition)))
    return stored
