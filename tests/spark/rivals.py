# SPDX-License-Identifier: Apache-2.0
"""Other consumers of a query's group. They say that they are there as long as they are: a test may take longer than the
servers wait for that.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

from tests.clusters import Cluster
from tests.messages import broker, settings
from tests.reading import calls, register, unregister
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_CONSUMER_REGISTER = cast(Method, 4)  # server-side balance; the connector does not use it
_CONSUMER_HEARTBEAT = cast(Method, 5)
_HOST = "127.0.0.1"
_PERIOD = 5.0  # seconds between two heartbeats; servers wait at least 30


class ServerBalanced:
    """A consumer whose partitions the master assigns: the default of the official clients."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = topics
        self._client_id = f"server_balanced_{uuid.uuid4().hex}"
        self._staying = ExitStack()

    def register(self) -> tuple[int, str]:
        """Register; return the master's error code and text. The consumer stays a member until `close`."""
        message = master_pb.RegisterRequestC2M(
            clientId=self._client_id, groupName=self._group, hostName=_HOST, topicList=self._topics
        )
        reply = self._ask(_CONSUMER_REGISTER, message, master_pb.RegisterResponseM2C)
        if reply.success:
            self._staying.enter_context(_again_and_again(self._beat))
        return reply.errCode, reply.errMsg

    def close(self) -> None:
        self._staying.close()
        message = master_pb.CloseRequestC2M(clientId=self._client_id, groupName=self._group)
        self._ask(Method.CONSUMER_CLOSE, message, master_pb.CloseResponseM2C)

    def _beat(self) -> None:
        message = master_pb.HeartRequestC2M(clientId=self._client_id, groupName=self._group, reportSubscribeInfo=False)
        self._ask(_CONSUMER_HEARTBEAT, message, master_pb.HeartResponseM2C)

    def _ask(self, method: Method, message: Any, kind: Any) -> Any:
        address = settings(self._cluster).masters[0]
        call = ServerRequest(address, ServiceType.MASTER, method, message, "a server-balanced consumer")
        return unwrap_reply(send_requests(settings(self._cluster), [call])[0], kind, call.what)


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
