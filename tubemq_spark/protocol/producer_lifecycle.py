"""The life cycle of a message on its way to a broker, and where messages go."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from tubemq_spark.protocol.errcode import ErrCode, Reaction, reaction_to
from tubemq_spark.protocol.metadata import Partition


class SendState(Enum):
    __hash__ = object.__hash__  # in C: each message changes its state a few times

    WAITING = auto()
    SENT = auto()
    IN_DOUBT = auto()  # stored or not: only a look at the partition can tell
    STORED = auto()
    REFUSED = auto()  # for good: no broker will ever take it


class SendEvent(Enum):
    __hash__ = object.__hash__

    SENT = auto()
    ACKNOWLEDGED = auto()
    FAILED = auto()  # this time: no answer, or one that another partition or a later moment may not give
    DOUBTED = auto()  # as FAILED, for a message that must not be stored twice
    FOUND = auto()
    MISSED = auto()  # by a look: it was not stored
    REFUSED = auto()


SEND: Mapping[tuple[SendState, SendEvent], SendState] = {
    (SendState.WAITING, SendEvent.SENT): SendState.SENT,
    (SendState.WAITING, SendEvent.REFUSED): SendState.REFUSED,
    (SendState.SENT, SendEvent.ACKNOWLEDGED): SendState.STORED,
    (SendState.SENT, SendEvent.FAILED): SendState.WAITING,
    (SendState.SENT, SendEvent.REFUSED): SendState.REFUSED,
    (SendState.SENT, SendEvent.DOUBTED): SendState.IN_DOUBT,
    (SendState.IN_DOUBT, SendEvent.FOUND): SendState.STORED,
    (SendState.IN_DOUBT, SendEvent.MISSED): SendState.WAITING,
    (SendState.IN_DOUBT, SendEvent.REFUSED): SendState.REFUSED,
}

# With one of these a broker has stored nothing. Other failures, and no answer at all, leave that open.
_NOT_STORED = frozenset(
    {
        ErrCode.BAD_REQUEST,
        ErrCode.UNAUTHORIZED,
        ErrCode.FORBIDDEN,
        ErrCode.CERTIFICATE_FAILURE,
        ErrCode.SERVER_RECEIVE_OVERFLOW,
        ErrCode.SERVICE_UNAVAILABLE,
    }
)


def send_event(code: int) -> SendEvent:
    """What a broker's answer to a send means for the message."""
    if code == ErrCode.SUCCESS:
        return SendEvent.ACKNOWLEDGED
    # A token may have expired (CERTIFICATE_FAILURE): the next heartbeat brings another one.
    retried = reaction_to(code) in (Reaction.RETRY, Reaction.WAIT) or code == ErrCode.CERTIFICATE_FAILURE
    return SendEvent.FAILED if retried else SendEvent.REFUSED


def may_be_stored(code: int) -> bool:
    """Whether a message may stand although its send was answered with the error `code` (wire: BrokerServiceServer)."""
    return code not in _NOT_STORED


class RoundRobin:
    """Deals messages to partitions in turn, beginning anywhere, lest many short tasks all begin at the first."""

    def __init__(self, start: int | None = None) -> None:
        self._next = random.randrange(1 << 30) if start is None else start

    def choose(self, partitions: Sequence[Partition]) -> Partition:
        """`partitions` must not be empty."""
        self._next += 1
        return partitions[self._next % len(partitions)]
