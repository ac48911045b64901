"""State machines as tables: of a consumer's group membership at the master, and its partition claims at the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Generic, TypeVar

from tubemq_spark.errors import ProtocolError

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


MEMBER: Mapping[tuple[MemberState, MemberEvent], MemberState] = {
    (MemberState.NEW, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.NEW, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.NEW, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.REGISTERED, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.REGISTERED, MemberEvent.ANSWERED): MemberState.REGISTERED,
    (MemberState.REGISTERED, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.REGISTERED, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.FORGOTTEN, MemberEvent.REGISTERED): MemberState.REGISTERED,
    (MemberState.FORGOTTEN, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN,
    (MemberState.FORGOTTEN, MemberEvent.CLOSED): MemberState.CLOSED,
    (MemberState.CLOSED, MemberEvent.CLOSED): MemberState.CLOSED,
}


class ClaimState(Enum):
    """A claim on one partition, as the client that wants it sees it."""

    FREE = auto()
    HELD = auto()
    LENT = auto()  # to the query's tasks, which claim it under their own client ids
    LOST = auto()  # the broker forgot it (restart, expiry) or another client took it
    CLOSED = auto()


class ClaimEvent(Enum):
    REGISTERED = auto()
    LENT = auto()
    REFUSED = auto()
    UNREGISTERED = auto()


CLAIM: Mapping[tuple[ClaimState, ClaimEvent], ClaimState] = {
    (ClaimState.FREE, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.FREE, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.FREE, ClaimEvent.REFUSED): ClaimState.FREE,
    (
        ClaimState.FREE,
        ClaimEvent.LENT,
    ): ClaimState.LENT,  # tasks read the first batch after a restart
    (ClaimState.HELD, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.HELD, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.HELD, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.HELD, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LENT, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LENT, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LENT, ClaimEvent.REFUSED): ClaimState.LENT,  # a task holds it, as planned
    (ClaimState.LENT, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LOST, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LOST, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.LOST, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LOST, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.CLOSED, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
}
