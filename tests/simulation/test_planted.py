# SPDX-License-Identifier: Apache-2.0
"""Planted faults: each has its place in the product. `make simulate-faults` lets schedules find each of them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.planted import Player, find
from tests.simulation.planted_faults import FAULTS
from tests.simulation.planted_faults.fault import Fault

BY_NAME = {fault.name: fault for fault in FAULTS}
QUICK = ("range_ends_early", "stamp_without_batch")  # found by one of the first schedules


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_the_product_has_the_place_of_a_fault_once(fault: Fault) -> None:
    compile(fault.tree(), str(fault.path), "exec")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"module": "protocol.moved"}, r"moved: there is no earlier_attempts in protocol\.moved, which had this node"),
        ({"function": "Moved.check"}, r"moved: there is no Moved\.check in sink\.deduplicator, which had this node"),
        (
            {"old": "plan.is_first"},
            r"moved: earlier_attempts of sink\.deduplicator has this node 0 times, instead of once",
        ),
        (
            {"old": "task", "new": "None"},
            r"has this node 2 times, instead of once:\ntask\nWrite `old` as the function has it now",
        ),
    ],
)
def test_a_fault_that_has_lost_its_place_says_what_to_do(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(BY_NAME["retried_task_not_searched"], name="moved", **change).tree()


def test_the_layout_of_the_code_does_not_matter() -> None:
    fault = BY_NAME["retried_without_look_up"]
    old = fault.old.replace("any(", "any(  # of the batch\n    ")
    assert replace(fault, old=old).tree().body


def test_the_faults_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []


@pytest.mark.parametrize("name", QUICK)
def test_schedules_find_a_fault(name: str) -> None:
    fault = BY_NAME[name]
    with closing(Player(fault.family)) as without:
        found = find(fault, without, 100)
    assert found.invariant in fault.invariants, f"{fault.promise}: no breach in 100 schedules, but {found.others}"
