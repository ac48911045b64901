# SPDX-License-Identifier: Apache-2.0
"""Which positions of a store are probed, and what the results prove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.consumer.probe import PartitionPosition, ProbeResult
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import ID_SECOND, Fingerprint, KnownIds
from tubemq_spark.protocol.metadata import Partition, TopicOnBroker
from tubemq_spark.source.store_check import (
    FingerprintState,
    StoreCheck,
    StoreRange,
    ids_between,
    store_ranges,
    unread_members,
)

A, B = Partition(1, "t", 0), Partition(1, "t", 1)
STORE = A.store
CLUSTER = Cluster(layouts={("t", 1): TopicOnBroker("t", 1, 1, 2)})
NOW = 1_700_000_000
ID = 300 * ID_SECOND  # far from the turn of the wave


def id_of(entry: int) -> int:
    """Return the id of a message: ten are sent in a second."""
    return ID + entry * ID_SECOND // 10


def taken(entry: int, *, partition: Partition = A, time: int = NOW) -> Fingerprint:
    return Fingerprint(entry * UNIT, partition.partition_id, id_of(entry), time)


def check(
    store_range: StoreRange,
    results: Mapping[PartitionPosition, ProbeResult] | None = None,
    flushed_end: int | None = None,
) -> StoreCheck:
    return StoreCheck(store_range, results or {}, NOW, flushed_end=flushed_end)


def range_of(start: int, end: int, *fingerprints: Fingerprint) -> StoreRange:
    """Return a range in entries, of a store with the partitions A and B."""
    return StoreRange(STORE, [A, B], [A, B], start * UNIT, end * UNIT, fingerprints)


def found(at: int, entry: int | None, *, is_exact: bool = False) -> ProbeResult:
    """Return the result of a probe at an entry that found the message of another one."""
    return ProbeResult(at * UNIT, () if entry is None else (id_of(entry),), is_exact=is_exact)


def test_a_range_reaches_from_the_least_start_to_the_greatest_end_of_a_store() -> None:
    other = Partition(2, "t", 0)
    begin, ends = {A: 28, B: 56, other: 0}, {A: 84, B: 140, other: 28}
    ranges = list(store_ranges(begin, ends, {STORE: (taken(0),), other.store: ()}, Cluster()))
    assert ranges == [
        StoreRange(STORE, [A, B], [A, B], 28, 140, (taken(0),)),
        StoreRange(other.store, [other], [other], 0, 28, ()),
    ]


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_fingerprint_may_be_of_a_partition_that_is_not_read(partitions: int) -> None:
    """Perhaps of one that the cluster does not have any more. Then an older one decides."""
    cluster = Cluster(layouts={("t", 1): TopicOnBroker("t", 1, 1, partitions)})
    taken_before = taken(0), taken(1, partition=B)
    (store_range,) = store_ranges({A: 28}, {A: 56}, {STORE: taken_before}, cluster)
    assert store_range.fingerprints == taken_before
    assert store_range.members == [A, B][:partitions]
    assert list(unread_members([store_range])) == [B]
    assert store_range.newest_state({}) is FingerprintState.UNKNOWN
    for first in (0, 7):
        is_truncated = store_range.is_truncated({(A, 0): found(0, first)})
        assert is_truncated is (first != 0)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (None, FingerprintState.UNKNOWN),
        (found(5, 5), FingerprintState.INTACT),
        (ProbeResult(5 * UNIT, (id_of(4), id_of(5))), FingerprintState.INTACT),
        (found(5, 6), FingerprintState.REPLACED),
        (found(5, None), FingerprintState.REPLACED),
        (found(3, None), FingerprintState.REPLACED),  # the store ends before it
        (found(7, 7), FingerprintState.EXPIRED),
    ],
)
def test_what_a_probe_proves_of_a_fingerprint(result: ProbeResult | None, state: FingerprintState) -> None:
    store_range = range_of(6, 9, taken(5))
    results = {} if result is None else {(A, 5 * UNIT): result}
    assert store_range.state(taken(5), results) is state
    assert store_range.is_truncated(results) is (state is FingerprintState.REPLACED)


@pytest.mark.parametrize(
    ("store_range", "probed"),
    [
        (range_of(6, 6, taken(5)), {(A, 5)}),  # the fingerprint only, because the batch is empty
        (range_of(6, 9, taken(5)), {(A, 5), (A, 8), (B, 8)}),  # the batch begins behind a recent fingerprint
        (range_of(6, 9, taken(5, time=NOW - 100)), {(A, 5), (A, 8), (B, 8), (A, 6), (B, 6)}),
        (range_of(6, 9), {(A, 8), (B, 8), (A, 6), (B, 6), (A, 0), (B, 0)}),  # and a position that is flushed
    ],
)
def test_positions_of_the_first_probes(store_range: StoreRange, probed: set[tuple[Partition, int]]) -> None:
    assert {(partition, at // UNIT) for partition, at in check(store_range).initial_probes()} == probed


@pytest.mark.parametrize(
    ("store_range", "needs"),
    [
        (range_of(6, 9), True),
        (range_of(6, 9, taken(5)), True),
        (range_of(6, 6), True),  # an idle store whose position nothing guards
        (range_of(6, 6, taken(5)), False),
        (range_of(0, 0), False),
    ],
)
def test_each_store_with_a_position_needs_a_fingerprint(store_range: StoreRange, needs: bool) -> None:
    assert check(store_range).needs_fingerprints is needs


def test_the_last_message_of_a_batch_becomes_a_fingerprint() -> None:
    results = {(A, 8 * UNIT): found(8, None), (B, 8 * UNIT): found(8, 8, is_exact=True)}
    one = check(range_of(6, 9, taken(5)), results)
    assert list(one.follow_up_probes()) == []
    assert list(one.new_fingerprints()) == [taken(8, partition=B)]


def test_probes_behind_the_end_tell_the_owner_of_the_last_entry() -> None:
    """Both partitions have a message from the last entry on, because other clients have sent some meanwhile."""
    results = {(A, 8 * UNIT): found(8, 8), (B, 8 * UNIT): found(8, 9)}
    store_range = range_of(6, 9, taken(5))
    assert set(check(store_range, results).follow_up_probes()) == {(A, 9 * UNIT), (B, 9 * UNIT)}
    assert list(check(store_range, results).new_fingerprints()) == []
    results |= {(A, 9 * UNIT): found(9, None), (B, 9 * UNIT): found(9, 9)}
    assert list(check(store_range, results).new_fingerprints()) == [taken(8)]


def test_the_first_batch_gets_fingerprints_of_its_first_and_last_message() -> None:
    results = {(A, 8 * UNIT): found(8, 8, is_exact=True), (B, 8 * UNIT): found(8, None)}
    results |= {(A, 6 * UNIT): found(6, 6, is_exact=True), (B, 6 * UNIT): found(6, None)}
    one = check(range_of(6, 9), results)
    assert list(one.follow_up_probes()) == []
    assert list(one.new_fingerprints()) == [taken(8, time=0), taken(6, time=0)]


def test_no_fingerprint_stands_at_an_entry_of_a_partition_that_is_not_listed() -> None:
    """A new partition, which the master does not list yet, has the entries 6 and 7."""
    results = {(A, 8 * UNIT): found(8, 8, is_exact=True), (A, 6 * UNIT): found(6, 8), (A, 7 * UNIT): found(7, 8)}
    results |= {(A, 0): found(2, 4), (A, 3 * UNIT): found(3, 4)}
    one = check(replace(range_of(6, 9), partitions=[A], members=[A]), results)
    assert set(one.follow_up_probes()) == {(A, 7 * UNIT), (A, 3 * UNIT)}
    assert list(one.new_fingerprints()) == [taken(8, time=0)]


def test_a_batch_of_entries_of_others_gets_a_fingerprint_of_a_later_message() -> None:
    """Only as the first of the store: without one, nobody would notice that a crash takes all there is."""
    results = {(A, 8 * UNIT): found(8, 9), (A, 9 * UNIT): found(9, 9)}
    assert list(check(range_of(6, 9), results).new_fingerprints()) == [taken(9, time=0)._replace(position=8 * UNIT)]
    assert list(check(range_of(6, 9, taken(5)), results).new_fingerprints()) == []
    results |= {(A, 0): found(2, 2), (A, 3 * UNIT): found(3, 9), (A, 6 * UNIT): found(6, 9)}  # and a message in files
    assert taken(2, time=0) in check(range_of(6, 9), results).new_fingerprints()


def test_a_fingerprint_of_the_first_message_stands_where_this_message_is() -> None:
    """A partition's first message from the start on may be far behind it, and lost with the tail of the store."""
    results = {(A, 8 * UNIT): found(8, 8, is_exact=True), (B, 8 * UNIT): found(8, None)}
    results |= {(A, 6 * UNIT): found(6, 8), (B, 6 * UNIT): found(6, 6)}
    store_range = range_of(6, 9)
    assert set(check(store_range, results).follow_up_probes()) == {(A, 7 * UNIT), (B, 7 * UNIT)}
    assert list(check(store_range, results).new_fingerprints()) == [taken(8, time=0)]
    results |= {(A, 7 * UNIT): found(7, 8), (B, 7 * UNIT): found(7, None)}
    assert list(check(store_range, results).new_fingerprints()) == [taken(8, time=0), taken(6, partition=B, time=0)]


