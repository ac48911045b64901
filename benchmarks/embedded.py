# SPDX-License-Identifier: Apache-2.0
"""Rates of the embedded server: sends and reads per second of one broker in its own process.

Requests are encoded before the measurement and pipelined over plain sockets, so that the client's cost does not count.
`Producer` and `PartitionReader` show the rates that a test of a pipeline gets. "of its own" is the rate per second of
the server's CPU time, which does not depend on other load.
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bare import CLIENT, data_in, fetch, framed, registration, target
from benchmarks.filling import read_messages
from benchmarks.processes import in_a_process
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.constants import Framing, Method, OpType, ServiceType
from tubemq_spark.protocol.frame import Frame, FrameDecoder
from tubemq_spark.protocol.message import encode_content
from tubemq_spark.protocol.metadata import Partition, parse_broker
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing import EmbeddedTubeMQ

SEND_GOAL, READ_GOAL = 20_000, 150_000  # messages a second, small ones
_SENDS_IN_FLIGHT = 1000
_GETS_IN_FLIGHT = 3
_GROUP = "bench"


@dataclass(frozen=True)
class Job:
    """`count` messages with bodies of `size` bytes, spread evenly over `partitions` partitions of one store. Every
    second message has type `even`."""

    partitions: int
    size: int
    count: int

    @property
    def topic(self) -> str:
        return f"bench_{self.partitions}_{self.size}"

    @property
    def all_partitions(self) -> list[Partition]:
        return [Partition(1, self.topic, number) for number in range(self.partitions)]


@dataclass(frozen=True)
class Rate:
    """`count` messages took `seconds`, and `server_seconds` of the server's CPU time."""

    count: int
    seconds: float
    server_seconds: float


class Server:
    """The embedded server; its process makes and asks it."""

    def __init__(self, framing: Framing) -> None:
        begin = time.perf_counter()
        self._tubemq = EmbeddedTubeMQ(framing=framing)
        self._started = time.perf_counter() - begin

    def started(self) -> float:
        """Return the seconds that the start took."""
        return self._started

    def master(self) -> str:
        return self._tubemq.master

    def processor(self) -> float:
        return time.process_time()

    def begin(self, job: Job) -> None:
        """Create the job's topic, without messages."""
        if job.topic in self._tubemq.topics:
            self._tubemq.delete_topic(job.topic)
        self._tubemq.create_topic(job.topic, job.partitions)

    def flush(self, job: Job) -> None:
        self._tubemq.flush(job.topic)


