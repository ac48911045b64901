# SPDX-License-Identifier: Apache-2.0
"""Positions of messages among entries without a message."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.simulated_store import UNIT, Message
from tubemq_spark.protocol.gap_search import GapSearch

layouts = st.lists(st.booleans(), max_size=60)


def first_from(entries: list[Message | None], position: int) -> Message | None:
    return next((entry for entry in entries[position // UNIT :] if entry is not None), None)


@given(layouts, layouts, layouts, st.integers(0, 60))
def test_a_search_finds_all_positions(
    before: list[bool], inside: list[bool], behind: list[bool], most_missing: int
) -> None:
    """Up to some gap. The store goes on behind the stretch, so a probe may find a message there first."""
    whole = before + inside + behind
    entries = [Message(number, 0) if there else None for number, there in enumerate(whole)]
    begin, end = len(before) * UNIT, (len(before) + len(inside)) * UNIT
    messages = [entry for entry in entries[len(before) :][: len(inside)] if entry is not None]
    search, probes = GapSearch(messages, begin, end, most_missing), 0
    while (probe := search.next_probe()) is not None:
        assert begin < probe <= end
        assert search.found(first_from(entries, probe))
        probes += 1
    positions = [message.messageId * UNIT for message in messages]
    known = [at for number, at in enumerate(positions) if (at - begin) // UNIT - number <= most_missing]
    assert search.positions[: search.known] == known
    assert search.known == len(known)
    assert all(position >= search.bound for position in positions[search.known :])
    assert all(position < search.bound for position in known)
    gaps = len(inside) - len(messages)
    assert min(gaps, most_missing + 1) <= search.missing <= gaps
    gaps = min(gaps, most_missing + 1)
    assert probes <= 2 * gaps * math.log2(len(inside) + 1) + 1, "one more probe finds what follows"


@pytest.mark.parametrize(("answer", "possible"), [(0, False), (1, True), (2, True), (None, False)])
def test_a_search_rejects_impossible_results(answer: int | None, possible: bool) -> None:
    """Four entries, three messages: the first at the third entry is the third, or the second."""
    messages = [Message(number, 0) for number in range(4)]
    search = GapSearch(messages[:3], 0, 4 * UNIT, 9)
    assert search.next_probe() == 2 * UNIT
    assert search.found(None if answer is None else messages[answer]) is possible


@pytest.mark.parametrize(("at_the_end", "possible"), [(4, True), (3, False), (None, False)])
def test_an_unread_message_must_be_the_one_behind_the_stretch(at_the_end: int | None, possible: bool) -> None:
    """Four entries, of which one message was read. A probe at the third entry finds another: is it behind the end?"""
    messages = [Message(number, 0) for number in range(5)]
    search = GapSearch(messages[:1], 0, 4 * UNIT, 9)
    assert search.next_probe() == 2 * UNIT
    assert search.found(messages[4])
    assert search.next_probe() == 4 * UNIT
    assert not search.is_answered_by(4 * UNIT), "an empty fetch there tells nothing about what comes"
    assert search.found(None if at_the_end is None else messages[at_the_end]) is possible
