# SPDX-License-Identifier: Apache-2.0
"""Tests of all life-cycle tables: complete, without dead ends, and an error for all other events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.lifecycle import MEMBER, Lifecycle, MemberEvent, MemberState


class Machine(NamedTuple):
    states: type[Enum]
    events: type[Enum]
    table: Mapping[tuple[Any, Any], Enum]
    start: Enum
    final: frozenset[Enum]


MACHINES = {
    "member": Machine(MemberState, MemberEvent, MEMBER, MemberState.NEW, frozenset({MemberState.CLOSED})),
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


def test_the_repr_shows_the_state() -> None:
    assert repr(Lifecycle("member spark_1", MemberState.NEW, MEMBER)) == "<member spark_1 NEW>"
