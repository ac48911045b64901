# SPDX-License-Identifier: Apache-2.0
"""Compares the encoder of sends and the parser of their answers with the plain ones."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import (
    Failure,
    Request,
    Response,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    parse,
)
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_content, encode_payload, encode_target
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.rpc import RpcProtocol
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_frames import Kind, SendEncoder

Seen = list[object]
"""What became of each send, in their order: `ACK`, a reply, or at the end an error."""
ACK = "acknowledged"


class Send(NamedTuple):
    body: bytes
    attributes: bytes = b""
    kind: Kind = (None, None)


def plain_frame(serial_no: int, target: bytes, send: Send, framing: Framing = Framing.STANDARD) -> bytes:
    content = encode_content(*encode_payload(send.body, send.attributes), *send.kind)
    request = Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, 10_000, target + content)
    return encode_frame(serial_no, encode_request(request), framing)


def encoded(encoder: SendEncoder, first: int, target: bytes, sends: Sequence[Send]) -> tuple[bytes, list[int]]:
    headers = [encode_payload(b"", send.attributes)[0] for send in sends]
    numbers = range(first, first + len(sends))
    return encoder.encode(numbers, target, headers, [send.body for send in sends], [send.kind for send in sends])


def compare_frames(chance: random.Random) -> int:
    """Return the number of random sends. Raise `AssertionError` if the two ways encode different bytes for them."""
    framing = chance.choice(list(Framing))
    encoder = SendEncoder(framing, 10_000)
    authorization = broker_pb.AuthorizedInfo(visitAuthorizedToken=chance.randrange(1 << 40))
    topic = chance.choice(["demo", "t" * chance.randrange(1, 200)])
    count = 0
    for number in range(3):
        target = encode_target("client", Partition(1, topic, number), authorization)
        sends = [_random_send(chance) for _ in range(chance.randrange(1, 6))]
        first = chance.randrange(1, (1 << 31) - len(sends))
        data, sizes = encoded(encoder, first, target, sends)
        wanted = [plain_frame(first + n, target, send, framing) for n, send in enumerate(sends)]
        assert data == b"".join(wanted)
        assert sizes == list(map(len, wanted))
        received = [decode_request(frame.body) for frame in FrameDecoder(framing).feed(data)]
        assert [broker_pb.SendMessageRequestP2B.FromString(one.data) for one in received] == [
            _message(target, send) for send in sends
        ]
        count += len(sends)
    return count


def _message(target: bytes, send: Send) -> broker_pb.SendMessageRequestP2B:
    """Return what the broker must read."""
    payload, flag = encode_payload(send.body, send.attributes)
    message = broker_pb.SendMessageRequestP2B.FromString(target)
    message.MergeFrom(
        broker_pb.SendMessageRequestP2B(
            data=payload, flag=flag, checkSum=check_sum(payload), msgType=send.kind[0], msgTime=send.kind[1]
        )
    )
    return message


def _random_send(chance: random.Random) -> Send:
    kind = chance.choice([None, "news", "Zürich"]), chance.choice([None, "202611222031"])
    attributes = encode_attributes(chance.choice([None, {"city": "Zürich" * chance.randrange(9)}]), *kind)
    size = chance.choice([0, 1, 99, 100, 127, 128, 1024, chance.randrange(9000), chance.randrange(7800, 8300)])
    return Send(chance.randbytes(size), chance.choice([b"", attributes]), kind)


def answer(chance: random.Random, code: int = ErrCode.SUCCESS) -> broker_pb.SendMessageResponseB2P:
    """Return an answer with numbers of any length; most servers repeat the message's id as text."""
    message_id = chance.randrange(1 << chance.choice([7, 14, 21, 31, 40]))
    text = chance.choice([str(message_id), "Ok!", "Zürich", ""])
    made = broker_pb.SendMessageResponseB2P(success=code == ErrCode.SUCCESS, errCode=code, errMsg=text)
    if chance.random() < 0.9:
        made.messageId = message_id
        made.appendTime = chance.choice([1_795_000_000_000, -1])
        made.appendOffset = 28 * message_id
    if chance.random() < 0.3:
        made.requireAuth = chance.random() < 0.5
    return made


