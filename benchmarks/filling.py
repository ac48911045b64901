# SPDX-License-Identifier: Apache-2.0
"""Fills topics before they are read, and reads them without Spark."""

from __future__ import annotations

from dataclasses import replace

from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions

_TOGETHER = 10_000


def fill(master: str, topic: str, count: int, body: bytes, *, attributed: bool = False) -> None:
    """Send ``count`` messages with the same body, evenly to the topic's partitions; or also with three attributes each,
    of which one differs."""
    together = [body] * _TOGETHER
    attributes = [b"color=blue,shop=11,n=%d" % number for number in range(_TOGETHER)]
    with Producer(ClientSettings.from_options({"tubemq.master": master})) as producer:
        while count:
            part = together[:count]
            if not producer.send_together(topic, part, attributes[: len(part)] if attributed else b""):
                del part[1:]
                producer.send(topic, body)  # raises why
            count -= len(part)


def read_messages(options: dict[str, str], count: int) -> None:
    """Read all partitions one after the other, without making rows of the messages."""
    seen = 0
    for number, part in enumerate(plan_batch(SourceOptions.read(options, streaming=False))):
        claim = replace(part.claim, task=number)
        for wanted, snapshot in part.ranges:
            reader = PartitionReader(part.settings, part.member.group, claim, wanted, snapshot)
            seen += sum(len(batch.messages) for batch in reader.batches())
    check(seen, count)


def check(seen: int, count: int) -> None:
    if seen != count:
        raise RuntimeError(f"{seen} messages came, not {count}")
