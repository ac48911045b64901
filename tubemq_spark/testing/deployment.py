# SPDX-License-Identifier: Apache-2.0
"""Deploys topics on the brokers of an embedded cluster. All functions run on the servers' thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tubemq_spark.testing.catalog import TopicLayout

if TYPE_CHECKING:
    from tubemq_spark.testing.servers import Servers


def deploy(
    servers: Servers, topic: str, broker_id: int, partitions: int, stores: int, max_msg_size: int | None = None
) -> None:
    """Create the topic on a broker. If it exists, it grows to these numbers. `max_msg_size` is in bytes."""
    broker = servers.broker(broker_id).service
    before = servers.catalog.layout(topic, broker_id) or TopicLayout(partitions, stores)
    layout = replace(
        before,
        partitions=max(partitions, before.partitions),
        stores=max(stores, before.stores),
        max_msg_size=before.max_msg_size if max_msg_size is None else max_msg_size,
    )
    servers.catalog.topics.setdefault(topic, {})[broker_id] = layout
    broker.stores.resize(topic, layout)


def undeploy(servers: Servers, topic: str, broker_id: int) -> None:
    """Delete the topic and its messages on a broker; the groups keep their offsets."""
    layouts = servers.catalog.topics.get(topic, {})
    layouts.pop(broker_id, None)
    if not layouts:
        servers.catalog.topics.pop(topic, None)
    servers.broker(broker_id).service.stores.drop_topic(topic)