def test_a_fingerprint_that_is_flushed_stands_where_its_message_is() -> None:
    """Retention has left the entries from 2 on. A's first message from there on may be lost with the store's tail."""
    results = {(A, 8 * UNIT): found(8, 8, is_exact=True), (B, 8 * UNIT): found(8, None)}
    results |= {(A, 6 * UNIT): found(6, 6, is_exact=True), (B, 6 * UNIT): found(6, None)}
    results |= {(A, 0): found(2, 5), (B, 0): found(2, 2)}
    store_range = range_of(6, 9)
    assert set(check(store_range, results).follow_up_probes()) == {(A, 3 * UNIT), (B, 3 * UNIT)}
    results |= {(A, 3 * UNIT): found(3, 5), (B, 3 * UNIT): found(3, None)}
    assert taken(2, partition=B, time=0) in check(store_range, results).new_fingerprints()
    assert taken(2, time=0) not in check(store_range, results).new_fingerprints()


def test_ids_of_a_range_are_known_between_its_fingerprints() -> None:
    begin, ends = {A: 6 * UNIT, B: 6 * UNIT}, {A: 9 * UNIT, B: 9 * UNIT}
    known = ids_between(begin, ends, {STORE: (taken(5), taken(8))}, CLUSTER)
    span = known[B].span
    assert known == {A: KnownIds(span, id_of(8), taken(8)), B: KnownIds(span, mark=taken(8))}
    assert span is not None
    assert span.has(id_of(7))


def test_a_range_without_a_fingerprint_of_its_last_entry_has_the_newest_one() -> None:
    begin, ends = {A: 6 * UNIT, B: 6 * UNIT}, {A: 9 * UNIT, B: 9 * UNIT}
    mark = KnownIds(mark=taken(5))
    assert ids_between(begin, ends, {STORE: (taken(3), taken(5))}, CLUSTER) == {A: mark, B: mark}
    assert ids_between(begin, ends, {}, CLUSTER) == {}
