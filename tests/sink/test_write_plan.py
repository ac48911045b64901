# SPDX-License-Identifier: Apache-2.0
"""The driver checks a write before its tasks run, and the plan travels to them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster
from tests.sending import bodies_in
from tests.without_spark.sink import batches, options
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import TransportError
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import plan_write
from tubemq_spark.sink.writers import batch_writer, stream_writer

SCHEMA = StructType().add("value", BinaryType())
ROWS = [{"value": b"a"}]


@pytest.mark.parametrize("topic", ["demo", None])
def test_a_copy_without_a_topic_warns(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, topic: str | None
) -> None:
    """In the same cluster each row would go back to the topic that it was read from."""
    read = StructType([*SCHEMA.fields, StructField("topic", StringType()), StructField("message_id", LongType())])
    plan_write(options(cluster, topic), read, overwrite=False)
    assert ("[copied-by-topic-column]" in caplog.text) == (topic is None)


def test_planning_again_asks_no_master(cluster: EmbeddedCluster, master_calls: Callable[[], int]) -> None:
    plan_write(options(cluster, "demo"), SCHEMA, overwrite=False)
    calls = master_calls()
    plan_write(options(cluster, "demo"), SCHEMA, overwrite=False)
    assert master_calls() == calls > 0


def test_a_task_is_patient_with_the_master_that_the_driver_has_met(
    cluster: EmbeddedCluster, use_timings: UseTimings
) -> None:
    """The driver gives up early, because the address may be a typing error."""
    use_timings(first_contact_timeout=0.0)
    lost = cluster.tubemq.on("producer_register", times=1).close_connection()
    with pytest.raises(TransportError, match="no master answered"):
        plan_write(options(cluster, "demo"), SCHEMA, overwrite=False).for_tasks()
    assert lost.fired == 1

    planned = pickle.loads(pickle.dumps(plan_write(options(cluster, "demo"), SCHEMA, overwrite=False)))
    forget_servers()  # the task is in another process
    lost = cluster.tubemq.on("producer_register", times=1).close_connection()
    write_batches(planned, batches(ROWS, SCHEMA))
    assert bodies_in(cluster) == {b"a": 1}
    assert lost.fired == 1


def test_writers_travel_to_the_executors(cluster: EmbeddedCluster) -> None:
    given = options(cluster, "demo", tubemq_user="me", tubemq_password="geheim")
    for make in (batch_writer, stream_writer):
        writer = make(given, SCHEMA, False)
        assert "geheim" not in repr(writer)
        arrived = pickle.loads(pickle.dumps(writer))
        assert arrived._plan == writer._plan
        written = pickle.loads(pickle.dumps(arrived.write(batches(ROWS, SCHEMA))))
        assert sum(written.rows.values()) == 1
    assert bodies_in(cluster) == {b"a": 2}
