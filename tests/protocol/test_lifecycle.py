# SPDX-License-Identifier: Apache-2.0
"""Tests of all life-cycle tables: complete, without dead ends, and an error for all other events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.lifecycle import (
    MEMBER,
    SEND,
    Answer,
    FailureCause,
    Lifecycle,
    MemberEvent,
    MemberState,
    Outcome,
    SendEvent,
    SendState,
    classify_failure,
    send_event,
)


class Machine(NamedTuple):
    states: type[Enum]
    events: type[Enum]
    table: Mapping[tuple[Any, Any], Enum]
    start: Enum
    final: frozenset[Enum]


MACHINES = {
    "member": Machine(MemberState, MemberEvent, MEMBER, MemberState.NEW, frozenset({MemberState.CLOSED})),
    "send": Machine(SendState, SendEvent, SEND, SendState.WAITING, frozenset({SendState.STORED, SendState.REFUSED})),
}
machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def reachable(machine: Machine, start: Enum) -> set[Enum]:
    found = {start}
    while more := {after for (before, _), after in machine.table.items() if before in found} - found:
        found |= more
    return found


@machines
def test_every_state_can_be_reached(machine: Machine) -> None:
    assert reachable(machine, machine.start) == set(machine.states)


@machines
def test_every_event_can_happen(machine: Machine) -> None:
    assert {event for _, event in machine.table} == set(machine.events)


@machines
def test_every_state_leads_to_a_final_state(machine: Machine) -> None:
    for state in machine.states:
        assert reachable(machine, state) & machine.final
    for state in machine.final:
        assert reachable(machine, state) == {state}


@given(st.sampled_from(list(MACHINES.values())), st.data())
def test_random_events_follow_the_table_or_raise(machine: Machine, data: st.DataObject) -> None:
    cycle = Lifecycle("it", machine.start, machine.table)
    for event in data.draw(st.lists(st.sampled_from(list(machine.events)), max_size=12)):
        before = cycle.state
        if (before, event) in machine.table:
            assert cycle.on(event) is cycle.state is machine.table[before, event]
        else:
            with pytest.raises(ProtocolError, match=rf"^it is {before.name}: {event.name} cannot happen now$"):
                cycle.on(event)
            assert cycle.state is before


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("REGISTERED ANSWERED FORGOTTEN REGISTERED CLOSED CLOSED", MemberState.CLOSED),
        ("FORGOTTEN REGISTERED", MemberState.REGISTERED),
        ("CLOSED", MemberState.CLOSED),
    ],
)
def test_the_life_of_a_member(events: str, state: MemberState) -> None:
    cycle = Lifecycle("member", MemberState.NEW, MEMBER)
    assert [cycle.on(MemberEvent[event]) for event in events.split()][-1] is state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("SENT FAILED SENT ACKNOWLEDGED", SendState.STORED),
        ("SENT REFUSED", SendState.REFUSED),
        ("REFUSED", SendState.REFUSED),
    ],
)
def test_the_life_of_a_sent_message(events: str, state: SendState) -> None:
    cycle = Lifecycle("message", SendState.WAITING, SEND)
    assert [cycle.on(SendEvent[event]) for event in events.split()][-1] is state


def test_the_repr_shows_the_state() -> None:
    assert repr(Lifecycle("member spark_1", MemberState.NEW, MEMBER)) == "<member spark_1 NEW>"


FAILED = {301, 403, 404, 410, 415, 419, 452, 500, 503, 510, 599, 201}


@pytest.mark.parametrize("code", ErrCode)
def test_send_event_of_each_code(code: ErrCode) -> None:
    expected = SendEvent.FAILED if code in FAILED else SendEvent.REFUSED
    assert send_event(code) is (SendEvent.ACKNOWLEDGED if code == 200 else expected)


@pytest.mark.parametrize("code", [0, -1, 440, 1000])
def test_an_unknown_code_is_a_refusal(code: int) -> None:
    assert send_event(code) is SendEvent.REFUSED


def answer(code: int) -> Answer:
    return Answer(success=False, errCode=code, errMsg="")


RETRY, UNKNOWN, REFUSED = SendEvent.FAILED, SendEvent.OUTCOME_UNKNOWN, SendEvent.REFUSED
STOPPING = Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", "")
EXCEPTION = Failure("java.lang.reflect.InvocationTargetException", "")
FAILURES = [
    # outcome                 for a record that may be stored twice, or only once; cause
    (answer(400),             REFUSED, REFUSED, FailureCause.OTHER),
    (answer(403),             RETRY,   RETRY,   FailureCause.PARTITION_CLOSED),
    (answer(415),             RETRY,   RETRY,   FailureCause.AUTHORIZATION),
    (answer(419),             RETRY,   RETRY,   FailureCause.BROKER_FULL),
    (answer(500),             RETRY,   UNKNOWN, FailureCause.OTHER),
    (answer(503),             RETRY,   RETRY,   FailureCause.BROKER_REFUSES),
    (answer(1000),            REFUSED, REFUSED, FailureCause.OTHER),
    (STOPPING,                RETRY,   RETRY,   FailureCause.BROKER_REFUSES),
    (EXCEPTION,               RETRY,   UNKNOWN, FailureCause.OTHER),
    (TransportError("broke"), RETRY,   UNKNOWN, FailureCause.OTHER),
    (ProtocolError("damage"), RETRY,   UNKNOWN, FailureCause.OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "twice", "once", "cause"), FAILURES, ids=lambda value: str(value)[:40].strip())
def test_each_failure_is_retried_looked_up_or_refused(
    outcome: Outcome, twice: SendEvent, once: SendEvent, cause: FailureCause
) -> None:
    assert classify_failure(outcome, store_once=False) == (twice, cause)
    assert classify_failure(outcome, store_once=True) == (once, cause)
