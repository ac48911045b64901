# SPDX-License-Identifier: Apache-2.0
"""Fills topics before they are read."""

from __future__ import annotations

from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings


def fill(master: str, topic: str, count: int, body: bytes) -> None:
    """Send ``count`` messages with the same body, evenly to the topic's partitions."""
    with Producer(ClientSettings.from_options({"tubemq.master": master})) as producer:
        for _ in range(count):
            producer.send(topic, body)
