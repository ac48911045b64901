"""Other consumers of a query's group."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tests.clusters import Cluster
from tests.messages import settings
from tests.reading import register, unregister
from tubemq_spark.client.rounds import Call, answer, call_all
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_CONSUMER_REGISTER = cast(Method, 4)  # server-side balance, which the connector does not use
_HOST = "127.0.0.1"


class ServerBalanced:
    """A consumer whose partitions the master deals out, as those of the official clients by default."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = topics
        self._client_id = f"server_balanced_{uuid.uuid4().hex}"

    def register(self) -> tuple[int, str]:
        """The master's error code and text."""
        message = master_pb.RegisterRequestC2M(
            clientId=self._client_id, groupName=self._group, hostName=_HOST, topicList=self._topics
        )
        reply = self._ask(_CONSUMER_REGISTER, message, master_pb.RegisterResponseM2C)
        return reply.errCode, reply.errMsg

    def close(self) -> None:
        message = master_pb.CloseRequestC2M(clientId=self._client_id, groupName=self._group)
        self._ask(Method.CONSUMER_CLOSE, message, master_pb.CloseResponseM2C)

    def _ask(self, method: Method, message: Any, kind: Any) -> Any:
        address = settings(self._cluster).masters[0]
        call = Call(address, ServiceType.MASTER, method, message, "a server-balanced consumer")
        return answer(call_all(settings(self._cluster), [call])[0], kind, call.what)


@contextmanager
def foreign_claim(cluster: Cluster, group: str, partition: Partition) -> Iterator[str]:
    """Somebody holds `partition`; gives the client id."""
    client_id = f"somebody_{uuid.uuid4().hex[:8]}"
    assert register(cluster, group, partition, client_id).errCode == 200
    try:
        yield client_id
    finally:
        unregister(cluster, group, partition, client_id)
