# SPDX-License-Identifier: Apache-2.0
"""Another consumer of a query's group. It says that it is there as long as it is: a test may take longer than the
servers wait for that.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.clusters import Cluster
from tests.messages import broker, settings
from tests.reading import calls, register, unregister
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Partition

_PERIOD = 5.0  # seconds between two heartbeats; servers wait at least 30


@contextmanager
def foreign_claim(cluster: Cluster, group: str, partition: Partition) -> Iterator[str]:
    """Hold `partition` as another consumer; yield its client id."""
    client_id = f"somebody_{uuid.uuid4().hex[:8]}"
    beat = calls(cluster, group).heartbeat(broker(cluster, partition.broker_id), client_id, [partition])
    assert register(cluster, group, partition, client_id).errCode == 200
    try:
        with _again_and_again(lambda: send_requests(settings(cluster), [beat])):
            yield client_id
    finally:
        unregister(cluster, group, partition, client_id)


@contextmanager
def _again_and_again(beat: Callable[[], object]) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_PERIOD):
            with suppress(TubeMQError):  # because the next one may succeed
                beat()

    thread = threading.Thread(target=run, name="rival's heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
