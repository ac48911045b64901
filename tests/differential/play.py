"""Plays scripts on one server, call after call, and tells its replies."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.differential.compare import SILENCE, Known, Reader, Reply
from tests.differential.requests import TIMEOUT_MS, Names, Plan, plan
from tests.differential.script import Step
from tubemq_spark.protocol.constants import READ_EVERYTHING, Framing, Method, OpType, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_reply, encode_request, parse
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

_PATIENCE = 20.0  # seconds for a reply
_FILES_ONLY = 1  # the brokers take 101 for more than 1 when they tell where a store ends (BrokerServiceServer)
_STILL = 0.03  # seconds, several times what it takes to write a block
_LOOKS = 5  # that must see the same, for a busy machine may stop in between
_ENDS_A_GROUP = ("member_close",)
_IN_A_ROW = 500  # sends on their way at once


class Line:
    """A connection without any of the client's own logic."""

    def __init__(self, address: Address, framing: Framing) -> None:
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._serial_no = 0
        self._arrived: dict[int, bytes] = {}
        self._socket = socket.create_connection(address, timeout=_PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body: bytes) -> int:
        self._serial_no += 1
        self._socket.sendall(encode_frame(self._serial_no, body, self._framing))
        return self._serial_no

    def receive(self, serial_no: int) -> bytes:
        """The body of the reply with that number."""
        while serial_no not in self._arrived:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            for frame in self._decoder.feed(data):
                self._arrived[frame.serial_no] = frame.body
        return self._arrived.pop(serial_no)

    def receive_or_silence(self, serial_no: int, question: bytes) -> bytes | None:
        """None when `question`, which is asked now, is answered and the earlier call was not: answers keep their
        order."""
        self.receive(self.send(question))
        return self._arrived.pop(serial_no, None)

    def close(self) -> None:
        self._socket.close()


@dataclass
class Target:
    """A server to play on."""

    name: str
    master: Address
    broker: Address
    framing: Framing
    known: Known = field(default_factory=Known)
    _lines: dict[bool, Line] = field(default_factory=dict)

    def line(self, to_master: bool) -> Line:
        if to_master not in self._lines:
            self._lines[to_master] = Line(self.master if to_master else self.broker, self.framing)
        return self._lines[to_master]

    def close(self) -> None:
        """Ends the connections; the next call opens others."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def ask(self, step: Step) -> Reply:
        """The reply to a step that belongs to no script."""
        return Player(self, Names("", "", 0, str(self.broker))).play([(0, step)])[0]

    def file_end(self, topic: str, partition_id: int) -> int:
        """How far the files of a partition's store reach."""
        return self._end(topic, partition_id, _FILES_ONLY)

    def end(self, topic: str, partition_id: int) -> int:
        return self._end(topic, partition_id, READ_EVERYTHING)

    def _end(self, topic: str, partition_id: int, priority: int) -> int:
        message = broker_pb.RegisterRequestC2B(
            opType=OpType.REGISTER,
            clientId="probe",
            groupName="probe",
            topicName=topic,
            partitionId=partition_id,
            readStatus=0,
            qryPriorityId=priority,
        )
        line = self.line(to_master=False)
        body = line.receive(line.send(_encoded(Method.PARTITION_REGISTER, ServiceType.BROKER_READ, message)))
        response = decode_reply(body)
        assert isinstance(response, Response), response
        reply = parse(broker_pb.RegisterResponseB2C, response.data)
        assert reply.success, reply
        return reply.maxOffset


