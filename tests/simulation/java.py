# SPDX-License-Identifier: Apache-2.0
"""A consumer and a producer that behave like those of TubeMQ's Java client, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.messages import send_call
from tests.simulation.world import Call, Process, World
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb

_BROKER_HEARTBEAT = 10.0  # seconds


class JavaConsumer:
    """A consumer with client-side balance (ClientBalanceConsumer): it claims what is free, reads and confirms."""

    def __init__(self, world: World, master: str, group: str, topics: Sequence[str], moved: Callable[[], None]) -> None:
        """`moved` is called after each request that may have moved the group."""
        self.process = Process(world, f"java consumer {world.count('java')}", "java host")
        self.messages = 0
        self._world, self._group, self._topics, self._moved = world, group, tuple(topics), moved
        self._settings = ClientSettings.from_options({"tubemq.master": master, "tubemq.rpc.framing": "standard"})
        self._ends = False
        self.ended: Call[None] = self.process.start("main", self._run)

    def shut_down(self) -> None:
        self._ends = True

    def _run(self) -> None:
        world = self._world
        session = ConsumerSession(self._settings, self._group, self._topics)
        try:
            session.register()
        except TubeMQError as error:
            world.tell(self.process, f"cannot register: {str(error)[:80]}")
            return
        requests = GroupRequests(self._settings, self._group)
        held: dict[Partition, None] = {}
        heartbeat_at = world.now
        while not self._ends:
            self.process.state = "looks for free partitions"
            for topic in self._topics:
                for partition in session.cluster.partitions(topic):
                    broker = session.cluster.brokers[partition.broker_id]
                    if partition not in held:
                        code = self._ask(
                            requests.register(broker, partition, session.client_id), pb.RegisterResponseB2C
                        )
                        if code == 200:
                            world.tell(self.process, f"claims {partition}")
                            held[partition] = None
            for partition in list(held):
                self._consume(session, requests, partition, held)
            if world.now - heartbeat_at > _BROKER_HEARTBEAT:
                heartbeat_at = world.now
                for broker in session.cluster.brokers.values():
                    mine = [partition for partition in held if partition.broker_id == broker.broker_id]
                    self._ask(requests.heartbeat(broker, session.client_id, mine), pb.HeartBeatResponseB2C)
            world.sleep(0.3)
        self.process.state = "shuts down"
        for partition in held:
            broker = session.cluster.brokers[partition.broker_id]
            self._ask(requests.unregister(broker, partition, session.client_id), pb.RegisterResponseB2C)
        session.close()
        self._moved()

    def _consume(
        self, session: ConsumerSession, requests: GroupRequests, partition: Partition, held: dict[Partition, None]
    ) -> None:
        broker = session.cluster.brokers[partition.broker_id]
        self.process.state = "fetches"
        request = requests.fetch(broker, partition, session.client_id)
        (outcome,) = send_requests(self._settings, [request])
        self._moved()
        if not isinstance(outcome, Response):
            return
        reply = pb.GetMessageResponseB2C.FromString(outcome.data)
        if reply.errCode in (411, 412, 406):  # it does not hold the partition any more
            held.pop(partition, None)
        if reply.errCode != 200:
            return
        self.messages += len(reply.messages)
        self.process.state = "processes messages"
        self._world.sleep(0.02)
        confirm = requests.roll_back(broker, partition, session.client_id)
        confirm.message.lastPackConsumed = True  # type: ignore[attr-defined]
        self.process.state = "confirms"
        self._ask(confirm, pb.CommitOffsetResponseB2C)

    def _ask(self, request: ServerRequest, kind: type) -> int:
        """Return the code of the reply, 0 without one."""
        (outcome,) = send_requests(self._settings, [request])
        self._moved()
        try:
            return int(unwrap_reply(outcome, kind, request.what).errCode)
        except TubeMQError:
            return 0


class JavaProducer:
    """A producer that sends one message after the other, and sends again what was not acknowledged."""

    def __init__(self, world: World, master: str, topic: str, bodies: Sequence[bytes]) -> None:
        self.process = Process(world, f"java producer {world.count('java')}", "java host")
        self._world, self._topic, self._bodies = world, topic, bodies
        self._settings = ClientSettings.from_options({"tubemq.master": master, "tubemq.rpc.framing": "standard"})
        self.ended: Call[None] = self.process.start("main", self._run)

    def _run(self) -> None:
        session = ProducerSession(self._settings)
        try:
            session.add_topics([self._topic])
        except TubeMQError as error:
            self._world.tell(self.process, f"cannot register: {str(error)[:80]}")
            return
        for number, body in enumerate(self._bodies):
            partitions = [p for p in session.cluster.partitions(self._topic) if session.lists(p)]
            for attempt in range(3 if partitions else 0):
                partition = partitions[(number + attempt) % len(partitions)]
                self.process.state = "sends"
                if self._send(session, partition, body):
                    break
        session.close()

    def _send(self, session: ProducerSession, partition: Partition, body: bytes) -> bool:
        broker, authorization = session.cluster.brokers[partition.broker_id], session.broker_authorization()
        request = send_call(broker, session.client_id, partition, body, authorization=authorization)
        (outcome,) = send_requests(self._settings, [request])
        try:
            return unwrap_reply(outcome, pb.SendMessageResponseB2P, "a send").errCode == 200
        except TubeMQError:
            return False