class RawClient:
    """Pipelines encoded requests over one connection."""

    def __init__(self, address: tuple[str, int], framing: Framing) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._framing = framing
        self._decoder = FrameDecoder(framing)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def call(self, service: ServiceType, method: Method, data: bytes) -> bytes:
        self._socket.sendall(framed(service, method, data, self._framing))
        (frame,) = self._receive()
        return data_in(frame.body)

    def pipeline(self, requests: list[bytes], in_flight: int) -> None:
        """Send all requests with at most `in_flight` unanswered; check the last reply."""
        sent = answered = 0
        last = None
        chunk = max(1, in_flight // 4)
        while answered < len(requests):
            while sent < len(requests) and sent - answered <= in_flight - chunk:
                self._socket.sendall(b"".join(requests[sent : sent + chunk]))
                sent += len(requests[sent : sent + chunk])
            frames = self._receive()
            answered += len(frames)
            last = frames[-1]
        assert last is not None
        reply = pb.SendMessageResponseB2P.FromString(data_in(last.body))
        if not reply.success:
            raise RuntimeError(f"a send was refused: {reply.errCode} {reply.errMsg}")

    def drain(self, request: bytes, count: int) -> None:
        """Repeat the request until `count` messages have arrived."""
        seen = 0
        self._socket.sendall(request * _GETS_IN_FLIGHT)
        waiting = _GETS_IN_FLIGHT
        while waiting:
            for frame in self._receive():
                waiting -= 1
                reply = pb.GetMessageResponseB2C.FromString(data_in(frame.body))
                seen += len(reply.messages)
                if not reply.success and reply.errCode != 404:
                    raise RuntimeError(f"a get was refused: {reply.errCode} {reply.errMsg}")
                if seen < count:
                    self._socket.sendall(request)
                    waiting += 1
        if seen != count:
            raise RuntimeError(f"{seen} messages arrived, not {count}")

    def _receive(self) -> list[Frame]:
        while True:
            select.select([self._socket], [], [])
            if frames := self._decoder.feed(self._socket.recv(1 << 20)):
                return frames


def send_raw(framing: Framing, job: Job) -> list[bytes]:
    contents = [encode_content(b"b" * job.size, 0, msg_type, None) for msg_type in ("even", "odd")]
    requests = [
        framed(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, target(partition) + content, framing)
        for partition in job.all_partitions
        for content in contents
    ]
    return [requests[n % len(requests)] for n in range(job.count)]


def read_raw(client: RawClient, framing: Framing, job: Job, filters: tuple[str, ...]) -> None:
    for partition in job.all_partitions:
        register = registration(OpType.REGISTER, _GROUP, partition, filters)
        client.call(ServiceType.BROKER_READ, Method.PARTITION_REGISTER, register)
        request = framed(ServiceType.BROKER_READ, Method.GET_MESSAGE, fetch(_GROUP, partition), framing)
        client.drain(request, job.count // job.partitions // (2 if filters else 1))


def send_all(master: str, job: Job) -> None:
    body = b"p" * job.size
    with Producer(ClientSettings.from_options({"tubemq.master": master})) as producer:
        for _ in range(job.count):
            producer.send(job.topic, body)


def broker_address(master: str, framing: Framing) -> tuple[str, int]:
    host, _, port = master.partition(":")
    with RawClient((host, int(port)), framing) as client:
        request = master_pb.RegisterRequestP2M(clientId=CLIENT, brokerCheckSum=-1, hostName=host)
        data = client.call(ServiceType.MASTER, Method.PRODUCER_REGISTER, request.SerializePartialToString())
    (info,) = master_pb.RegisterResponseM2P.FromString(data).brokerInfos
    broker = parse_broker(info)
    assert broker is not None
    return broker.address.host, broker.address.port


def show(name: str, rates: list[Rate]) -> None:
    fastest = max(rates, key=lambda rate: rate.count / rate.seconds)
    wall = statistics.median(rate.count / rate.seconds for rate in rates)
    own = statistics.median(rate.count / rate.server_seconds for rate in rates)
    print(f"  {name:28}{wall:12,.0f}{fastest.count / fastest.seconds:12,.0f}{own:12,.0f}", flush=True)


def measure(tubemq: Server, job: Job, framing: Framing, rounds: int) -> None:
    master = tubemq.master()
    reading = {"tubemq.master": master, "subscribe": job.topic, "tubemq.group": "reader"}

    def rates(count: int, work: Callable[[], None], *, empty: bool = False) -> list[Rate]:
        found = []
        for _ in range(rounds):
            if empty:
                tubemq.begin(job)
            processor, begin = tubemq.processor(), time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
            found.append(Rate(count, seconds, tubemq.processor() - processor))
        return found

    print(f"\n{job.count:,} messages of {job.size} bytes, partitions in the store: {job.partitions}")
    print(f"  {'messages a second':28}{'median':>12}{'best':>12}{'of its own':>12}")
    with RawClient(broker_address(master, framing), framing) as client:
        requests = send_raw(framing, job)
        show("send, raw", rates(job.count, lambda: client.pipeline(requests, _SENDS_IN_FLIGHT), empty=True))
        tubemq.flush(job)
        show("read, raw", rates(job.count, lambda: read_raw(client, framing, job, ())))
        show("read every second, raw", rates(job.count // 2, lambda: read_raw(client, framing, job, ("even",))))
        show("read, PartitionReader", rates(job.count, lambda: read_messages(reading, job.count)))
        show("send, Producer", rates(job.count, lambda: send_all(master, job), empty=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60_000, help="messages of one round (60000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement (3)")
    parser.add_argument("--framing", choices=[one.value for one in Framing], default=Framing.STANDARD.value)
    given = parser.parse_args()
    framing = Framing(given.framing)
    with in_a_process(Server, framing) as tubemq:
        print(f"started in {tubemq.started() * 1000:.1f} ms")
        print(f"wanted of one core: {SEND_GOAL:,} small sends a second, {READ_GOAL:,} messages read")
        for size in (100, 1024):
            for partitions in (1, 3):
                measure(tubemq, Job(partitions, size, given.count), framing, given.rounds)


if __name__ == "__main__":
    main()
