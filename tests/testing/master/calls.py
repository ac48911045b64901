# SPDX-License-Identifier: Apache-2.0
"""A master with a clock that the test controls, and encoded calls to it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, parse
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.catalog import BrokerEntry, Catalog, TopicLayout
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import REPLIES, REQUESTS
from tubemq_spark.testing.master.service import MasterService
from tubemq_spark.testing.request_checks import parse_subscribe_info

NOTHING_KNOWN = -2

METHODS = {kind: method for method, kind in REQUESTS.items()}


class StoppedClock(Clock):
    """Time passes only by `advance`."""

    def now(self) -> float:
        return self._skipped

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._skipped * 1000)


class Bench:
    """A server whose time passes by `wait` or by its clock alone."""

    clock: StoppedClock

    def answer(self, message: Message, tls: bool = False) -> Response | Failure | None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def call(self, message: Message, tls: bool = False) -> Any:
        """Return the reply message, which must have all its required fields."""
        response = self.answer(message, tls)
        assert isinstance(response, Response), response
        return parse(REPLIES[Method(response.method)], response.data)

    def failure(self, message: Message) -> Failure:
        failure = self.answer(message)
        assert isinstance(failure, Failure), failure
        return failure

    def wait(self, seconds: float) -> None:
        """Advance the clock in steps and run the timers, as on a running server."""
        while seconds > 0:
            step = min(seconds, 0.5)
            self.clock.advance(step)
            self.tick()
            seconds -= step


class MasterBench(Bench):
    """A master with topics `a` and `b` on two brokers; `settings` are those of `ServerConfig`."""

    def __init__(self, release: Release = Release.V2_5, **settings: Any) -> None:
        self.clock = StoppedClock()
        self.config = ServerConfig(release=release, **settings)
        self.catalog = Catalog(
            self.config,
            self.clock,
            brokers={1: BrokerEntry(1, "10.0.0.1", 8123), 2: BrokerEntry(2, "10.0.0.2", 8200, tls_port=8201)},
            topics={"a": {1: TopicLayout(3, 1), 2: TopicLayout(2, 2)}, "b": {1: TopicLayout(1, 1)}},
        )
        self.master = MasterService(1, self.catalog)

    def tick(self) -> None:
        self.master.tick()

    def answer(self, message: Message, tls: bool = False) -> Response | Failure | None:
        request = Request(ServiceType.MASTER, METHODS[type(message)], 1000, message.SerializePartialToString())
        return self.master.answer(request, tls=tls)

    # -- calls with their required fields, which a test may change

    def register_producer(self, tls: bool = False, **fields: Any) -> Any:
        base = {"clientId": "p", "brokerCheckSum": -1, "hostName": "10.0.0.9"}
        return self.call(pb.RegisterRequestP2M(**{**base, **fields}), tls)

    def producer_heartbeat(self, tls: bool = False, **fields: Any) -> Any:
        base = {"clientId": "p", "brokerCheckSum": -1, "hostName": "10.0.0.9", "topicList": ["a"]}
        return self.call(pb.HeartRequestP2M(**{**base, **fields}), tls)

    def register_v2(self, client_id: str = "c1", tls: bool = False, **fields: Any) -> Any:
        return self.call(register_v2(client_id, **fields), tls)

    def heartbeat_v2(self, client_id: str = "c1", **fields: Any) -> Any:
        return self.call(pb.HeartRequestC2MV2(**{"clientId": client_id, "groupName": "g", **fields}))

    def meta(self, client_id: str = "c1", **fields: Any) -> Any:
        base = {"groupName": "g", "brokerConfigId": NOTHING_KNOWN, "topicMetaInfoId": NOTHING_KNOWN}
        return self.call(pb.GetPartMetaRequestC2M(clientId=client_id, **{**base, **fields}))

    def register(self, client_id: str = "c1", tls: bool = False, **fields: Any) -> Any:
        return self.call(register(client_id, **fields), tls)

    def heartbeat(self, client_id: str = "c1", **fields: Any) -> Any:
        base = {"clientId": client_id, "groupName": "g", "reportSubscribeInfo": False}
        return self.call(pb.HeartRequestC2M(**{**base, **fields}))

    def close(self, client_id: str = "c1", group: str = "g") -> Any:
        return self.call(pb.CloseRequestC2M(clientId=client_id, groupName=group))


def register_v2(client_id: str = "c1", **fields: Any) -> pb.RegisterRequestC2MV2:
    base = {"groupName": "g", "hostName": "10.0.0.9", "sourceCount": -1, "nodeId": 0, "topicList": ["a"]}
    return pb.RegisterRequestC2MV2(clientId=client_id, **{**base, **fields})


def register(client_id: str = "c1", **fields: Any) -> pb.RegisterRequestC2M:
    base = {"groupName": "g", "hostName": "10.0.0.9", "topicList": ["a"]}
    return pb.RegisterRequestC2M(clientId=client_id, **{**base, **fields})


class Consumer:
    """A consumer with server-side balance that follows its orders, as the official client does."""

    def __init__(self, bench: MasterBench, client_id: str, group: str = "g", **fields: Any) -> None:
        self._bench = bench
        self.client_id = client_id
        self.group = group
        self.held: set[str] = set()
        self.op_types: list[int] = []
        self._done: Any = None
        bench.register(client_id, groupName=group, **fields)

    @property
    def keys(self) -> set[str]:
        """The keys of the held partitions."""
        return {str(parse_subscribe_info(text)[1]) for text in self.held}

    def beat(self) -> Any:
        """Send a heartbeat that reports the last order as done, and follow the next one."""
        done, self._done = self._done, None
        reply = self._bench.heartbeat(
            self.client_id,
            groupName=self.group,
            reportSubscribeInfo=True,
            subscribeInfo=sorted(self.held),
            event=done,
        )
        if reply.errCode == 200 and reply.HasField("event"):
            ordered = set(reply.event.subscribeInfo)
            self.held = self.held | ordered if reply.event.opType in (1, 10) else self.held - ordered
            self.op_types.append(reply.event.opType)
            self._done = pb.EventProto(rebalanceId=reply.event.rebalanceId, opType=reply.event.opType, status=2)
        return reply
