# SPDX-License-Identifier: Apache-2.0
"""Compares the fast path of sends with the plain one: frames of requests, and what is made of the server's bytes.

`python -m tests.protocol.send_differences --count 1000000` compares so many conversations. The tests compare a few.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, encode_reply, encode_request, parse
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.message import encode_attributes, encode_content, encode_payload, encode_target
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.rpc import RpcProtocol
from tubemq_spark.protocol.send_frames import SendFrames

Seen = list[tuple[int, object]]
"""What became of each send, in the order of the answers: `ACK`, a reply, or at the end an error without a number."""
ACK = "acknowledged"


def request(data: bytes = b"") -> Request:
    return Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, 10_000, data)


def plain_frame(serial_no: int, target: bytes, body: bytes, frames: SendFrames) -> bytes:
    content = encode_content(*encode_payload(body, frames.attributes), frames.msg_type, frames.msg_time)
    return encode_frame(serial_no, encode_request(request(target + content)), Framing.STANDARD)


def compare_frames(chance: random.Random) -> None:
    """Raise `AssertionError` if the two ways encode different bytes for some random sends."""
    msg_type = chance.choice([None, "news", "Zürich"])
    msg_time = chance.choice([None, "202611222031"])
    attributes = encode_attributes(chance.choice([None, {"city": "Zürich"}]), msg_type, msg_time)
    frames = SendFrames(attributes, msg_type, msg_time, 10_000)
    topics = ["demo", "t" * chance.randrange(1, 200)]
    authorization = broker_pb.AuthorizedInfo(visitAuthorizedToken=chance.randrange(1 << 40))
    targets = [encode_target("client", Partition(1, topic, n), authorization) for topic in topics for n in range(3)]
    count = chance.randrange(1, 6)
    sizes = [chance.choice([0, 1, 99, 100, 127, 128, 1024, chance.randrange(9000)]) for _ in range(count)]
    sends = [(chance.choice(targets), chance.randbytes(size)) for size in sizes]
    sends = [(target, body) for target, body in sends if frames.fits(target, len(body))]
    first = chance.randrange(1, 1 << 31 - count)
    parts, lengths = frames.encode(first, [target for target, _ in sends], [body for _, body in sends])
    wanted = [plain_frame(first + n, *send, frames) for n, send in enumerate(sends)]
    assert b"".join(parts) == b"".join(wanted)
    assert lengths == list(map(len, wanted))


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


def seen_by(rpc: RpcProtocol, parts: list[bytes], runs: list[range]) -> Seen:
    in_runs = [serial_no for run in runs for serial_no in run]
    seen: Seen = []
    counted = 0
    for part in parts:
        try:
            replies = rpc.receive(part)
            rpc_error = None
        except ProtocolError as error:
            replies, rpc_error = [], str(error)
        seen += [(serial_no, ACK) for serial_no in in_runs[counted : rpc.acknowledged]]
        counted = rpc.acknowledged
        seen += [(serial_no, _outcome(reply)) for serial_no, reply in replies]
        if rpc_error is not None:
            return [*sorted(seen, key=lambda one: one[0]), (0, rpc_error)]
    return sorted(seen, key=lambda one: one[0])


def _outcome(reply: Response | Failure) -> object:
    if isinstance(reply, Failure):
        return reply
    try:
        found = parse(broker_pb.SendMessageResponseB2P, reply.data)
    except ProtocolError as error:
        return str(error)
    return ACK if found.errCode == ErrCode.SUCCESS else reply


def compare_answers(chance: random.Random) -> bool:
    """Raise `AssertionError` if the two ways make something else of a server's bytes. Return True if all were acks."""
    fast, plain = RpcProtocol(Framing.STANDARD), RpcProtocol(Framing.STANDARD)
    runs: list[range] = []
    numbers: list[int] = []
    for _ in range(chance.randrange(1, 4)):
        count = chance.randrange(1, 8)
        made = [plain.request(request())[0] for _ in range(count)]
        if chance.random() < 0.8:
            assert fast.can_begin_run(count)
            assert fast.begin_run(count) == made[0]
            runs.append(range(made[0], made[-1] + 1))
        else:
            assert [fast.request(request())[0] for _ in made] == made
        numbers += made
    parts = [*pieces(chance, conversation(chance, numbers)), b""]
    wanted = seen_by(plain, parts, [])
    assert seen_by(fast, parts, runs) == wanted
    assert fast.unanswered == plain.unanswered
    return all(what == ACK for _, what in wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    acknowledged = 0
    for _ in range(given.count):
        compare_frames(chance)
        acknowledged += compare_answers(chance)
    print(f"{given.count} times the same frames and answers; {acknowledged} conversations had only acknowledgements")


if __name__ == "__main__":
    main()
