# SPDX-License-Identifier: Apache-2.0
"""Numbers of requests that the source makes: they must not grow unnoticed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.counting import TOPIC, cluster, counted, send_to_all, streaming
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions


def steps_of(work: Callable[[], object]) -> int:
    """Return how many Python functions the work calls in this thread."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def steps_to_find_the_end(stores: int) -> int:
    with cluster(1, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, 1, stores)
        stream.read()
        send_to_all(tubemq, 1, stores)
        return steps_of(stream.ask)


def test_work_to_find_the_end_grows_linearly_with_the_stores() -> None:
    assert steps_to_find_the_end(200) < 5 * steps_to_find_the_end(50)


class Compared(Partition):
    """Counts how often a partition is compared with another one."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return super().__eq__(other)

    __hash__ = Partition.__hash__


def comparisons_of_a_commit(stores: int) -> int:
    """Return how often the driver compares partitions when it commits a batch."""
    with cluster(1, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, 1, stores)
        stream.read()
        positions: dict[Partition, int] = {
            Compared(*partition): end for partition, end in stream.start.positions.items()
        }
        Compared.comparisons = 0
        stream.driver.commit(replace(stream.start, positions=positions))
        return Compared.comparisons


def test_work_to_commit_grows_linearly_with_the_partitions() -> None:
    assert 0 < comparisons_of_a_commit(200) < 5 * comparisons_of_a_commit(50)


@pytest.mark.parametrize(("partitions", "stores"), [(40, 1), (2, 10), (1, 20)])
def test_idle_query_makes_one_request_for_each_store(partitions: int, stores: int) -> None:
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, partitions, stores)
        stream.read()
        stream.ask()
        with counted(tubemq) as cost:
            assert stream.ask() == stream.start
        assert cost.of_partitions == {"commit_offset": stores}


@pytest.mark.parametrize(("partitions", "stores", "most"), [(1, 10, 5 * 10), (30, 1, 3 * 30 + 2), (3, 10, 11 * 10)])
def test_each_partition_is_probed_once_at_the_end_of_a_batch(partitions: int, stores: int, most: int) -> None:
    """The group's move, a seek to the last entry and a fetch; for each store a seek and a fetch of its fingerprint."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):  # the first batch's fingerprint has no time, so the second batch is probed at its start
            send_to_all(tubemq, partitions, stores)
            stream.read()
        send_to_all(tubemq, partitions, stores)
        with counted(tubemq) as cost:
            assert stream.ask() != stream.start
        assert sum(cost.of_partitions.values()) <= most


@pytest.mark.parametrize(("partitions", "stores", "most"), [(1, 10, 5), (30, 1, 6), (3, 10, 6)])
def test_task_makes_few_requests_for_a_partition_with_little_to_read(partitions: int, stores: int, most: int) -> None:
    """It claims by a seek, fetches all messages and in shared stores once more none, proves with a seek and a roll-back
    that nothing moved, and releases the claim."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, partitions, stores)
        stream.read()
        send_to_all(tubemq, partitions, stores)
        end = stream.ask()
        tasks = stream.driver.plan(stream.start, end)
        with counted(tubemq) as cost:
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == partitions * stores
        assert sum(cost.of_partitions.values()) <= most * partitions * stores


def test_one_message_costs_few_requests_for_other_partitions_of_its_store() -> None:
    """A visit (two seeks and a fetch between them), and a register that moves the group."""
    with cluster(40, 1) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):
            send_to_all(tubemq, 40, 1)
            stream.read()
        stream.ask()
        tubemq.send(TOPIC, b"message", 7)
        with counted(tubemq) as cost:
            stream.read()
            stream.ask()
        assert stream.rows == 81
        assert sum(cost.of_partitions.values()) <= 4 * 40 + 12


def test_batch_plan_asks_each_store_and_claims_nothing() -> None:
    """A visit for the beginning and the end of each store, and the end of the visitor's claim."""
    with cluster(3, 10) as tubemq:
        send_to_all(tubemq, 3, 10)
        raw = {"tubemq.master": tubemq.master, "tubemq.group": "readers", "subscribe": TOPIC}
        with counted(tubemq) as cost:
            tasks = plan_batch(SourceOptions.read(raw, streaming=False))
        assert cost.of_partitions == {"partition_register": 10, "partition_unregister": 10}
        with counted(tubemq) as cost:
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == 30
        assert sum(cost.of_partitions.values()) <= 6 * 30
