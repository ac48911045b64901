"""The life cycles of a consumer: its membership of a group at the master, and its claims at the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class MemberState(Enum):
    """A client of a group (or a producer) as the master sees it."""

    NEW = auto()
    REGISTERED = auto()
    FORGOTTEN = auto()  # the master timed it out, or is another one now: register again
    CLOSED = auto()


class MemberEvent(Enum):
    REGISTERED = auto()
    ANSWERED = auto()  # a heartbeat or a question for metadata
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
    """One partition, as its would-be holder sees it."""

    FREE = auto()
    HELD = auto()
    LENT = auto()  # to the tasks of the query, which claim it under names of their own
    LOST = auto()  # the broker forgot it (a restart, an expiry) or gave it to somebody else
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
    (ClaimState.FREE, ClaimEvent.LENT): ClaimState.LENT,  # after a restart the first batch is read before any claim
    (ClaimState.HELD, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.HELD, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.HELD, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.HELD, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LENT, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LENT, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LENT, ClaimEvent.REFUSED): ClaimState.LENT,  # a task has it: that is what it was lent for
    (ClaimState.LENT, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.LOST, ClaimEvent.REGISTERED): ClaimState.HELD,
    (ClaimState.LOST, ClaimEvent.REFUSED): ClaimState.LOST,
    (ClaimState.LOST, ClaimEvent.LENT): ClaimState.LENT,
    (ClaimState.LOST, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
    (ClaimState.CLOSED, ClaimEvent.UNREGISTERED): ClaimState.CLOSED,
}
