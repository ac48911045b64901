# SPDX-License-Identifier: Apache-2.0
"""State machine as a table: group membership at the master."""

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


_REGISTRABLE = (MemberState.NEW, MemberState.REGISTERED, MemberState.FORGOTTEN)
MEMBER: Mapping[tuple[MemberState, MemberEvent], MemberState] = {
    **{(state, MemberEvent.CLOSED): MemberState.CLOSED for state in MemberState},
    **{(state, MemberEvent.REGISTERED): MemberState.REGISTERED for state in _REGISTRABLE},
    **{(state, MemberEvent.FORGOTTEN): MemberState.FORGOTTEN for state in _REGISTRABLE},
    (MemberState.REGISTERED, MemberEvent.ANSWERED): MemberState.REGISTERED,
}
