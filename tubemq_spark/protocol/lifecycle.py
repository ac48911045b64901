# SPDX-License-Identifier: Apache-2.0
"""State machines as tables: group membership at the master, and records to send.

Also what a failed send means: retry, unknown outcome, or refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Generic, TypeVar

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode, Reaction, is_elsewhere, reaction_to
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Lifecycle(Generic[S, E]):
    """The state of one object. Events change it as `table` says. Its keys are (state, event); all others are errors."""

    def __init__(self, what: str, start: S, table: Mapping[tuple[S, E], S]) -> None:
        self._what = what
        self._table = table
        self.state = start

    def on(self, event: E) -> S:
        """Return the new state. Raise `ProtocolError` if `event` is not possible in the current state."""
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            raise ProtocolError(f"{self._what} is {self.state.name}: {event.name} cannot happen now") from None
        return self.state

    def __repr__(self) -> str:
        return f"<{self._what} {self.state.name}>"


class MemberState(Enum):
    """A consumer of a group, or a producer, as the master sees it."""

    NEW = auto()
    REGISTERED = auto()
    FORGOTTEN = auto()  # the master timed it out, or another master took over: register again
    CLOSED = auto()


class MemberEvent(Enum):
    REGISTERED = auto()
    ANSWERED = auto()  # the master answered a heartbeat or a metadata request
    FORGOTTEN = auto()
    CLOSED = auto()


_REGISTRABLE = (MemberState.NEW, MemberState.REGISTERED, MemberState.FORGOTTEN)
MEMBER: Mapping[tuple[MemberState, MemberEvent], MemberState] = {
    **{(state, MemberEvent.CLOSED): MemberState.CLOSED for state in MemberState},
    **{(state, MemberEvent.REGISTERED): MemberState.REGISTERED for state in _REGISTRABLE},
    **{(state, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN for state in _REGISTRABLE},
    (MemberState.REGISTERED, MemberEvent.ANSWERED): MemberState.REGISTERED,
}


Answer = broker_pb.SendMessageResponseB2P
Outcome = Answer | Failure | TransportError | ProtocolError
"""What became of one send: the broker's answer, an exception at the broker, or the error that ended the connection."""


class SendState(Enum):
    __hash__ = object.__hash__  # in C, because each record changes its state a few times

    WAITING = auto()
    IN_FLIGHT = auto()
    UNRESOLVED = auto()  # stored or not: only a look-up in the partition can tell
    STORED = auto()
    REFUSED = auto()  # no broker will ever take it


class SendEvent(Enum):
    __hash__ = object.__hash__

    SENT = auto()
    ACKNOWLEDGED = auto()
    FAILED = auto()  # may be sent again
    OUTCOME_UNKNOWN = auto()  # failed, perhaps stored, and must not be stored twice
    FOUND = auto()  # the look-up found it in its partition
    NOT_FOUND = auto()
    REFUSED = auto()


SEND: Mapping[tuple[SendState, SendEvent], SendState] = {
    (SendState.WAITING, SendEvent.SENT): SendState.IN_FLIGHT,
    (SendState.WAITING, SendEvent.REFUSED): SendState.REFUSED,
    (SendState.IN_FLIGHT, SendEvent.ACKNOWLEDGED): SendState.STORED,
    (SendState.IN_FLIGHT, SendEvent.FAILED): SendState.WAITING,
    (SendState.IN_FLIGHT, SendEvent.REFUSED): SendState.REFUSED,
    (SendState.IN_FLIGHT, SendEvent.OUTCOME_UNKNOWN): SendState.UNRESOLVED,
    (SendState.UNRESOLVED, SendEvent.FOUND): SendState.STORED,
    (SendState.UNRESOLVED, SendEvent.NOT_FOUND): SendState.WAITING,
    (SendState.UNRESOLVED, SendEvent.REFUSED): SendState.REFUSED,
}


class FailureCause(Enum):
    """What a failed send says about the broker or the partition."""

    AUTHORIZATION = auto()  # 415; the visit token may have expired
    BROKER_REFUSES = auto()  # the broker starts or stops
    BROKER_FULL = auto()
    PARTITION_CLOSED = auto()  # 403; closed for a while or for good
    OTHER = auto()


_CAUSES: Mapping[int, FailureCause] = {
    ErrCode.CERTIFICATE_FAILURE: FailureCause.AUTHORIZATION,
    ErrCode.SERVICE_UNAVAILABLE: FailureCause.BROKER_REFUSES,
    ErrCode.SERVER_RECEIVE_OVERFLOW: FailureCause.BROKER_FULL,
    ErrCode.FORBIDDEN: FailureCause.PARTITION_CLOSED,
}

# A broker that answers with one of these codes has stored nothing (wire: BrokerServiceServer). Any other failure, and
# a missing answer, leave that open.
_NOT_STORED = frozenset({ErrCode.BAD_REQUEST, ErrCode.UNAUTHORIZED, *_CAUSES})


def send_event(code: int) -> SendEvent:
    """Return what a broker's answer to a send means for a record that may be stored twice."""
    if code == ErrCode.SUCCESS:
        return SendEvent.ACKNOWLEDGED
    # The visit token may have expired (CERTIFICATE_FAILURE): the next heartbeat brings a new one.
    retried = reaction_to(code) in (Reaction.RETRY, Reaction.WAIT) or code == ErrCode.CERTIFICATE_FAILURE
    return SendEvent.FAILED if retried else SendEvent.REFUSED


def classify_failure(outcome: Outcome, *, store_once: bool) -> tuple[SendEvent, FailureCause]:
    """Return what a failed send means for its record, and for the broker or partition.

    The event is `FAILED`, `REFUSED`, or, for a record that must be stored only once (`store_once`) and may be stored,
    `OUTCOME_UNKNOWN`.
    """
    if isinstance(outcome, Answer):
        event, cause = send_event(outcome.errCode), _CAUSES.get(outcome.errCode, FailureCause.OTHER)
        is_not_stored = outcome.errCode in _NOT_STORED
    else:
        is_not_stored = isinstance(outcome, Failure) and is_elsewhere(outcome)
        event, cause = SendEvent.FAILED, FailureCause.BROKER_REFUSES if is_not_stored else FailureCause.OTHER
    if event is SendEvent.FAILED and store_once and not is_not_stored:
        event = SendEvent.OUTCOME_UNKNOWN
    return event, cause
