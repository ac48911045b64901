# SPDX-License-Identifier: Apache-2.0
"""Fills topics before they are read."""

from __future__ import annotations

from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings

_TOGETHER = 10_000


def fill(master: str, topic: str, count: int, body: bytes) -> None:
    """Send ``count`` messages with the same body, evenly to the topic's partitions."""
    together = [body] * _TOGETHER
    with Producer(ClientSettings.from_options({"tubemq.master": master})) as producer:
        while count:
            part = together[:count]
            if not producer.send_together(topic, part):
                del part[1:]
                producer.send(topic, body)  # raises why
            count -= len(part)
