# SPDX-License-Identifier: Apache-2.0
"""The limits: what the broker gives and takes over plain sockets with requests that were encoded before.

The standard framing only. Replies of a fetch are counted and not kept.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.filling import fill
from benchmarks.rounds import Sample, timed
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.protocol.constants import READ_EVERYTHING, Framing, Method, OpType, ServiceType
from tubemq_spark.protocol.envelope import Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.message import encode_content
from tubemq_spark.protocol.metadata import Address, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions

_HEAD = struct.Struct(">Iii")
_LENGTH = struct.Struct(">i")
_READ_SIZE = 1 << 20
_FETCHES_IN_FLIGHT = 3
_SENDS_IN_FLIGHT = 1000
_SENDS_TOGETHER = 100
_OVERFLOW, _OVERFLOW_PAUSE = b"receive message overflow", 0.01  # seconds
_FIRST = 300  # messages
CLIENT = "bare"
_AT_END = 404  # wire: TErrCodeConstants.NOT_FOUND


class BareReader:
    """Drains the partitions of one topic over one connection for each."""

    def __init__(self, master: str, topic: str, count: int) -> None:
        self._count = count
        self._bytes = 0
        self._drains = [
            _Drain(snapshot.broker.address, f"{topic}_bare", wanted.partition)
            for wanted, snapshot in _ranges(master, topic)
        ]

    def one_after_the_other(self) -> Sample:
        return timed(self._count, lambda: self._run([[drain] for drain in self._drains]))

    def at_once(self) -> Sample:
        return timed(self._count, lambda: self._run([self._drains]))

    def _run(self, steps: Sequence[Sequence[_Drain]]) -> None:
        total = 0
        for drains in steps:
            with ExitStack() as connections, selectors.DefaultSelector() as selector:
                for drain in drains:
                    selector.register(connections.enter_context(drain.connect()), selectors.EVENT_READ, drain)
                    drain.start()
                while selector.get_map():
                    for key, _ in selector.select(60):
                        if key.data.receive():
                            selector.unregister(key.fileobj)
                            total += key.data.finish()
        if not self._bytes:
            self._bytes = total
        # The broker may cut its replies at other places, which changes the bytes around them.
        if not self._count or abs(total - self._bytes) > self._bytes // 50 or total < self._count:
            raise RuntimeError(f"{total} bytes came for {self._count} messages, and {self._bytes} in the first round")


class _Drain:
    """Reads one partition from its start to its end."""

    def __init__(self, broker: Address, group: str, partition: Partition) -> None:
        self._broker = broker
        self._group = group
        self._partition = partition
        self._socket: socket.socket | None = None
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._frames = _FrameSkipper()
        self._waiting = 0
        self._at_end = False
        self._get = framed(ServiceType.BROKER_READ, Method.GET_MESSAGE, fetch(group, partition))

    def connect(self) -> socket.socket:
        self._socket = _connected(self._broker)
        self._frames = _FrameSkipper()
        self._at_end = False
        return self._socket

    def start(self) -> None:
        assert self._socket is not None
        _call(self._socket, Method.PARTITION_REGISTER, registration(OpType.REGISTER, self._group, self._partition))
        self._socket.sendall(self._get * _FETCHES_IN_FLIGHT)
        self._waiting = _FETCHES_IN_FLIGHT

    def receive(self) -> bool:
        """Read what is there. Return True when the partition is read and no fetch is in flight."""
        assert self._socket is not None
        size = self._socket.recv_into(self._buffer)
        if not size:
            raise RuntimeError("the broker closed the connection")
        frames, short = self._frames.feed(self._buffer[:size])
        self._waiting -= frames
        for body in short:
            reply = pb.GetMessageResponseB2C.FromString(data_in(body))
            if not reply.success and reply.errCode != _AT_END:
                raise RuntimeError(f"a fetch was refused: {reply.errCode} {reply.errMsg}")
            self._at_end = self._at_end or not reply.success
        if frames and not self._at_end:
            self._socket.sendall(self._get * frames)
            self._waiting += frames
        return not self._waiting

    def finish(self) -> int:
        """Return the claim. Return how many bytes came."""
        assert self._socket is not None
        _call(self._socket, Method.PARTITION_REGISTER, registration(OpType.UNREGISTER, self._group, self._partition))
        return self._frames.received


class _FrameSkipper:
    """Counts frames and skips their blocks; keeps the bodies of those with one block, which may be errors."""

    def __init__(self) -> None:
        self.received = 0
        self._rest = b""  # an incomplete head or length, or a short frame
        self._blocks = 0  # of the current frame that are still to come
        self._skip = 0  # bytes of the current block that are still to come

    def feed(self, data: memoryview) -> tuple[int, list[bytes]]:
        """Return the number of frames that ended, and the bodies of the short ones."""
        self.received += len(data)
        if self._rest:
            data = memoryview(self._rest + data)
            self._rest = b""
        at, size, frames = 0, len(data), 0
        short: list[bytes] = []
        while True:
            if self._skip:
                step = min(self._skip, size - at)
                at += step
                self._skip -= step
                if self._skip:
                    return frames, short
                frames += not self._blocks
            elif self._blocks:
                if size - at < _LENGTH.size:
                    break
                (self._skip,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size
                self._blocks -= 1
            else:
                if size - at < _HEAD.size + _LENGTH.size:
                    break
                _, _, blocks = _HEAD.unpack_from(data, at)
                if blocks == 1:
                    (length,) = _LENGTH.unpack_from(data, at + _HEAD.size)
                    begin = at + _HEAD.size + _LENGTH.size
                    if size - begin < length:
                        break
                    short.append(bytes(data[begin : begin + length]))
                    at = begin + length
                    frames += 1
                else:
                    self._blocks = blocks
                    at += _HEAD.size
        self._rest = bytes(data[at:])
        return frames, short


class BareSender:
    """Sends pre-built messages to all partitions of a topic, over ``connections`` connections in one thread."""

    def __init__(self, master: str, topic: str, size: int, connections: int = 2) -> None:
        fill(master, topic, _FIRST, b"f" * size)  # a plan names only partitions that have messages
        ranges = _ranges(master, topic)
        self._connections = connections
        self._broker = ranges[0][1].broker.address
        content = encode_content(b"b" * size, 0, None, None)
        self._requests = []
        for wanted, _ in ranges:
            self._requests.append(
                framed(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, target(wanted.partition) + content)
            )

    def send(self, count: int) -> Sample:
        return timed(count, lambda: self._send(count))

    def _send(self, count: int) -> None:
        together = b"".join(self._requests[n % len(self._requests)] for n in range(_SENDS_TOGETHER))
        work = _Work(count)
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            for _ in range(self._connections):
                connection = _SendConnection(opened.enter_context(_connected(self._broker)), together, work)
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.fill()
            while selector.get_map():
                for key, _ in selector.select(60):
                    if not key.data.receive():
                        selector.unregister(key.fileobj)


@dataclass
class _Work:
    left: int  # sends


class _SendConnection:
    def __init__(self, opened: socket.socket, together: bytes, work: _Work) -> None:
        self.socket = opened
        self._together = together
        self._work = work  # shared with the other connections
        self._decoder = FrameDecoder(Framing.STANDARD)
        self._in_flight = 0

    def fill(self) -> None:
        while self._work.left > 0 and self._in_flight <= _SENDS_IN_FLIGHT - _SENDS_TOGETHER:
            self.socket.sendall(self._together)
            self._in_flight += _SENDS_TOGETHER
            self._work.left -= _SENDS_TOGETHER

    def receive(self) -> int:
        """Read acknowledgements and send more. Return how many are still awaited."""
        frames = self._decoder.feed(self.socket.recv(_READ_SIZE))
        refused = [frame for frame in frames if _OVERFLOW in frame.body]
        if refused:  # the broker's memory is full: as real clients do, wait and send these again
            self._work.left += len(refused)
            time.sleep(_OVERFLOW_PAUSE)
        elif frames:
            reply = pb.SendMessageResponseB2P.FromString(data_in(frames[-1].body))
            if not reply.success:
                raise RuntimeError(f"a send was refused: {reply.errCode} {reply.errMsg}")
        self._in_flight -= len(frames)
        self.fill()
        return self._in_flight


def _ranges(master: str, topic: str) -> list[tuple[RangeToRead, PartitionSnapshot]]:
    """Return the partitions of a topic that have messages."""
    options = {"tubemq.master": master, "subscribe": topic, "tubemq.group": f"{topic}_bare"}
    planned = plan_batch(SourceOptions.read(options, streaming=False))
    return [one for part in planned for one in part.ranges]


def _connected(broker: Address) -> socket.socket:
    opened = socket.create_connection((broker.host, broker.port), timeout=60)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def target(partition: Partition) -> bytes:
    """Return the beginning of a send, which `encode_content` continues."""
    return pb.SendMessageRequestP2B(
        clientId=CLIENT, topicName=partition.topic, partitionId=partition.partition_id, sentAddr=1
    ).SerializePartialToString()


def registration(operation: int, group: str, partition: Partition, filters: Sequence[str] = ()) -> bytes:
    """Return a register from the earliest message on, or an unregister."""
    return pb.RegisterRequestC2B(
        opType=operation,
        clientId=CLIENT,
        groupName=group,
        topicName=partition.topic,
        partitionId=partition.partition_id,
        readStatus=0,
        filterCondStr=filters,
        currOffset=0,
        qryPriorityId=READ_EVERYTHING,
    ).SerializeToString()


def fetch(group: str, partition: Partition) -> bytes:
    """Return a fetch that the broker confirms by itself."""
    return pb.GetMessageRequestC2B(
        clientId=CLIENT,
        partitionId=partition.partition_id,
        groupName=group,
        topicName=partition.topic,
        lastPackConsumed=True,
        manualCommitOffset=False,
        escFlowCtrl=True,
    ).SerializeToString()


def framed(service: ServiceType, method: Method, data: bytes, framing: Framing = Framing.STANDARD) -> bytes:
    return encode_frame(1, encode_request(Request(service, method, 10_000, data)), framing)


def _call(opened: socket.socket, method: Method, data: bytes) -> None:
    opened.sendall(framed(ServiceType.BROKER_READ, method, data))
    decoder = FrameDecoder(Framing.STANDARD)
    while not (frames := decoder.feed(opened.recv(_READ_SIZE))):
        pass
    reply = pb.RegisterResponseB2C.FromString(data_in(frames[0].body))
    if not reply.success:
        raise RuntimeError(f"{method.name} was refused: {reply.errCode} {reply.errMsg}")


def data_in(body: bytes) -> bytes:
    reply = decode_reply(body)
    if not isinstance(reply, Response):
        raise RuntimeError(f"{reply.exception_name}: {reply.text}")
    return reply.data