def conversation(chance: random.Random, numbers: list[int]) -> list[bytearray]:
    """Return a server's replies to the sends with these serial numbers, some of them spoiled."""
    kinds = [answer(chance) for _ in range(chance.randrange(1, 3))]
    frames = []
    for serial_no in numbers:
        usual = Response(Method.SEND_MESSAGE, chance.choice(kinds).SerializeToString())
        overflow = answer(chance, ErrCode.SERVER_RECEIVE_OVERFLOW).SerializeToString()
        others: list[Response | Failure] = [
            Response(Method.SEND_MESSAGE, overflow),
            Response(Method.SEND_MESSAGE, b""),
            Response(Method.SEND_MESSAGE, usual.data + b"\x10\x90\x03"),  # the code comes again, another one
            Response(Method.SEND_MESSAGE, usual.data + b"\x78\x01"),  # with a field that no release knows
            Response(Method.GET_MESSAGE, usual.data),
            Failure("java.io.IOException", "no disk"),
        ]
        reply = usual if chance.random() < 0.98 else chance.choice(others)
        frames.append(bytearray(encode_frame(serial_no, encode_reply(reply), Framing.STANDARD)))
    if chance.random() < 0.2:
        chance.shuffle(frames)
    if chance.random() < 0.1:
        frames.insert(chance.randrange(len(frames) + 1), chance.choice(frames))
    if chance.random() < 0.3:
        spoiled = chance.choice(frames)
        spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
    return frames


def pieces(chance: random.Random, frames: list[bytearray]) -> Iterator[bytes]:
    """Yield the bytes as a socket returns them: some whole frames at a time, usually."""
    while frames:
        count = chance.randrange(1, 7)
        part, frames = b"".join(frames[:count]), frames[count:]
        cut = chance.randrange(len(part)) if chance.random() < 0.05 else 0
        yield part[:cut]
        yield part[cut:]


def seen_by(rpc: RpcProtocol, parts: list[bytes]) -> Seen:
    seen: Seen = []
    for part in parts:
        try:
            assert rpc.receive(part) == []
            error = None
        except ProtocolError as problem:
            error = problem
        for outcome in rpc.take_outcomes():
            if isinstance(outcome, int):
                seen += [ACK] * outcome
            elif isinstance(outcome, list):
                assert all(answer.errCode == ErrCode.SUCCESS for answer in outcome)
                seen += [ACK] * len(outcome)
            else:
                seen.append("no reply" if isinstance(outcome, ProtocolError) else outcome)
        if error is not None:
            return [*seen, "error"]
    return seen


def plain_outcomes(parts: list[bytes], numbers: list[int]) -> Seen:
    """Return what the decoders of frames and envelopes make of a server's bytes."""
    seen: Seen = []
    decoder = FrameDecoder(Framing.STANDARD)
    left = deque(numbers)
    try:
        for part in parts:
            for serial_no, body in decoder.feed(part):
                if serial_no not in left:
                    raise ProtocolError("nobody waits for it")
                while left[0] != serial_no:
                    left.popleft()
                    seen.append("no reply")
                left.popleft()
                reply = decode_reply(body, Method.SEND_MESSAGE)
                if isinstance(reply, Response) and reply.method != Method.SEND_MESSAGE:
                    raise ProtocolError("another method")
                seen.append(ACK if _is_ack(reply) else reply)
    except ProtocolError:
        seen.append("error")
    return seen


def _is_ack(reply: Response | Failure) -> bool:
    try:
        return isinstance(reply, Response) and parse(SendAck, reply.data).errCode == ErrCode.SUCCESS
    except ProtocolError:
        return False


def compare_answers(chance: random.Random) -> bool:
    """Raise `AssertionError` if the two ways make something else of a server's bytes. Return True if all were acks."""
    rpc = RpcProtocol(Framing.STANDARD)
    rpc.wants_answers = chance.random() < 0.5
    numbers: list[int] = []
    for _ in range(chance.randrange(1, 4)):
        sends = rpc.next_sends(chance.randrange(1, 8))
        rpc.sent(sends)
        numbers += sends
    parts = [*pieces(chance, conversation(chance, numbers)), b""]
    wanted = plain_outcomes(parts, numbers)
    assert seen_by(rpc, parts) == wanted
    if "error" not in wanted:
        assert rpc.unanswered == len(numbers) - len(wanted)
    return all(what == ACK for what in wanted)
