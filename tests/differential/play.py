# SPDX-License-Identifier: Apache-2.0
"""Plays scripts on one server, call by call, and returns its replies."""

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

_TIMEOUT = 20.0  # seconds for a reply
_FILES_ONLY = 1  # a policy to ask for the end of the files (wire: BrokerServiceServer)
_PAUSE = 0.03  # seconds, several times the time to write a block
_EQUAL_ENDS = 5  # questions in a row with the same result, because a busy machine may pause the server
_ENDS_A_GROUP = ("member_close",)
_IN_FLIGHT = 500  # sends in flight at once


class Line:
    """A connection without the logic of the product's client."""

    def __init__(self, address: Address, framing: Framing) -> None:
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._serial_no = 0
        self._arrived: dict[int, bytes] = {}
        self._socket = socket.create_connection(address, timeout=_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body: bytes) -> int:
        self._serial_no += 1
        self._socket.sendall(encode_frame(self._serial_no, body, self._framing))
        return self._serial_no

    def receive(self, serial_no: int) -> bytes:
        """Return the body of the reply with that number."""
        while serial_no not in self._arrived:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            for frame in self._decoder.feed(data):
                self._arrived[frame.serial_no] = frame.body
        return self._arrived.pop(serial_no)

    def receive_or_silence(self, serial_no: int, question: bytes) -> bytes | None:
        """Send `question` and return the reply to the earlier call, None if only the reply to `question` came: replies
        keep their order.
        """
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
        """Close the connections; the next call opens new ones."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def ask(self, step: Step) -> Reply:
        """Return the reply to a step outside of scripts."""
        return Player(self, Names("", "", 0, str(self.broker))).play([(0, step)])[0]

    def file_end(self, topic: str, partition_id: int) -> int:
        """Return where the files of a partition's store end."""
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
        """Call this once, before the first phase."""
        self._names.base = self.end()

    @property
    def began_at(self) -> int:
        return self._names.base

    def end(self) -> int:
        return self._target.end(self._names.topic, self._names.partition(0))

    def file_end(self) -> int:
        return self._target.file_end(self._names.topic, self._names.partition(0))

    def play(self, steps: Iterable[tuple[int, Step]]) -> dict[int, Reply]:
        """Return the replies by the numbers of the steps."""
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
            return self._decoded(line.receive(serial_no), asked)
        body = line.receive_or_silence(serial_no, _QUESTIONS[asked.to_master])
        return SILENCE if body is None else self._decoded(body, asked)

    def _decoded(self, body: bytes, asked: Plan) -> Reply:
        response = decode_reply(body)
        if isinstance(response, Failure):
            return self._reader.failure(response)
        reply = self._reader.reply(parse(asked.reply, response.data))
        return reply if response.method == asked.request.method else {"method": response.method, **reply}

    def _bulk(self, number: int, step: Mapping[str, Any]) -> Reply:
        """Send many messages with different bodies; return the first and last position, and the refused ones."""
        line = self._target.line(to_master=False)
        ends: list[Any] = []
        for begin in range(0, step["count"], _IN_FLIGHT):
            part = range(begin, min(step["count"], begin + _IN_FLIGHT))
            plans = [plan({**step, "call": "send"}, self._names, {}, number * 100_000 + n) for n in part]
            serials = [line.send(encode_request(asked.request)) for asked in plans]
            replies = [self._decoded(line.receive(no), asked) for no, asked in zip(serials, plans, strict=True)]
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
        """Wait until the files grow no more: the broker writes full blocks while it continues."""
        ends = [self.file_end()]
        while len(ends) < _EQUAL_ENDS or len(set(ends[-_EQUAL_ENDS:])) > 1:
            time.sleep(_PAUSE)
            ends.append(self.file_end())

    def _no_envelope(self, step: Mapping[str, Any]) -> Reply:
        """Send a frame whose body is not a request."""
        to_master = step["server"] == "master"
        line = self._target.line(to_master)
        body = line.receive_or_silence(line.send(bytes.fromhex(step["data"])), _QUESTIONS[to_master])
        if body is None:
            return SILENCE
        response = decode_reply(body)
        return self._reader.failure(response) if isinstance(response, Failure) else {"method": response.method}


def _encoded(method: int, service: int, message: Any) -> bytes:
    return encode_request(Request(service, method, TIMEOUT_MS, message.SerializePartialToString()))


_QUESTIONS = {  # any requests that servers answer at once
    True: _encoded(Method.PRODUCER_CLOSE, ServiceType.MASTER, master_pb.CloseRequestP2M(clientId="question")),
    False: _encoded(
        Method.COMMIT_OFFSET,
        ServiceType.BROKER_READ,
        broker_pb.CommitOffsetRequestC2B(
            clientId="question", topicName="calm1", partitionId=0, groupName="question", lastPackConsumed=False
        ),
    ),
}
