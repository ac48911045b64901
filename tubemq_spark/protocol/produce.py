"""The life cycle of a message on its way to a broker, and where messages go."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from tubemq_spark.protocol.errcode import ErrCode, Reaction, reaction_to
from tubemq_spark.protocol.metadata import Partition


class SendState(Enum):
    WAITING = auto()
    SENT = auto()
    STORED = auto()
    REFUSED = auto()  # for good: no broker will ever take it


class SendEvent(Enum):
    SENT = auto()
    ACKNOWLEDGED = auto()
    FAILED = auto()  # this time: no answer, or one that another partition or a later moment may not give
    REFUSED = auto()


SEND: Mapping[tuple[SendState, SendEvent], SendState] = {
    (SendState.WAITING, SendEvent.SENT): SendState.SENT,
    (SendState.WAITING, SendEvent.REFUSED): SendState.REFUSED,
    (SendState.SENT, SendEvent.ACKNOWLEDGED): SendState.STORED,
    (SendState.SENT, SendEvent.FAILED): SendState.WAITING,
    (SendState.SENT, SendEvent.REFUSED): SendState.REFUSED,
}


def send_event(code: int) -> SendEvent:
    """What a broker's answer to a send means for the message."""
    if code == ErrCode.SUCCESS:
        return SendEvent.ACKNOWLEDGED
    # A token may have expired (CERTIFICATE_FAILURE): the next heartbeat brings another one.
    retried = reaction_to(code) in (Reaction.RETRY, Reaction.WAIT) or code == ErrCode.CERTIFICATE_FAILURE
    return SendEvent.FAILED if retried else SendEvent.REFUSED


class RoundRobin:
    """Deals messages to partitions in turn, beginning anywhere, so that many short tasks do not all begin at the first.

    Partitions to be avoided are left out unless there are no others.
    """

    def __init__(self, start: int | None = None) -> None:
        self._next = random.randrange(1 << 30) if start is None else start

    def choose(self, partitions: Sequence[Partition], avoided: frozenset[Partition] = frozenset()) -> Partition:
        """`partitions` must not be empty."""
        for _ in partitions:
            self._next += 1
            chosen = partitions[self._next % len(partitions)]
            if chosen not in avoided:
                return chosen
        return partitions[self._next % len(partitions)]
