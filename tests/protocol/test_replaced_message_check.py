"""Tests of the check for ranges whose positions the broker used again."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.log_fingerprint import IdSpan, KnownIds
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.replaced_message_check import ReplacedMessageCheck

IDS = IdSpan(10, 19)


def batch(*ids: int, begin: int = 280, has_positions: bool = True) -> FetchedBatch:
    messages = [SimpleNamespace(messageId=one, checkSum=0) for one in ids]
    positions = [begin + 28 * index for index in range(len(ids))] if has_positions else None
    return FetchedBatch(messages, positions, begin, begin + 28 * len(ids))


def check(span: IdSpan | None = IDS, last: int | None = None) -> ReplacedMessageCheck:
    return ReplacedMessageCheck(Partition(1, "t", 2), 0, 2800, KnownIds(span, last))


def is_replaced(one: ReplacedMessageCheck, *batches: FetchedBatch) -> bool:
    for whole in batches:
        one.add(whole)
    return one.finds_replacement


def test_the_error_names_the_range() -> None:
    error = check().error()
    assert re.match(r"1:t:2: messages in \[0, 2800\) have other ids .* Start the query again", str(error))


def test_accepts_the_planned_messages() -> None:
    assert not is_replaced(check(), batch(10, 19, 12), batch(), batch(15, has_positions=False))
    assert not is_replaced(check())


def test_accepts_all_messages_without_ids() -> None:
    assert not is_replaced(check(None), batch(1, 99))


@pytest.mark.parametrize(("batches", "last", "replaced"), [
    ([(10, 11), ()], 11, False),
    ([(10,), (11,)], 11, False),
    ([(9, 99, 11)], 11, False),
    ([(10, 11), (12,)], 11, True),
    ([(11, 10)], 11, True),
    ([()], 11, True),
    ([], 11, True),
])  # fmt: skip
@pytest.mark.parametrize("span", [IDS, None])
def test_compares_the_last_message_with_its_known_id(
    batches: list[tuple[int, ...]], last: int, replaced: bool, span: IdSpan | None
) -> None:
    assert is_replaced(check(span, last), *(batch(*ids) for ids in batches)) == replaced


@pytest.mark.parametrize(("ids", "replaced"), [((9,), True), ((20,), True), ((10, 20), True), ((9, 20, 11), False)])
def test_compares_the_last_message_with_the_span_of_ids(ids: tuple[int, ...], replaced: bool) -> None:
    """Earlier messages may be outside: the span is wrong if ids wrapped twice between two fingerprints."""
    assert is_replaced(check(), batch(*ids)) == replaced
