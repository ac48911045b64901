# SPDX-License-Identifier: Apache-2.0
"""Where a micro-batch ends, decided from what the driver saw: tables of values, without a server."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import Fingerprint
from tubemq_spark.protocol.metadata import Partition, TopicOnBroker
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.snapshot import PartitionView, Snapshot, decide
from tubemq_spark.source.truncation_check import Checked

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)
START = StreamOffset("q", {A: 10 * UNIT, B: 20 * UNIT})
READ = {A: PartitionView(10 * UNIT, 50 * UNIT), B: PartitionView(20 * UNIT, 50 * UNIT)}
ENDS = {A: 30 * UNIT, B: 40 * UNIT}
INTACT = Checked({}, {}, {})
MARK = Fingerprint(29 * UNIT, 0, 1, 0)
CLUSTER = Cluster(layouts={("t", 1): TopicOnBroker("t", 1, 1, 2), ("u", 2): TopicOnBroker("u", 2, 1, 1)})


def test_a_batch_ends_where_the_options_let_it_end() -> None:
    checked = Checked({}, {A.store: (MARK,)}, {})
    end, losses = decide(Snapshot(START, READ), ENDS, checked, frozenset({B}), CLUSTER)
    assert end == StreamOffset("q", ENDS, None, {A.store: (MARK,)}, {}, frozenset({B}))
    assert losses == {}


def test_without_news_the_end_is_the_start_itself() -> None:
    """Spark compares offsets as text."""
    end, _ = decide(Snapshot(START, READ), START.positions, INTACT, frozenset(), CLUSTER)
    assert end is START


def test_the_end_of_the_first_batch_has_its_begin_too() -> None:
    """Spark does not store the offset at which it began. A partition that enters with it is not read."""
    views = {**READ, C: PartitionView(3 * UNIT, 9 * UNIT, is_new=True)}
    end, _ = decide(
        Snapshot(StreamOffset("q", {}), views, is_first=True), {**ENDS, C: 3 * UNIT}, INTACT, frozenset(), CLUSTER
    )
    assert end.initial == {A: 10 * UNIT, B: 20 * UNIT}
    assert end.positions == {**ENDS, C: 3 * UNIT}
    assert end.exclusive == {"u": frozenset({2})}


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_partition_that_is_not_read_any_more_keeps_its_position(comes_back: bool) -> None:
    start = StreamOffset("q", {A: 10 * UNIT, B: 20 * UNIT}, left={C: 5 * UNIT})
    views = {A: READ[A]} | ({C: PartitionView(5 * UNIT, 9 * UNIT, is_new=True)} if comes_back else {})
    ends = {A: 30 * UNIT} | ({C: 5 * UNIT} if comes_back else {})
    end, _ = decide(Snapshot(start, views), ends, INTACT, frozenset(), CLUSTER)
    assert end.left == {B: 20 * UNIT} | ({} if comes_back else {C: 5 * UNIT})


@pytest.mark.parametrize("goes_on", [4 * UNIT, 10 * UNIT, 12 * UNIT])
def test_a_truncated_store_goes_on_where_new_messages_begin(goes_on: int) -> None:
    """What lies before the begin is lost."""
    end, losses = decide(Snapshot(START, READ), ENDS, Checked({A: goes_on}, {}, {}), frozenset(), CLUSTER)
    assert end.positions == {A: goes_on, B: 40 * UNIT}
    assert {one: (loss.asked, loss.offered) for one, loss in losses.items()} == (
        {A: (10 * UNIT, goes_on)} if goes_on < 10 * UNIT else {}
    )


entries = st.integers(0, 50).map(lambda n: n * UNIT)


@given(st.dictionaries(st.sampled_from([A, B, C]), st.tuples(entries, entries, entries, st.booleans())), st.booleans())
def test_a_decision_loses_no_partition_and_passes_no_end(
    drawn: Mapping[Partition, tuple[int, int, int, bool]], is_first: bool
) -> None:
    views, ends, cut = {}, {}, {}
    for partition, numbers in drawn.items():
        begin, end, log_end = sorted(numbers[:3])
        views[partition] = PartitionView(begin, log_end, is_new=numbers[3])
        ends[partition] = begin if numbers[3] else end
        if not numbers[3] and numbers[0] % (2 * UNIT):
            cut[partition] = min(numbers[0], end)
    start = StreamOffset("q", {} if is_first else {one: view.begin for one, view in views.items() if not view.is_new})
    decided, losses = decide(Snapshot(start, views, is_first), ends, Checked(cut, {}, {}), frozenset(), CLUSTER)
    assert decided.positions.keys() | decided.left.keys() >= start.positions.keys()
    for partition, at in decided.positions.items():
        assert at <= views[partition].log_end
        assert (at < views[partition].begin) == (partition in losses)
