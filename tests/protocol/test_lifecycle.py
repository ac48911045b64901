# SPDX-License-Identifier: Apache-2.0
"""The life of a member of a group; other orders of events are errors."""

from __future__ import annotations

import pytest

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.lifecycle import MEMBER, Lifecycle, MemberEvent, MemberState


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("REGISTERED ANSWERED FORGOTTEN REGISTERED CLOSED CLOSED", MemberState.CLOSED),
        ("FORGOTTEN REGISTERED", MemberState.REGISTERED),
        ("CLOSED", MemberState.CLOSED),
    ],
)
def test_the_life_of_a_member(events: str, state: MemberState) -> None:
    member = Lifecycle("it", MemberState.NEW, MEMBER)
    assert [member.on(MemberEvent[event]) for event in events.split()][-1] is state


@pytest.mark.parametrize(("before", "event"), [("FORGOTTEN", "ANSWERED"), ("CLOSED", "REGISTERED")])
def test_an_impossible_event_changes_nothing(before: str, event: str) -> None:
    member = Lifecycle("it", MemberState[before], MEMBER)
    with pytest.raises(ProtocolError, match=rf"^it is {before}: {event} cannot happen now$"):
        member.on(MemberEvent[event])
    assert member.state is MemberState[before]
