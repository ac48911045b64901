# SPDX-License-Identifier: Apache-2.0
"""A scripted broker: one partition with a simulated store, and one consumer group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.peers import Peer, answering, message_reply
from tests.protocol.simulated_store import UNIT, Fetched, SimulatedStore, Sought
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.envelope import Request, Response
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb

OURS = 7
PARTITION = Partition(1, "demo", OURS)

_TEXTS = {
    NotFound.END: "The request offset reached maxOffset!",
    NotFound.PASSED: "Can't found Message by index!",
    NotFound.WAIT: "current data is being flushed",
}


@dataclass
class FakeBroker:
    """One partition of a simulated store, and one group.

    `log` lists the requests that it has handled. `script` is called before each of them: it may raise an error to break
    the connection, or change the broker. If it returns a number, that is the error code of the reply.
    """

    store: SimulatedStore
    holder: str | None = None
    script: Callable[[str], int | None] = lambda step: None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peer = Peer(answering(self._answer))

    def _answer(self, request: Request) -> Response:
        match request.method:
            case Method.PARTITION_REGISTER:
                return message_reply(request, self._register(pb.RegisterRequestC2B.FromString(request.data)))
            case Method.GET_MESSAGE:
                return message_reply(request, self._fetch(pb.GetMessageRequestC2B.FromString(request.data)))
            case Method.COMMIT_OFFSET:
                return message_reply(request, self._roll_back(pb.CommitOffsetRequestC2B.FromString(request.data)))
            case _:
                return message_reply(request, self._beat(pb.HeartBeatRequestC2B.FromString(request.data)))

    def _step(self, step: str) -> int | None:
        code = self.script(step)
        self.log.append(step)
        return code

    def _register(self, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        release = request.opType == OpType.UNREGISTER
        code = self._step("release" if release else "seek")
        text = ""
        found = Sought(-1, -1)
        if release and self.holder == request.clientId:
            self.holder = None
        elif release:
            code = 412
        elif code is None and self.holder in (None, request.clientId):
            self.holder = request.clientId
            stays = (self.store.confirmed or 0) * UNIT
            found = self.store.seek(request.currOffset if request.HasField("currOffset") else stays)
        elif code is None:
            code, text = 410, f"[Duplicated Register] Partition x has been registered by {self.holder}"
        return pb.RegisterResponseB2C(
            success=code is None,
            errCode=code or 200,
            errMsg=text,
            currOffset=found.curr_offset,
            maxOffset=found.max_offset,
        )

    def _fetch(self, request: pb.GetMessageRequestC2B) -> pb.GetMessageResponseB2C:
        code = self._step("fetch") or self._not_held_by(request.clientId)
        found = NotFound.WAIT if code else self.store.fetch(OURS)
        if not isinstance(found, Fetched):
            return pb.GetMessageResponseB2C(success=False, errCode=code or 404, errMsg=_TEXTS[found], currOffset=-1)
        return pb.GetMessageResponseB2C(
            success=True,
            errCode=200,
            errMsg="",
            currOffset=found.begin,
            maxOffset=found.max_offset,
            messages=[
                pb.TransferedMessage(messageId=m.messageId, checkSum=m.checkSum, flag=0, payLoadData=b"x")
                for m in found.messages
            ],
        )

    def _roll_back(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        code = self._step("roll back") or (401 if self._not_held_by(request.clientId) else None)
        position = -1 if code else self.store.roll_back()
        return pb.CommitOffsetResponseB2C(success=code is None, errCode=code or 200, errMsg="", currOffset=position)

    def _beat(self, request: pb.HeartBeatRequestC2B) -> pb.HeartBeatResponseB2C:
        self._step("beat")
        code = self._not_held_by(request.clientId)
        return pb.HeartBeatResponseB2C(
            success=True,
            errCode=200,
            errMsg="",
            hasPartFailure=code is not None,
            failureInfo=[f"{code}:{info}" for info in request.partitionInfo if code is not None],
        )

    def _not_held_by(self, client_id: str) -> int | None:
        if self.holder == client_id:
            return None
        return 411 if self.holder is None else 412


class Break:
    """A script that breaks the connection at the n-th `step`, counted from 0."""

    def __init__(self, step: str, number: int = 0) -> None:
        self.step, self.left = step, number

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left == -1:
                raise ConnectionError
