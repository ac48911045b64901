# SPDX-License-Identifier: Apache-2.0
"""Valid input: conversations with real servers (tests/golden)."""

from __future__ import annotations

import zipfile
from functools import cache

from tests.golden.test_bytes import FILES, GOLDEN
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Response, decode_reply, decode_request, encode_reply
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_LARGEST = 3000  # bytes; longer bodies are cut, because most of their bytes are payload


@cache
def frames(framing: Framing) -> list[bytes]:
    """Return whole frames of requests and replies, some of several blocks, and with prefixed framing some padded."""
    found = []
    for stem, path in FILES.items():
        given = Framing(stem.rpartition("-")[2])
        with zipfile.ZipFile(path) as files:
            wire = [files.read(name) for name in sorted(files.namelist())]
        if given is framing is Framing.PREFIXED:
            found += [data for data in wire if len(data) < 9000][::6]  # with their padding
        for data in wire:
            for serial_no, body in FrameDecoder(given).feed(data):
                found.append(encode_frame(serial_no, body[:_LARGEST], framing))
    found.append(small_blocks(7, b"abc", b"", b"d" * 300, framing=framing))
    return sorted(set(found))


def small_blocks(serial_no: int, *blocks: bytes, framing: Framing) -> bytes:
    """Return a frame whose blocks are cut where no server cuts them, which is allowed."""
    token = encode_frame(1, b"x", Framing.STANDARD)[:4]
    head = token + serial_no.to_bytes(4, "big") + len(blocks).to_bytes(4, "big")
    whole = head + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    return whole if framing is Framing.STANDARD else len(whole).to_bytes(4, "big") + whole


@cache
def replies() -> list[tuple[int, bytes]]:
    """Return methods of requests and the envelopes of their replies."""
    found: list[tuple[int, bytes]] = []
    for stem, path in FILES.items():
        framing = Framing(stem.rpartition("-")[2])
        with zipfile.ZipFile(path) as files:
            for name in {name.partition(".")[0] for name in files.namelist()}:
                (asked,) = FrameDecoder(framing).feed(files.read(f"{name}.request"))
                (answered,) = FrameDecoder(framing).feed(files.read(f"{name}.reply"))
                found.append((decode_request(asked.body).method, answered.body))
    acknowledged = broker_pb.SendMessageResponseB2P(success=True, errCode=200, errMsg="77", messageId=77)
    for size in (0, 1, 100, 127, 128, 140, 300):
        text = broker_pb.SendMessageResponseB2P(success=True, errCode=500, errMsg="x" * size)
        found.append((Method.SEND_MESSAGE, encode_reply(Response(Method.SEND_MESSAGE, text.SerializeToString()))))
    found.append((Method.SEND_MESSAGE, encode_reply(Response(Method.SEND_MESSAGE, acknowledged.SerializeToString()))))
    for exception in ("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "java.lang.Exception", ""):
        for fatal in (False, True):
            found.append((Method.GET_MESSAGE, encode_reply(Failure(exception, "a reason", fatal))))
    return sorted(set(found))


@cache
def requests() -> list[bytes]:
    """Return the envelopes of requests."""
    found = set()
    for stem, path in FILES.items():
        framing = Framing(stem.rpartition("-")[2])
        with zipfile.ZipFile(path) as files:
            for name in files.namelist():
                if name.endswith(".request"):
                    found.add(FrameDecoder(framing).feed(files.read(name))[0].body[:_LARGEST])
    return sorted(found)


@cache
def answers(method: int) -> list[bytes]:
    """Return the messages of successful replies to `method`, still encoded."""
    decoded = (decode_reply(body) for asked, body in replies() if asked == method)
    return sorted({one.data for one in decoded if isinstance(one, Response)})


@cache
def packs() -> list[bytes]:
    """Return InLong packs that InLong's own class has written."""
    return [path.read_bytes() for path in sorted((GOLDEN / "inlong").glob("*.bin"))]


@cache
def offsets() -> list[str]:
    """Return the offsets of golden checkpoints as text."""
    logs = sorted((GOLDEN / "checkpoints").rglob("offsets/*"))
    return sorted({path.read_text(encoding="utf-8").splitlines()[-1] for path in logs if path.name.isdigit()})