class Player:
    """One play of one script on one target, phase after phase."""

    def __init__(self, target: Target, names: Names) -> None:
        self._target = target
        self._names = names
        self._reader = Reader(names, target.known, {str(target.broker): "<broker>"})

    def begin(self) -> None:
        """To be called once, before the first phase."""
        self._names.base = self.end()

    @property
    def began_at(self) -> int:
        return self._names.base

    def end(self) -> int:
        return self._target.end(self._names.topic, self._names.partition(0))

    def file_end(self) -> int:
        return self._target.file_end(self._names.topic, self._names.partition(0))

    def play(self, steps: Iterable[tuple[int, Step]]) -> dict[int, Reply]:
        """The replies by the steps' numbers."""
        return {number: self._step(number, step) for number, step in steps}

    def _step(self, number: int, step: Step) -> Reply:
        try:
            if step["call"] == "bulk":
                return self._bulk(number, step)
            if step["call"] == "no_envelope":
                return self._no_envelope(step)
            self._reader.group = step.get("group", "")
            if step["call"] in _ENDS_A_GROUP:
                self._reader.forget_ids()
            return self._call(plan(step, self._names, self._reader.last, number))
        except (OSError, ConnectionError) as error:
            self._target.close()
            return {"connection": type(error).__name__}

    def _call(self, asked: Plan) -> Reply:
        line = self._target.line(asked.to_master)
        serial_no = line.send(encode_request(asked.request))
        if asked.request.timeout_ms > 0:
            return self._told(line.receive(serial_no), asked)
        body = line.receive_or_silence(serial_no, _QUESTIONS[asked.to_master])
        return SILENCE if body is None else self._told(body, asked)

    def _told(self, body: bytes, asked: Plan) -> Reply:
        response = decode_reply(body)
        if isinstance(response, Failure):
            return self._reader.failure(response)
        reply = self._reader.reply(parse(asked.reply, response.data))
        return reply if response.method == asked.request.method else {"method": response.method, **reply}

    def _bulk(self, number: int, step: Mapping[str, Any]) -> Reply:
        """Many sends, each with its own body; the reply tells where the refused ones were and the last one ended."""
        line = self._target.line(to_master=False)
        ends: list[Any] = []
        for begin in range(0, step["count"], _IN_A_ROW):
            part = range(begin, min(step["count"], begin + _IN_A_ROW))
            plans = [plan({**step, "call": "send"}, self._names, {}, number * 100_000 + n) for n in part]
            serials = [line.send(encode_request(asked.request)) for asked in plans]
            replies = [self._told(line.receive(no), asked) for no, asked in zip(serials, plans, strict=True)]
            ends += [reply.get("appendOffset", reply) for reply in replies]
        self._let_flush_end()
        positions = [end for end in ends if isinstance(end, int)]
        return {
            "first": ends[0],
            "last": ends[-1],
            "in a row": all(b == a + 28 for a, b in itertools.pairwise(positions)),
            "refused": [(n, end) for n, end in enumerate(ends) if not isinstance(end, int)],
        }

    def _let_flush_end(self) -> None:
        """A block that is full is written while the broker goes on: until the files stand still."""
        seen = [self.file_end()]
        while len(seen) < _LOOKS or len(set(seen[-_LOOKS:])) > 1:
            time.sleep(_STILL)
            seen.append(self.file_end())

    def _no_envelope(self, step: Mapping[str, Any]) -> Reply:
        """A frame whose body is none of a request."""
        to_master = step["server"] == "master"
        line = self._target.line(to_master)
        body = line.receive_or_silence(line.send(bytes.fromhex(step["data"])), _QUESTIONS[to_master])
        if body is None:
            return SILENCE
        response = decode_reply(body)
        return self._reader.failure(response) if isinstance(response, Failure) else {"method": response.method}


def _encoded(method: int, service: int, message: Any) -> bytes:
    return encode_request(Request(service, method, TIMEOUT_MS, message.SerializePartialToString()))


_QUESTIONS = {  # any that is answered at once
    True: _encoded(Method.PRODUCER_CLOSE, ServiceType.MASTER, master_pb.CloseRequestP2M(clientId="question")),
    False: _encoded(
        Method.COMMIT_OFFSET,
        ServiceType.BROKER_READ,
        broker_pb.CommitOffsetRequestC2B(
            clientId="question", topicName="calm1", partitionId=0, groupName="question", lastPackConsumed=False
        ),
    ),
}
