# SPDX-License-Identifier: Apache-2.0
"""The longest frames that a peer may send: a process reads one with less than 200 MB of memory, or refuses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.peers import Peer, answering, message_reply
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import COUNTED_FROM, Failure, Request, Response
from tubemq_spark.protocol.frame import max_body_size
from tubemq_spark.protocol.message import check_sum
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells how much memory was taken"),
]

ROOM = max_body_size(Framing.STANDARD) - 100  # bytes of a reply's message
MOST = 200 << 20  # bytes


def many(message: Message, field: str, value: bytes, room: int = ROOM) -> bytes:
    """`message`, filled up with this value of a field that repeats."""
    number = message.DESCRIPTOR.fields_by_name[field].number
    one = bytes([number << 3 | 2, len(value)]) + value
    head = message.SerializePartialToString()
    return head + one * ((room - 1 - len(head)) // len(one))


def meta() -> master_pb.GetPartMetaResponseM2C:
    return master_pb.GetPartMetaResponseM2C(errCode=200, errMsg="")


def fetched(*payloads: bytes, flag: int = 0) -> broker_pb.GetMessageResponseB2C:
    messages = [
        broker_pb.TransferedMessage(messageId=1, checkSum=check_sum(payload), flag=flag, payLoadData=payload)
        for payload in payloads
    ]
    return broker_pb.GetMessageResponseB2C(
        success=True, errCode=200, errMsg="", currOffset=0, maxOffset=28, messages=messages
    )


def with_header(text: bytes) -> bytes:
    header = (text * (ROOM // len(text)))[: ROOM - 100]
    return fetched(len(header).to_bytes(4, "big") + header, flag=1).SerializeToString()


def tiny() -> bytes:
    return broker_pb.TransferedMessage(messageId=1, checkSum=0, flag=0, payLoadData=b"").SerializeToString()


WIDE = "\N{SNOWMAN}\N{GRINNING FACE}"  # takes four bytes a character in memory

ANSWERS: dict[str, tuple[str, Callable[[], bytes | Failure], str]] = {
    "empty strings": ("master", lambda: many(meta(), "topicMetaInfoList", b""), "has more than 100000 fields"),
    "brokers": ("master", lambda: many(meta(), "brokerConfigList", b"1:h:1"), "has more than 100000 fields"),
    "a long error": (
        "master",
        lambda: master_pb.GetPartMetaResponseM2C(errCode=431, errMsg=WIDE * (ROOM // 7 - 9)).SerializeToString(),
        r"failed with 431 TOPIC_NOT_DEPLOYED: .* characters\); check the topic's name",
    ),
    "a long exception": (
        "broker",
        lambda: Failure("org.apache.SomeException", WIDE * (ROOM // 7 - 9)),
        r"failed at the server with SomeException: .* characters\)",
    ),
    "tiny messages": ("broker", lambda: many(fetched(), "messages", tiny()), "has more than 100000 fields"),
    "empty messages": ("broker", lambda: many(fetched(), "messages", b""), "has more than 100000 fields"),
    "a long attribute": ("broker", lambda: with_header(WIDE.encode()), "claims 29.* bytes of attributes"),
    "many attributes": ("broker", lambda: with_header(b"a,"), "claims 29.* bytes of attributes"),
    "tiny messages of fewer bytes": ("broker", lambda: many(fetched(), "messages", tiny(), COUNTED_FROM), "moved"),
    "empty messages of fewer bytes": (
        "broker",
        lambda: many(fetched(), "messages", b"", COUNTED_FROM),
        "a GetMessageResponseB2C came without messages.messageId, messages.checkSum, messages.payLoadData, messages.f",
    ),
    "a long body": ("broker", lambda: fetched(bytes(ROOM - 100)).SerializeToString(), "^1 rows$"),
}


@pytest.fixture(scope="module")
def reading() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.client.net.memory_of_reading"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.communicate()[0] == ""
    assert process.returncode == 0


@pytest.mark.parametrize("case", ANSWERS)
def test_a_frame_takes_little_memory_or_is_refused(case: str, reading: subprocess.Popen[str]) -> None:
    who, make, expected = ANSWERS[case]
    made = make()

    def answer(request: Request) -> Response | Failure:
        match request.method:
            case Method.CONSUMER_REGISTER_V2:
                return message_reply(request, master_pb.RegisterResponseM2CV2(errCode=200, errMsg=""))
            case Method.PARTITION_REGISTER:
                reply = broker_pb.RegisterResponseB2C(success=True, errCode=200, errMsg="", currOffset=0, maxOffset=28)
                return message_reply(request, reply)
            case Method.GET_PARTITION_META | Method.GET_MESSAGE:
                return made if isinstance(made, Failure) else Response(request.method, made)
            case Method.COMMIT_OFFSET:
                back = broker_pb.CommitOffsetResponseB2C(success=True, errCode=200, errMsg="", currOffset=0)
                return message_reply(request, back)
        return Failure("org.apache.SomeException", "")

    with Peer(answering(answer)) as peer:
        assert reading.stdin is not None
        assert reading.stdout is not None
        reading.stdin.write(f"{who} {peer.address.port}\n")
        reading.stdin.flush()
        told = json.loads(reading.stdout.readline())
    assert re.search(expected, told["outcome"])
    assert len(told["outcome"]) < 2000
    assert 0 < told["memory"] < MOST
