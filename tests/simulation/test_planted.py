# SPDX-License-Identifier: Apache-2.0
"""Planted faults: each has its place in the product. `make simulate-faults` lets schedules find each of them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from tests.simulation.planted import FAMILIES, Fault, Player, find
from tests.simulation.planted_faults import FAULTS

QUICK = ("range_ends_early", "stamp_without_batch")  # found by one of the first schedules

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))


def assert_found(fault: Fault, most: int) -> None:
    with closing(Player(fault.family)) as without:
        found = find(fault, without, most)
    assert found.invariant in fault.invariants, f"{fault.promise}: no breach in {most} schedules, but {found.others}"


@each_fault
def test_the_product_has_the_text_of_a_fault_once(fault: Fault) -> None:
    compile(fault.text(), fault.file, "exec")
    assert fault.family in FAMILIES


def test_a_fault_that_the_product_has_no_more_says_so() -> None:
    with pytest.raises(ValueError, match=r"gone: protocol/stamp\.py has 0 times, instead of once"):
        replace(FAULTS[0], name="gone", file="protocol/stamp.py").text()


def test_the_faults_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []


@pytest.mark.parametrize("name", QUICK)
def test_schedules_find_a_fault(name: str) -> None:
    assert_found(next(fault for fault in FAULTS if fault.name == name), 100)
