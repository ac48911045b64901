# SPDX-License-Identifier: Apache-2.0
"""Another consumer of a query's group. It says that it is there as long as it is: a test may take longer than the
servers wait for that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.clusters import Cluster
from tests.messages import broker, settings
from tests.reading import calls, register, unregister
from tests.rounds import Rounds
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Partition

_PERIOD = 5.0  # seconds between two heartbeats; servers wait at least 30


@contextmanager
def foreign_claim(cluster: Cluster, group: str, partition: Partition) -> Iterator[str]:
    """Hold `partition` as another consumer; yield its client id."""
    client_id = f"somebody_{uuid.uuid4().hex[:8]}"
    beat = calls(cluster, group).heartbeat(broker(cluster, partition.broker_id), client_id, [partition])

    def send_beat() -> None:
        with suppress(TubeMQError):  # because the next one may succeed
            send_requests(settings(cluster), [beat])

    assert register(cluster, group, partition, client_id).errCode == 200
    try:
        with Rounds(_PERIOD, send_beat):
            yield client_id
    finally:
        unregister(cluster, group, partition, client_id)
