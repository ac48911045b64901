# SPDX-License-Identifier: Apache-2.0
"""Replies of brokers: claims, confirmations, heartbeats, acknowledgements, fetches."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from google.protobuf.message import Message

from tests.fuzz import corpus
from tests.fuzz.masters import FAILURES, is_readable, same_but_text
from tests.fuzz.mutations import damaged, damaged_text
from tests.fuzz.replies import FORMATS, ReplyFuzz, difference, outcome_of
from tests.protocol.send_differences import compare_answers, compare_frames
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import ProtocolError, TubeMQError
from tubemq_spark.protocol.claim_id import holder_in
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Response, parse
from tubemq_spark.protocol.errcode import error_for_code, not_found_kind
from tubemq_spark.protocol.metadata import parse_failure_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.source.row_format import RowFormat

KINDS: dict[Method, type[Message]] = {
    Method.PARTITION_REGISTER: pb.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: pb.HeartBeatResponseB2C,
    Method.COMMIT_OFFSET: pb.CommitOffsetResponseB2C,
    Method.SEND_MESSAGE: pb.SendMessageResponseB2P,
}
_TEXTS = [
    "[Duplicated Register] Partition 1:demo:0 has been registered by spark_q_r1_b2_driver_a0",
    "[Partition] Partition has been consumed by other;Current consumer is x",
    "The request offset reached maxOffset!",
    "OK!",
]


class Answer(NamedTuple):
    method: Method
    data: bytes


def make_answer(chance: random.Random) -> Answer:
    method = chance.choice(list(KINDS))
    known = corpus.answers(method)
    data = chance.choice(known)
    if chance.random() < 0.4:
        message: Any = KINDS[method].FromString(data)
        message.errMsg = damaged_text(chance, chance.choice(_TEXTS), _TEXTS)
        message.errCode = chance.choice((200, 404, 410, 412, 415, 0, -1, 2**31 - 1))
        if method is Method.PARTITION_HEARTBEAT:
            message.hasPartFailure = chance.random() < 0.8
            message.failureInfo.extend(
                damaged_text(chance, chance.choice(FAILURES), FAILURES) for _ in range(chance.randint(0, 3))
            )
        data = message.SerializeToString()
    return Answer(method, damaged(chance, data, known))


def accepts_answer(given: Answer) -> bool:
    """Compare the message with protobuf's, and read the texts as readers and claims do."""
    kind = KINDS[given.method]
    try:
        reply: Any = unwrap_reply(Response(given.method, given.data), kind, "asking")
    except ProtocolError:
        assert not is_readable(kind, given.data)
        return False
    holder_in(reply.errMsg)
    not_found_kind(reply.errMsg)
    assert isinstance(error_for_code(reply.errCode, reply.errMsg, "asking"), TubeMQError)
    if given.method is Method.PARTITION_HEARTBEAT:
        for text in reply.failureInfo:
            outcome_of(parse_failure_info, text)
    assert same_but_text(reply, kind.FromString(given.data))
    return True


class Fetches(NamedTuple):
    """Replies to fetches that are read one after the other, and how rows are made of them."""

    replies: tuple[bytes, ...]
    form: RowFormat


def make_fetches(chance: random.Random) -> Fetches:
    fuzz = ReplyFuzz(chance)
    return Fetches(tuple(fuzz.reply() for _ in range(chance.randint(1, 3))), chance.choice(FORMATS))


def accepts_fetches(given: Fetches) -> bool:
    """Compare columns with the parser: messages, rows, errors."""
    problem = difference(given.replies, given.form)
    assert problem is None, problem
    return not any(isinstance(outcome_of(parse, pb.GetMessageResponseB2C, data), tuple) for data in given.replies)


def make_seed(chance: random.Random) -> int:
    return chance.getrandbits(64)


def accepts_acknowledgements(seed: int) -> bool:
    """Compare what is made of a conversation about sends with the plain path."""
    return compare_answers(random.Random(seed))


def accepts_sends(seed: int) -> bool:
    """Compare the frames of 40 records or more with protobuf's encoding."""
    chance, count = random.Random(seed), 0
    while count < 40:
        count += compare_frames(chance)
    return True
