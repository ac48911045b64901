# SPDX-License-Identifier: Apache-2.0
"""What a run of a query knows about single partitions. `test_micro_batch_planner` tests discovery and removal."""

from __future__ import annotations

from tubemq_spark.errors import DataLossError
from tubemq_spark.source.partition_set import PartitionState


def test_accepted_loss_replaces_the_position_until_the_next_batch_is_committed() -> None:
    """Spark passes the old position once more, then the end of the batch behind the loss."""
    loss = DataLossError("lost", topic="t", broker_id=1, partition=0, asked=280, offered=140)
    state = PartitionState(accepted_loss=loss)
    assert [state.stored(280), state.stored(280)] == [140, 140]
    assert state.stored(168) == 168
    assert state.stored(280) == 280
